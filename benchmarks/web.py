"""A student in the browser: the same vectors in Node and in headless Chromium, and the search page measured.

    OMP_NUM_THREADS=2 python benchmarks/web.py [--student FOLDER] [--work FOLDER] [--texts 10000]

The demo's student (or another one) is exported with a page that searches sentences of the shared pool (DISTILVEC_DATA;
documentation of the standard library without it). A hundred texts (benchmarks/browser/texts.json: emoji, right-to-left
and many other scripts, odd spaces, texts that are cut) are encoded by plain sentence-transformers, by Node and by
Chromium, in float and int8; and in Node by tiny models of every kind of tokenizer and pooling, with a Dense, with a
prompt, and by a static table. The page is loaded six times from a local server with an empty cache; a hundred held-out
sentences are searched for, and what it shows first is compared with an exact search by float32 vectors.
Needs node, npm and Chromium; fetches transformers.js and playwright-core from the npm registry into the work folder.
Results: benchmarks/results/web.json and web.md; pictures of the page in the work folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from encode import RESULTS, documentation
from sentence_transformers import SentenceTransformer
from static import texts as sentences

from distilvec.export import export_web
from distilvec.export.convert import row_cosines
from distilvec.export.library import PACKAGES
from distilvec.flow.demo import demo_recipe
from distilvec.flow.run import run
from distilvec.modules.pipeline import limit_length
from distilvec.report.surroundings import folder_bytes
from distilvec.students import load_student, ship, static

HERE = Path(__file__).parent
PLAYWRIGHT = "playwright-core@1.65.1"
QUERIES = 100
TEN = 10


def others(work: Path) -> dict[str, Path]:
    """Tiny models with random weights: name -> folder."""
    sys.path.insert(0, str(HERE.parent))
    from sentence_transformers.base.modules import Dense, Normalize
    from tests import tiny_models

    found = {}
    for kind in ("bert", "xlmr", "modernbert", "qwen3", "gpt2"):
        found[kind] = work / "tiny" / kind
        if not found[kind].is_dir():
            tiny_models.build(kind, found[kind])
    for name, add in (("bert with Dense", True), ("static", False)):
        found[name] = work / "tiny" / name.replace(" ", "-")
        model: Any = load_student(found["bert"], device="cpu")
        if add:
            ship(SentenceTransformer(modules=[*model, Dense(32, 20), Normalize()], device="cpu"), found[name])
        else:
            model = static(model, dimensions=16)
            limit_length(model, 100)
            ship(model, found[name])
    return found


def in_node(work: Path, folder: Path, texts: list[str], prompt: str | None = None) -> dict[str, np.ndarray]:
    """Vectors of an export by precision."""
    asked, answer = work / "texts.json", work / "vectors.json"
    asked.write_text(json.dumps(texts))
    shutil.copyfile(HERE / "browser" / "vectors.mjs", work / "vectors.mjs")
    command = ["node", "vectors.mjs", str(folder), str(asked), str(answer), *([prompt] if prompt else [])]
    subprocess.run(command, cwd=work, check=True)
    return {name: np.array(rows) for name, rows in json.loads(answer.read_text()).items()}


def in_chromium(work: Path, folder: Path, texts: list[str], queries: list[str]) -> dict[str, Any]:
    """What `browser/page.mjs` found."""
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked, answer = work / "asked.json", work / "page.json"
        asked.write_text(
            json.dumps({"texts": texts, "queries": queries, "file": (folder / "page" / "index.html").as_uri()})
        )
        shutil.copyfile(HERE / "browser" / "page.mjs", work / "page.mjs")
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        address = f"http://127.0.0.1:{server.server_port}"
        command = ["node", "page.mjs", address, str(chromium), str(asked), str(answer), str(work)]
        subprocess.run(command, cwd=work, check=True)
        server.shutdown()
    found: dict[str, Any] = json.loads(answer.read_text())
    found["elsewhere"] = sorted({url for url in found.pop("asked") if not url.startswith((address, "data:", "blob:"))})
    return found


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def agreement(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    cosines = row_cosines(found, wanted)
    return {"least": float(cosines.min()), "mean": float(cosines.mean())}


def shared_first(
    answers: list[dict[str, Any]], student: SentenceTransformer, queries: list[str], texts: list[str]
) -> float:
    """Of the ten that an exact search by float32 vectors finds, the share that the page shows first."""
    documents = student.encode_document(texts, normalize_embeddings=True)
    asked = student.encode_query(queries, normalize_embeddings=True)
    best = np.argsort(-(asked @ documents.T), axis=1)[:, :TEN]
    hits = [
        len({texts[row] for row in rows} & set(answer["rows"][:TEN]))
        for rows, answer in zip(best, answers, strict=True)
    ]
    return sum(hits) / (TEN * len(hits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", type=Path, help="default: the demo's, which is made first")
    parser.add_argument("--work", type=Path, default=Path("out-web"))
    parser.add_argument("--texts", type=int, default=10_000)
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(exist_ok=True)
    (work / "package.json").write_text('{"private": true, "type": "module"}\n')
    wanted = [f"{PACKAGES[0].name}@{PACKAGES[0].version}", PLAYWRIGHT]
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *wanted]
    subprocess.run(install, cwd=work, check=True)
    folder = options.student
    if folder is None:
        folder = work / "demo" / "student"
        if not (work / "demo" / "report.json").is_file():
            run(demo_recipe(work / "demo"))
    texts = json.loads((HERE / "browser" / "texts.json").read_text(encoding="utf-8"))
    searched, others_of = sentences(options.texts)
    searched = [" ".join(text.split()) for text in searched] or documentation(options.texts)
    queries = [text for text in others_of if text not in set(searched)][:QUERIES]
    export_web(folder, work / "export", search=searched, title="Search in sentences")
    student = SentenceTransformer(str(folder), device="cpu")
    expected = student.encode(texts)
    node, page = in_node(work, work / "export", texts), in_chromium(work, work / "export", texts, queries)
    vectors = {name: np.array(rows) for name, rows in page.pop("vectors").items()}
    answers = page.pop("answers")
    kinds = {}
    for name, place in others(work).items():
        model = SentenceTransformer(str(place), device="cpu")
        prompt = "query" if model.prompts.get("query") else None
        export_web(place, work / "exports" / place.name)
        found = in_node(work, work / "exports" / place.name, texts, prompt)
        reference = model.encode(texts, prompt_name=prompt)
        kinds[name] = {precision: agreement(rows, reference) for precision, rows in found.items()}
        print(f"{name:<16} {kinds[name]}")
    result = {
        "command": "python benchmarks/web.py",
        "student": str(options.student.name) if options.student else "the demo's",
        "texts": len(texts),
        "searched": len(searched),
        "node": {name: agreement(rows, expected) for name, rows in node.items()},
        "chromium": {name: agreement(rows, expected) for name, rows in vectors.items()},
        "kinds": kinds,
        "page": {
            "megabytes": folder_bytes(work / "export" / "page") / 1e6,
            "loading_ms": [each["loading"] for each in page["loads"]],
            "first_answer_ms": [each["first"] for each in page["loads"]],
            "answer_ms_median": statistics.median(answer["took"] for answer in answers),
            "found_of_ten": shared_first(answers, student, queries, searched),
            "second_by_keyboard": page["focused"] == answers[-1]["rows"][1],
            "widths": page["widths"],
            "asked_elsewhere": page["elsewhere"],
            "faults": page["faults"],
            "from_file": page["from_file"]["seen"] and "http.server" in page["from_file"]["words"],
        },
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "web.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "web.md").write_text(markdown(result))
    print(markdown(result))


def markdown(result: dict[str, Any]) -> str:
    page = result["page"]
    rows = [
        f"| {name}, {place} | {each['fp32']['least']:.6f} | {each['q8']['least']:.4f} | {each['q8']['mean']:.4f} |"
        for name, place, each in (
            (result["student"], "Node", result["node"]),
            (result["student"], "Chromium", result["chromium"]),
            *((f"tiny {name}", "Node", each) for name, each in result["kinds"].items()),
        )
    ]
    loads, first = page["loading_ms"], page["first_answer_ms"]
    return "\n".join(
        [
            "# A student in the browser",
            "",
            f"`{result['command']}`; {result['texts']} texts in many scripts. Cosine to plain sentence-transformers in "
            "float32; tiny models have random weights, which int8 changes more than trained ones.",
            "",
            "| model, where | float, least | int8, least | int8, mean |",
            "|---|---|---|---|",
            *rows,
            "",
            f"The page with {result['searched']:,} texts:",
            "",
            "| | |",
            "|---|---|",
            f"| whole folder | {page['megabytes']:.1f} MB |",
            f"| loading, from a local server, empty cache | {min(loads) / 1e3:.1f} to {max(loads) / 1e3:.1f} s |",
            f"| first answer after loading | {min(first) / 1e3:.2f} to {max(first) / 1e3:.2f} s |",
            f"| median answer | {page['answer_ms_median']:.0f} ms |",
            f"| of the ten that an exact float32 search finds, shown first | {100 * page['found_of_ten']:.1f} % |",
            f"| width of the page on a phone of 375 pixels | {page['widths']['phone'][0]} |",
            f"| second result reached with two arrow keys | {'yes' if page['second_by_keyboard'] else 'no'} |",
            f"| other machines asked | {len(page['asked_elsewhere'])} |",
            f"| opened from a file, it says what to do | {'yes' if page['from_file'] else 'no'} |",
            "",
        ]
    )


if __name__ == "__main__":
    main()
