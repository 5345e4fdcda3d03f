"""Requests a second and latency of `distilvec serve`, beside what people would put in its place.

    python benchmarks/serving.py [--infinity PATH] [--rounds 3] [--seconds 4]

The model is the untrained quarter of all-MiniLM-L6-v2 (speed depends on shapes, not on what weights say): in torch in
float32 and bfloat16, as ONNX in int8, and a table of word vectors. Peers: sentence-transformers behind the same path,
in the way most people write it (Starlette, `encode` in a thread for each request), and infinity, where PATH names its
program (an environment of its own: it needs an older transformers). Each server is a process of its own with the
machine's default of threads; 1, 8 and 64 clients in another process send single texts over connections that stay open.
Servers take turns in every round, in alternating order; a ratio is that of requests a second in one round to the best
peer of the same form, and the median stands with the least and the largest. Before it is measured, every server has to
give the same vector.
Results: benchmarks/results/serving.json and serving.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from encode import RESULTS
from machine import processor
from static import texts

from distilvec.export import export_onnx
from distilvec.flow.demo import demo_teacher
from distilvec.students import ship, shrink, static

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from experiments.quarter.shapes import SIZES

CLIENTS = (1, 8, 64)
#: Texts that a client sends in turn.
TEXTS = 512
OURS, PLAIN, INFINITY = "distilvec serve", "sentence-transformers in Starlette", "infinity"
Server = tuple[str, str]


def plain(folder: str, port: int) -> None:
    """In a process of its own: sentence-transformers behind the same path."""
    import uvicorn
    from sentence_transformers import SentenceTransformer
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    model = SentenceTransformer(folder, device="cpu")

    async def embeddings(request: Request) -> JSONResponse:
        asked = (await request.json())["input"]
        vectors = await run_in_threadpool(model.encode, asked, show_progress_bar=False)
        return JSONResponse({"data": [{"embedding": row.tolist()} for row in vectors]})

    route = Route("/v1/embeddings", embeddings, methods=["POST"])
    uvicorn.run(Starlette(routes=[route]), port=port, log_level="warning", access_log=False)


def commands(folder: Path, infinity: str | None) -> dict[Server, list[str]]:
    """(form, server) -> the command that starts it, less the port."""
    ours = [sys.executable, "-m", "distilvec", "serve"]
    beside = [sys.executable, __file__, "--plain"]
    found = {
        ("torch", OURS): [*ours, str(folder / "quarter")],
        ("torch", PLAIN): [*beside, str(folder / "quarter")],
        ("torch, bfloat16", OURS): [*ours, str(folder / "quarter"), "--precision", "bfloat16"],
        ("ONNX int8", OURS): [*ours, str(folder / "onnx"), "--precision", "int8"],
        ("table", OURS): [*ours, str(folder / "table")],
        ("table", PLAIN): [*beside, str(folder / "table")],
    }
    if infinity:
        words = [
            infinity,
            "v2",
            "--engine",
            "torch",
            "--device",
            "cpu",
            "--no-bettertransformer",
            "--url-prefix",
            "/v1",
        ]
        found["torch", INFINITY] = [*words, "--served-model-name", "m", "--model-id", str(folder / "quarter")]
    return found


def make(folder: Path) -> None:
    """The three forms of a student."""
    encoded, chosen_by = texts(TEXTS)
    quarter, _ = shrink(demo_teacher(), positions=256, texts=chosen_by, **SIZES["quarter"])
    ship(quarter.to("cpu").float().eval(), folder / "quarter")
    export_onnx(folder / "quarter", folder / "onnx", texts=encoded[:8])
    table = static(demo_teacher(), dimensions=256, vocabulary=21_500, texts=chosen_by)
    ship(table.to("cpu").float().eval(), folder / "table")


@contextmanager
def running(command: list[str]) -> Iterator[int]:
    """Start a server, and give its port once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "DO_NOT_TRACK": "1"}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen([*command, "--port", str(port)], stdout=said, stderr=said, env=environment) as process,
    ):
        try:
            end = time.monotonic() + 120
            while True:
                try:
                    vector(port, "a text")
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        said.seek(0)
                        raise SystemExit(f"{command} did not start: {said.read().decode()[-2000:]}") from None
                    time.sleep(0.2)
            yield port
        finally:
            process.kill()


