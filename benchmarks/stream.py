"""What reading a data set of the hub fetches: with a limit, of one column among several, and after a SIGKILL.

    python benchmarks/stream.py [--rows 12000] [--other 5000]

A server on this machine answers as the hub does, for three parquet files with a column of texts and one of --other
random bytes a row, and counts what it gives. `load_dataset` fetches whole files; distilvec's `hub:` streams. The killed
reading is ended by SIGKILL once three quarters of the rows are on disk, and started again; every row has to be in the
corpus once. Of the file in which it stopped it fetches the beginning again.
Results: benchmarks/results/stream.json and stream.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(ROOT))
from tests.corpus.hub_server import HubServer, parquet, serving  # noqa: E402

WHOLE = "import datasets, sys; print(len(datasets.load_dataset('me/texts', split='train')))"
STREAM = """
import sys
from distilvec.corpus import hub, read_corpus
hub.ROWS = 1000  # parts small enough that a kill finds some
limit = int(sys.argv[2]) or None
corpus = read_corpus('hub:me/texts', sys.argv[1], holdout=0.0, limit=limit)
wanted = [f'text number {number}' for number in range(len(corpus))]
assert corpus.texts() == wanted, 'rows are missing, doubled or in another order'
print(len(corpus))
"""


def started(server: HubServer, place: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **server.environment, "HF_HOME": str(place / "home")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, text=True, stdout=subprocess.PIPE
    )


def measured(server: HubServer, place: Path, code: str, *arguments: str) -> dict[str, Any]:
    """Rows, and megabytes that the server gave."""
    server.sent = 0
    out, _ = (process := started(server, place, code, *arguments)).communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"{code} {arguments} failed")
    return {"rows": int(out), "megabytes": server.sent / 1e6}


def killed(server: HubServer, place: Path, wanted: int) -> dict[str, Any]:
    """A reading that is killed once so many parts are written, and the one that goes on."""
    server.sent = 0
    folder = place / "killed"
    process = started(server, place, STREAM, str(folder), "0")
    while len(list(folder.glob(".streamed-*/rows-*.json"))) < wanted:
        if process.poll() is not None:
            raise SystemExit("it was finished before it could be killed: give more --rows")
        time.sleep(0.005)
    process.kill()
    process.wait()
    parts = list(folder.glob(".streamed-*/rows-*.json"))
    kept, before = 1000 * len(parts), server.sent / 1e6
    again = measured(server, place, STREAM, str(folder), "0")
    return {"kept": kept, "before": before, **again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--other", type=int, default=5_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, serving(parquet(3, options.rows // 3, other=options.other)) as server:
        place = Path(name)
        result = {
            "command": f"python benchmarks/stream.py --rows {options.rows} --other {options.other}",
            "rows": options.rows,
            "megabytes": sum(map(len, server.files.values())) / 1e6,
            "load_dataset": measured(server, place, WHOLE),
            "all texts": measured(server, place, STREAM, str(place / "all"), "0"),
            "limit 1000": measured(server, place, STREAM, str(place / "limited"), "1000"),
            "killed": killed(server, place, options.rows * 3 // 4 // 1000),
        }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "stream.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "stream.md").write_text(markdown(result))
    print(markdown(result))


def markdown(result: dict[str, Any]) -> str:
    killed, limited = result["killed"], result["limit 1000"]
    return "\n".join(
        [
            "# Reading a data set of the hub",
            "",
            f"`{result['command']}`: {result['rows']:,} rows of a text and of other data in three parquet files, "
            f"together {result['megabytes']:.1f} MB, from a server on this machine.",
            "",
            "| what is read | rows | MB fetched |",
            "|---|---|---|",
            f"| `load_dataset`, the whole files | {result['load_dataset']['rows']:,} | "
            f"{result['load_dataset']['megabytes']:.1f} |",
            f"| `hub:`, all texts | {result['all texts']['rows']:,} | {result['all texts']['megabytes']:.1f} |",
            f"| `hub:` with `limit: 1000` | {limited['rows']:,} | {limited['megabytes']:.1f} |",
            f"| `hub:`, killed after {killed['kept']:,} rows were kept | | {killed['before']:.1f} |",
            f"| the same, started again | {killed['rows']:,} | {killed['megabytes']:.1f} |",
            "",
        ]
    )


if __name__ == "__main__":
    main()
