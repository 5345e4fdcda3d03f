"""The identity of a task."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from distilvec.judging import load_task
from distilvec.judging.identity import content_digest


def test_changed_pictures_change_the_task_identity(tmp_path: Path) -> None:
    found = []
    rows = [{"image": f"{number}.png", "label": "ab"[number % 2]} for number in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for shade in (0, 90):
        for number in range(12):
            Image.new("RGB", (4, 4), (shade + number, 0, 0)).save(tmp_path / f"{number}.png")
        spec = {"name": "pictures", "kind": "perceptron", "probe": "images", "train": "rows.jsonl", "seeds": 1}
        found.append(content_digest(load_task(spec, tmp_path)))
    assert found[0] != found[1]
