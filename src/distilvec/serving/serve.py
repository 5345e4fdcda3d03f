"""`distilvec serve`: open a model, and answer until somebody says stop."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distilvec.errors import DistilvecError, EnvironmentProblem, Interrupted
from distilvec.export.encoder import CONFIG, OnnxEncoder, load_onnx
from distilvec.extras import need
from distilvec.serving.app import Limits, application

if TYPE_CHECKING:
    from collections.abc import Callable

    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
Served = Literal["float32", "bfloat16", "int8"]


def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    name: str | None = None,
    key_env: str | None = None,
    batch: int = 64,
    precision: Served = "float32",
    started: Callable[[str], None] = logger.info,
) -> None:
    """Answer requests for vectors until Ctrl-C or SIGTERM; what is in work then is finished first.

    Args:
        model: folder or hub id of a sentence-transformers model, or a folder that `distilvec export` wrote as ONNX.
        host, port: where it listens; port 0 takes a free one.
        name: that clients ask for; default the folder's.
        key_env: environment variable with the key that clients must send.
        batch: texts that are encoded together.
        precision: float32 (default); bfloat16 of a model in PyTorch; int8 of an export.
        started: told the address once.

    Raises:
        DistilvecError: no such model, the variable is not set, or the model has no such precision.
        EnvironmentProblem: the extra `serve` is missing, or the port is taken.
    """
    need("Serving", "serve", "starlette", "uvicorn")
    import uvicorn

    from distilvec.serving.connections import configured

    key = None
    if key_env is not None:
        key = os.environ.get(key_env, "").strip()
        if not key:
            raise DistilvecError(f"the environment variable {key_env} is not set", where="--key-env")
        if not (key.isascii() and key.isprintable()):
            raise DistilvecError(
                "a key is sent in a header, which holds letters, digits and signs of ASCII alone",
                where=key_env,
                remedy="Choose another key.",
            )
    called = name or (Path(model).resolve() if Path(model).is_dir() else Path(model)).name
    limits, thread = Limits(), ThreadPoolExecutor(1, "encode")
    # In the thread that uses it: OpenMP keeps helpers for each thread that computed once, and where they are more than
    # cores they wait for each other slowly (a text took 8.5 ms instead of 6.4).
    opened = thread.submit(_opened, model, called, precision).result()
    app = application(opened, called, key=key, batch=batch, limits=limits, thread=thread)
    listening = _listen(host, port)
    shown = f"[{host}]" if listening.family == socket.AF_INET6 else host
    address = f"http://{shown}:{listening.getsockname()[1]}"
    started(f"{called} answers at {address}/v1/embeddings; Ctrl-C ends it")
    if host not in ("127.0.0.1", "localhost", "::1") and key is None:
        logger.warning("everybody who reaches %s may ask: set --key-env", address)
    with contextlib.suppress(KeyboardInterrupt, Interrupted):  # what was in work is answered, and that is all
        uvicorn.Server(configured(app, limits)).run(sockets=[listening])


def _opened(model: str, called: str, precision: Served) -> SentenceTransformer | OnnxEncoder:
    if (Path(model).expanduser() / CONFIG).is_file():
        if precision == "bfloat16":
            raise DistilvecError("an export has float32 and int8", where="--precision", remedy="Choose one of these.")
        return load_onnx(model, precision=precision)
    if precision == "int8":
        raise DistilvecError(
            "this model is not an export: it has float32 and bfloat16",
            where="--precision",
            remedy=f"Choose one of these, or serve an export: `distilvec export {model} --output FOLDER`.",
        )
    from distilvec.modules.invariance import warn_of_batches
    from distilvec.students import load_student

    opened = load_student(model)
    warn_of_batches(opened, called)
    return opened.bfloat16() if precision == "bfloat16" else opened


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except (OSError, OverflowError, UnicodeError) as error:
        raise EnvironmentProblem(
            f"nothing can listen here ({getattr(error, 'strerror', None) or error})",
            where=f"{host}:{port}",
            remedy="Choose another --port, or 0 for any.",
        ) from error
    return listener