def vector(port: int, text: str) -> np.ndarray:
    asked = json.dumps({"input": [text]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/embeddings", asked, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return np.asarray(json.loads(answer.read())["data"][0]["embedding"], np.float32)


async def client(port: int, bodies: list[bytes], until: float, took: list[float]) -> None:
    """Send one request after another over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while time.perf_counter() < until:
        begun = time.perf_counter()
        writer.write(bodies[number % len(bodies)])
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise SystemExit(f"refused: {head!r}")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(length)
        took.append(time.perf_counter() - begun)
        number += 1
    writer.close()


def load(port: int, clients: int, seconds: float) -> None:
    """In a process of its own: print what this many clients saw."""
    encoded, _ = texts(TEXTS)
    contents = [json.dumps({"input": [text]}).encode() for text in encoded]
    head = "POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: "
    bodies = [f"{head}{len(each)}\r\n\r\n".encode() + each for each in contents]

    async def all_of_them(seconds: float) -> list[float]:
        took: list[float] = []
        until = time.perf_counter() + seconds
        parts = [bodies[number * 7 % TEXTS :] + bodies[: number * 7 % TEXTS] for number in range(clients)]
        await asyncio.gather(*(client(port, part, until, took) for part in parts))
        return took

    asyncio.run(all_of_them(min(1.0, seconds)))
    begun = time.perf_counter()
    took = asyncio.run(all_of_them(seconds))
    wall = time.perf_counter() - begun
    p50, p99 = np.percentile(np.asarray(took) * 1e3, [50, 99])
    print(json.dumps({"requests_per_second": len(took) / wall, "p50_ms": p50, "p99_ms": p99}))


def measured(port: int, clients: int, seconds: float) -> dict[str, float]:
    words = [sys.executable, __file__, "--load", str(port), str(clients), str(seconds)]
    row: dict[str, float] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return row


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows with form, server, clients and rounds; every server's vector is checked first."""
    servers = commands(folder, options.infinity)
    rows = {(*server, clients): [] for server in servers for clients in CLIENTS}
    vectors: dict[Server, np.ndarray] = {}
    for number in range(options.rounds):
        order = list(servers) if number % 2 == 0 else list(servers)[::-1]
        for server in order:
            with running(servers[server]) as port:
                found = vector(port, "How do I reset my password?")
                vectors[server] = found / np.linalg.norm(found)
                for clients in CLIENTS:
                    rows[*server, clients].append(measured(port, clients, options.seconds))
    for (form, server), found in vectors.items():
        alike = float(found @ vectors["table" if form == "table" else "torch", PLAIN])
        if alike < {"ONNX int8": 0.95, "torch, bfloat16": 0.999}.get(form, 0.99999):
            raise SystemExit(f"{server} gives another vector ({form}, cosine {alike:.4f})")
    return [{"form": f, "server": s, "clients": c, "rounds": found} for (f, s, c), found in rows.items()]


def page(result: dict[str, Any]) -> str:
    lines = [
        "# Serving single texts",
        "",
        f"`{result['command']}` on {result['machine']}, torch {result['torch']}. Medians of {result['rounds']} rounds "
        f"of {result['seconds']:g} s. The clients take part of the same two cores. Times the best peer: requests a "
        "second of the same form and round; bfloat16 and int8 beside the peers' torch, since none of them opens this "
        "student so without code of one's own.",
        "",
        "| form | server | clients | requests/s | p50 | p99 | times the best peer |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in result["rows"]:
        beside = "table" if row["form"] == "table" else "torch"
        peers = [
            each["rounds"]
            for each in result["rows"]
            if (each["form"], each["clients"]) == (beside, row["clients"]) and each["server"] != OURS
        ]
        cells = [row["form"], row["server"], str(row["clients"])]
        middle = {key: statistics.median(each[key] for each in row["rounds"]) for key in row["rounds"][0]}
        cells += [f"{middle['requests_per_second']:,.0f}", f"{middle['p50_ms']:.1f} ms", f"{middle['p99_ms']:.1f} ms"]
        best = [max(each["requests_per_second"] for each in same) for same in zip(*peers, strict=True)]
        ratios = sorted(own["requests_per_second"] / top for own, top in zip(row["rounds"], best, strict=True))
        told = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"| {' | '.join([*cells, told if row['server'] == OURS else ''])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infinity", help="the program infinity_emb")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        plain(options.plain, options.port)
        return
    if options.load:
        port, clients, seconds = options.load
        load(int(port), int(clients), float(seconds))
        return
    with tempfile.TemporaryDirectory(prefix="distilvec-serving-") as place:
        make(Path(place))
        rows = measure(Path(place), options)
    result = {
        "command": "python benchmarks/serving.py" + (" --infinity PATH" if options.infinity else ""),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rows": rows,
    }
    (RESULTS / "serving.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "serving.md").write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
