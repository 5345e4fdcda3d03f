"""Two processes that have imported what is slow to import, and fork one for everything they are asked to run.

python tests/forking.py      reads one JSON request a line

The first has all of distilvec; the second ("bare": true) was forked before that, and has sentence-transformers alone. A
request names a ticket, the folder that gets `pid`, `output` (stdout and stderr) and, at the end, `status` (what waitpid
says); environment variables that are read late enough; and one of

- job: a training job of tests/training/jobs.py;
- arguments: those of the command `distilvec`;
- code and argv: a program's text and its arguments.

folder: where to work. terminal: the device of a pseudo-terminal that the process gets in place of files.
limit: no file may grow beyond so many bytes; limit_student: from when the student is written on.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

Request = dict[str, Any]


def _run(request: Request) -> int:
    """In the process that was forked for it: returns its exit code."""
    os.environ.update(request.get("env", {}))
    if "folder" in request:
        os.chdir(request["folder"])
        sys.path[0] = request["folder"]
    if "limit" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    try:
        if "code" in request:
            sys.argv = ["-c", *request["argv"]]
            exec(compile(request["code"], "<code>", "exec"), {"__name__": "__main__"})
        else:
            return _distil(request)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _distil(request: Request) -> int:
    from tests.training import jobs

    from distilvec.cli.main import main
    from distilvec.errors import DistilvecError

    if "limit_student" in request:
        jobs.limit_student(request["limit_student"])
    if "arguments" in request:
        main(request["arguments"])
        return 0
    try:
        jobs.train(request["job"])
    except DistilvecError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


def _supervise(request: Request) -> None:
    """Fork a process for the request, wait for it, write down how it ended."""
    ticket = Path(request["ticket"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts with & ignore it
    child = os.fork()
    if child == 0:
        if "terminal" in request:
            os.setsid()  # the terminal that is opened next is its own
            source = out = os.open(request["terminal"], os.O_RDWR)
        else:
            source = os.open(os.devnull, os.O_RDONLY)
            out = os.open(ticket / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        for number, file in enumerate((source, out, out)):
            os.dup2(file, number)
        code = _run(request)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    (ticket / "pid").write_text(str(child))
    _, status = os.waitpid(child, 0)
    partial = ticket / ".status"
    partial.write_text(str(os.waitstatus_to_exitcode(status)))
    partial.replace(ticket / "status")


def _serve(requests: Iterable[str], bare: TextIO | None = None) -> None:
    """Fork for each request; those that are for the bare process go there."""
    gc.collect()
    gc.freeze()  # nobody walks through what is shared with this process, which would also copy all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in requests:
        request = json.loads(line)
        if request.get("bare") and bare is not None:
            bare.write(line)
            bare.flush()
        elif os.fork() == 0:
            _supervise(request)
            os._exit(0)


def _open_models(folder: Path) -> None:
    """One of each: what transformers makes when it first opens a model is then there for all that is forked."""
    from sentence_transformers import SentenceTransformer
    from tests import tiny_models

    for kind in ("bert", "qwen3"):
        SentenceTransformer(str(tiny_models.build(kind, folder / kind)), device="cpu")
        shutil.rmtree(folder / kind)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_MODULES_CACHE"] = folder
        import torch

        torch.set_num_threads(1)
        _open_models(Path(folder))
        assert "distilvec" not in sys.modules
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(writing)
            with os.fdopen(reading) as requests:
                _serve(requests)
            os._exit(0)
        os.close(reading)

        import distilvec.cli.commands
        import distilvec.flow.run
        import distilvec.training.fit
        import distilvec.training.loop  # noqa: F401

        with os.fdopen(writing, "w") as bare:
            _serve(sys.stdin, bare)


if __name__ == "__main__":
    main()
