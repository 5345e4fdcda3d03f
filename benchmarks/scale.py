"""What `distilvec plan --rows 1e9` prints on this machine: the example in docs/scale.md.

    OMP_NUM_THREADS=1 python benchmarks/scale.py

A recipe with all-MiniLM-L6-v2 and a student of two of its layers, two epochs, documentation of the standard library as
texts, eight H100 at 2.50 an hour. Nothing is trained beyond the few steps that the command measures. Result:
benchmarks/results/scale.json, with the command and its output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from encode import RESULTS, documentation

from distilvec.flow.demo import demo_teacher

RECIPE = """
corpus: {{path: texts.txt}}
teachers: [{{name: minilm, model: {model}}}]
student: {{shrink: {{of: minilm, layers: 2, vocabulary: 5000}}}}
method: {{name: talas}}
training: {{epochs: 2, batch_size: 32}}
output: out
"""
COMMAND = ["plan", "recipe.yaml", "--rows", "1e9", "--devices", "8xH100", "--price-per-hour", "2.50"]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = [" ".join(text.split()) for text in documentation(4000)]
        (Path(folder) / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        (Path(folder) / "recipe.yaml").write_text(RECIPE.format(model=demo_teacher()), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "distilvec", *COMMAND],
            cwd=folder,
            env={**os.environ, "COLUMNS": "160"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    result = {"command": " ".join(["distilvec", *COMMAND]), "texts": len(texts), "output": done.stdout.strip()}
    (RESULTS / "scale.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(result["output"])


if __name__ == "__main__":
    main()
