from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.shared import SMALL

from distilvec.errors import DataError, DistilvecError
from distilvec.judging import judge, load_task, talas_tasks
from distilvec.judging.talas_sets import TALAS_SETS

from .embedders import graded_pairs, topic_texts, words


def _write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    content = "\n".join(json.dumps(row) for row in rows)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(content.encode()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nine sets with a few rows each, in the files' own columns."""
    place = tmp_path_factory.mktemp("sets")
    for number, (name, facts) in enumerate(TALAS_SETS.items()):
        if facts["kind"] == "classification":
            for split, count in (("train", 60), ("test", 30), ("validation", 20)):
                columns = zip(*topic_texts(count, number + len(split)), strict=True)
                if (name, split) != ("banking77", "validation"):
                    _write(place, f"{name}.{split}", [{"text": t, "label": x} for t, x in columns])
            continue
        yes, no = ("entails", "neutral") if name == "scitail" else (1, 0)
        rows = [
            {"text1": a, "text2": b, "score": s, "label": yes if s > 2 else no}
            for a, b, s in zip(*graded_pairs(40, number), strict=True)
        ]
        _write(place, f"{name}.test", rows)
        if name == "stsb":
            _write(place, "stsb.validation", rows[:25])
    return place


def test_the_nine_sets(folder: Path) -> None:
    tasks = talas_tasks(folder)
    assert [(task.name, task.kind, task.domain) for task in tasks] == [
        ("emotion", "classification", "in"),
        ("wic", "pairs", "in"),
        ("stsb", "similarity", "in"),
        ("banking77", "classification", "out"),
        ("tweeteval_sentiment", "classification", "out"),
        ("mrpc", "pairs", "out"),
        ("scitail", "pairs", "out"),
        ("sick", "similarity", "out"),
        ("sts12", "similarity", "out"),
    ]
    found = judge({"words": words}, tasks)
    assert all(score.value > 0.5 for score in found.scores["words"].values())
    assert set(found.averages("words")) == {"in", "out", "all"}


def test_options(folder: Path) -> None:
    capped = talas_tasks(folder, max_train=20, protocol="tuned", names=["banking77"])[0].score(words)
    assert (capped.details["train_rows"], capped.details["protocol"]) == (20, "tuned")
    seen = graded_pairs(40, 2)[0][:3]
    assert len(talas_tasks(folder, exclude=seen, names=["stsb"])[0].test_items()) == 37
    validation = talas_tasks(folder, split="validation")
    assert [task.name for task in validation] == ["emotion", "stsb", "tweeteval_sentiment"]
    assert len(validation[1].test_items()) == 25


def test_missing_and_unknown(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: ") + r".*wic\.test\.jsonl\.gz"):
        talas_tasks(tmp_path, names=["wic"])
    with pytest.raises(DistilvecError, match='"banking7" .*"banking77"'):
        talas_tasks(folder, names=["banking7"])


def test_short_names_are_read_from_the_data_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(load_task("stsb", folder).test_items()) == 40
    monkeypatch.setenv("DISTILVEC_DATA", str(folder))
    assert load_task("stsb").name == "stsb"
    monkeypatch.delenv("DISTILVEC_DATA")
    with pytest.raises(DistilvecError, match='"stsb" .*DISTILVEC_DATA'):
        load_task("stsb")


def test_real_rows_of_the_sets(real_teacher_folder: Path) -> None:
    """The nine sets as they are published, 60 rows of each; STS-B is what sentence-transformers makes of it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    tasks = talas_tasks(SMALL / "data")
    assert [task.name for task in tasks] == list(TALAS_SETS)
    assert {len(task.test_items()) for task in tasks} == {60}
    model = SentenceTransformer(str(real_teacher_folder), device="cpu")
    packed = (SMALL / "data" / "stsb.test.jsonl.gz").read_bytes()
    rows = [json.loads(line) for line in gzip.decompress(packed).decode().splitlines()]
    columns = ([row[key] for row in rows] for key in ("text1", "text2", "score"))
    theirs = EmbeddingSimilarityEvaluator(*columns, main_similarity="cosine")(model)
    stsb = next(task for task in tasks if task.name == "stsb")
    ours = judge({"teacher": model}, [stsb]).scores["teacher"]["stsb"].value
    assert ours == pytest.approx(theirs["spearman_cosine"], abs=1e-6)
    assert ours > 0.6
