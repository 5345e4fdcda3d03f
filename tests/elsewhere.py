"""A student with code of its own, where distilvec cannot be imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.training.starting import Starter

_READER = """
import json, sys
import numpy, torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(1)
folder, again, out, items = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
model = SentenceTransformer(folder, device="cpu", trust_remote_code=True)
model.save_pretrained(again, create_model_card=False)
second = SentenceTransformer(again, device="cpu", trust_remote_code=True)
numpy.savez(out, first=model.encode(items), second=second.encode(items))
"""


def opened_saved_and_opened(start: Starter, folder: Path, items: Sequence[str], place: Path) -> Any:
    """The items' vectors in a process that has sentence-transformers alone.

    Args:
        folder: of the model.
        items: texts, SMILES or pictures as strings.
        place: to write to.

    Returns:
        Arrays "first", of the model, and "second", of what that model saved in turn.
    """
    out = place / "out.npz"
    start.elsewhere(_READER, folder, place / "again", out, json.dumps(items), place=place)
    return np.load(out)
