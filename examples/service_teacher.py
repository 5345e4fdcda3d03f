"""Distil an embedder that can only be asked over HTTP.

    python examples/service_teacher.py --student FOLDER_OR_ID --url URL --model NAME --key-env VARIABLE
    python examples/service_teacher.py --student FOLDER_OR_ID --serve FOLDER_OR_ID

The first asks a service that answers as OpenAI's /embeddings does; the second serves a model of yours on this machine,
so that the example needs no key. It first prints what it will ask. Every answer is kept as it comes: if you stop the
script and start it again, it asks only for what is missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from own_teacher import some_texts

import distilvec
from distilvec.choosing.dry_run import plan


@contextmanager
def served(model: str) -> Iterator[dict[str, Any]]:
    """The section `api` of a model that is served while the block runs."""
    command = [sys.executable, "-m", "distilvec", "serve", model, "--name", "served", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "answers at " in line:
                yield {"url": line.split("answers at ")[1].split("/embeddings")[0], "model": "served"}
                return
        raise SystemExit(f"{model} cannot be served.")
    finally:
        process.terminate()
        process.wait()


def distil(api: dict[str, Any], student: str, output: Path) -> None:
    teacher = {"name": "service", "api": api, "batch_size": 64, "storage": "float32"}
    sections: dict[str, Any] = {
        "corpus": {"path": str(texts_file(output))},
        "teachers": [teacher],
        "student": {"model": student},
        "training": {"epochs": 2},  # the default reads so few texts twenty times
        "output": str(output),
    }
    print(plan(distilvec.Recipe.build(sections), teaching_only=True).text())
    made = distilvec.run(distilvec.Recipe.build(sections))
    print(made.student.encode(["the pilot paints the old clock"]).shape, "report:", made.folder / "report.html")


def texts_file(output: Path) -> Path:
    """The texts, one a line, beside the output."""
    file = output.with_name(f"{output.name}-texts.txt")
    file.write_text("\n".join(some_texts()) + "\n", encoding="utf-8")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", required=True, help="folder or hub id of a pretrained model")
    parser.add_argument("--url", help="of the service")
    parser.add_argument("--model", help="the service's name of the embedder")
    parser.add_argument("--key-env", help="environment variable with the key")
    parser.add_argument("--serve", help="instead: folder or hub id of a model to serve here")
    parser.add_argument("--output", type=Path, default=Path("out-service"))
    options = parser.parse_args()
    if options.serve:
        with served(options.serve) as api:
            distil(api, options.student, options.output)
    elif options.url and options.model:
        distil(
            {"url": options.url, "model": options.model, "key_env": options.key_env}, options.student, options.output
        )
    else:
        parser.error("give --url and --model, or --serve")


if __name__ == "__main__":
    main()
