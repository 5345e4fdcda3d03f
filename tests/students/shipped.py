"""Shipped folders opened by plain sentence-transformers in a process without distilvec."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tests.training.starting import Starter

TEXTS = ["hello", "The train to Zürich leaves from platform 7 at 14:32.", "東京は今日も雨です。", ""]


# Opens every folder with plain sentence-transformers; distilvec cannot be imported, and code of others may not run.
READER = """
import json, sys
try:
    import distilvec
except ImportError:
    pass
else:
    raise SystemExit("distilvec can be imported here")
import numpy, torch
from sentence_transformers import SentenceTransformer
out, texts, folders = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(1)
found = {}
for number, folder in enumerate(folders):
    model = SentenceTransformer(folder, device="cpu", trust_remote_code=False)
    routed = type(model[0]).__name__ == "Router"
    found[f"{number}-query"] = model.encode_query(texts) if routed else model.encode(texts)
    found[f"{number}-document"] = model.encode_document(texts) if routed else model.encode(texts)
    found[f"{number}-parameters"] = sum(p.numel() for p in model.parameters())
numpy.savez(out, **found)
"""


def read_elsewhere(start: Starter, folders: list[Path], tmp_path: Path) -> dict[str, np.ndarray]:
    out = tmp_path / "read.npz"
    told = start.elsewhere(READER, out, json.dumps(TEXTS), *folders, place=tmp_path)
    assert "LOAD REPORT" not in told  # transformers prints one when it has to make weights up
    return dict(np.load(out))
