"""A corpus that is learnt part by part: each run begins with the student of the one before (docs/scale.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

import distilvec
from distilvec.flow.prepare import open_corpus
from distilvec.flow.run import train
from distilvec.recipe import Recipe
from distilvec.store import SignalStore

REST = {
    "method": {"name": "cosine"},
    "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
    "judging": {"speed": False},
}


def test_of_an_instalment_only_the_vectors_stay(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    place, file = tmp_path / "cache", tmp_path / "recipe.yaml"
    teachers = [{"name": "tiny", "model": str(tiny_bert)}]
    file.write_text(yaml.safe_dump(REST | {"teachers": teachers, "cache": str(place)}))
    student, kept = "{shrink: {of: tiny, layers: 1}}", 0
    for number in range(2):
        texts = sentences[number * 60 : number * 60 + 80]  # 20 of them stand in both
        (tmp_path / f"part-{number}.txt").write_text("\n".join(texts))
        changes = [f"corpus.path={tmp_path}/part-{number}.txt", f"student={student}"]
        recipe = Recipe.load(file, changes, output=tmp_path / f"out-{number}")
        student = f"{{model: {train(recipe)}}}"
        assert set(open_corpus(recipe).texts()) == {text.strip() for text in texts}
        store = SignalStore.open(place / "stores" / "tiny")
        kept += 80 if number == 0 else 60  # what stands in both is taught once
        assert len(store) == kept
        assert len(list((place / "tokens").glob("ids-*"))) == 1
        shutil.rmtree(place / "tokens")
    assert distilvec.load(tmp_path / "out-1" / "student").encode("a text").shape == (32,)
