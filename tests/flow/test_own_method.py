"""Runs and comparisons with a method of one's own: by class and by path, resumed, and with its code changed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import distilvec
from distilvec.errors import DistilvecError, Interrupted
from distilvec.flow import bench
from distilvec.flow.bench import slug
from distilvec.flow.compare import compare
from distilvec.flow.prepare import Prepared
from distilvec.flow.run import train
from distilvec.flow.variants import variants_of
from distilvec.kinds.text import Text
from distilvec.methods.base import Method, Needs, StudentInfo, TeacherInfo, Wanted, WantedOfStudent
from distilvec.methods.cosine import Cosine
from distilvec.recipe import Recipe
from distilvec.training.checkpoint import read_state

TEXT = """
from distilvec.functional import cosine_distance
from distilvec.methods.projected import ProjectedMethod
from distilvec.training.checkpoint import read_state


class MyLoss(ProjectedMethod):
    name = "my_loss"

    def compare(self, projected, target):
        return cosine_distance(projected, target) * 1.0
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes text into `own_losses.py` of the working folder, which is imported anew then."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> None:
        Path("own_losses.py").write_text(text, encoding="utf-8")
        sys.modules.pop("own_losses", None)
        importlib.invalidate_caches()

    write(TEXT)
    yield write
    sys.modules.pop("own_losses", None)


def recipe(teacher: Path, texts: list[str], **sections: Any) -> Recipe:
    return Recipe.build(
        {
            "corpus": {"path": [{"text": text, "label": "ab"[len(text) > 45]} for text in texts], "label": "label"}
            | {"holdout": 0.4},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"shrink": {"of": "tiny", "layers": 1}},
            "method": {"name": "own_losses:MyLoss"},
            "training": {"max_steps": 4, "save_every": 2, "batch_size": 8, "use_cpu": True},
            "judging": {"speed": False},
            "output": "out",
            **sections,
        }
    )


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    return [text for text in sentences if len(text) < 90][:100]


def test_a_run_of_other_code_is_not_resumed(module: Callable[[str], None], tiny_bert: Path, texts: list[str]) -> None:
    train(recipe(tiny_bert, texts))
    train(recipe(tiny_bert, texts), resume=True)
    module(TEXT.replace("1.0", "2.50"))
    with pytest.raises(DistilvecError, match=r"^out: the code of the method has changed .*without --resume") as caught:
        train(recipe(tiny_bert, texts), resume=True)
    assert "\n" not in str(caught.value)
    marker = Path("out/.distilvec.json")
    said = marker.read_text()
    marker.write_text(json.dumps({**json.loads(said), "data": None}))
    with pytest.raises(DistilvecError, match=r"checkpoint-4: the code of the method has changed"):
        train(recipe(tiny_bert, texts), resume=True)
    marker.write_text(said)
    train(recipe(tiny_bert, texts))
    assert Path("out/before-1/student").is_dir() and Path("out/checkpoints-before").is_dir(), "a run of its own"
    train(recipe(tiny_bert, texts), resume=True)


def test_checkpoints_of_our_methods_are_as_they_always_were(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    train(recipe(tiny_bert, texts, method={"name": "cosine"}, output=str(tmp_path / "out")))
    for checkpoint in (tmp_path / "out").glob("checkpoints/checkpoint-*"):
        kept = {"fingerprint", "items", "train", "held_out", "content", "precision"}
        assert read_state(checkpoint).data.keys() == kept
    assert "method" not in json.loads((tmp_path / "out/.distilvec.json").read_text())["data"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders in which a comparison trains."""
    found: list[str] = []
    fit = bench.fit

    def watched(prepared: Prepared, *given: Any, **more: Any) -> Any:
        found.append(str(prepared.output))
        return fit(prepared, *given, **more)

    monkeypatch.setattr(bench, "fit", watched)
    return found


def test_finished_seeds_of_other_code_are_trained_again(
    module: Callable[[str], None], tiny_bert: Path, texts: list[str], trained: list[str]
) -> None:
    methods = ["cosine", "own_losses:MyLoss"]
    given = recipe(tiny_bert, texts, method={"name": "cosine"})
    first = compare(given, methods, seeds=1)
    assert list(first.compared.entries)[-2:] == ["cosine", "my_loss"]
    assert trained == ["out/runs/cosine/seed-0", "out/runs/my_loss/seed-0"]
    assert compare(given, methods, seeds=1).compared.to_dict() == first.compared.to_dict()
    weights = Path("out/runs/my_loss/seed-0/student/model.safetensors")
    before = weights.read_bytes()
    ours = json.loads(Path("out/runs/cosine/seed-0/scores.json").read_text())["identity"]
    assert len(trained) == 2 and len(ours) == 2, "results of our methods are known by what they always were"
    module(TEXT.replace("* 1.0", "* 0.0 - projected[..., 0]"))
    changed = compare(given, methods, seeds=1, reference="own_losses:MyLoss")
    assert trained[2:] == ["out/runs/my_loss/seed-0"] and changed.compared.reference == "my_loss"
    assert weights.read_bytes() != before


def test_an_interrupted_seed_of_other_code_starts_again(
    module: Callable[[str], None], tiny_bert: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = recipe(tiny_bert, texts)
    with monkeypatch.context() as patch:
        patch.setattr(Text, "ship", interrupted)
        with pytest.raises(Interrupted):
            compare(given, ["own_losses:MyLoss"], seeds=1)
    place = Path("out/runs/my_loss/seed-0")
    assert (place / "checkpoints/checkpoint-4").is_dir()
    module(TEXT.replace("1.0", "2.50"))
    compare(given, ["own_losses:MyLoss"], seeds=1)
    log = [json.loads(line) for line in (place / "run.jsonl").read_text().splitlines()]
    assert (place / "checkpoints-before").is_dir() and (place / "scores.json").is_file() and log


def interrupted(*_: Any) -> None:
    raise Interrupted("stopped", where="here")


def test_rows_have_readable_names(module: Callable[[str], None], tiny_bert: Path, texts: list[str]) -> None:
    module(TEXT + "\n\nclass Cosine(MyLoss):\n    name = 'cosine'\n\n\nclass Same(MyLoss):\n    pass\n")
    mine = importlib.import_module("distilvec.methods.own").find_method("own_losses:MyLoss")
    words: Sequence[Any] = [
        "own_losses:MyLoss:init=random",
        mine,
        {"name": mine, "init": "ridge"},
        "own_losses:Cosine:init=random,optimizer.lr=0.1",
        "own_losses:Same",
        "cosine",
    ]
    found = variants_of(recipe(tiny_bert, texts), words)
    labels = ["my_loss:init=random", "my_loss", "my_loss:init=ridge"]
    labels += ["own_losses:Cosine:init=random,optimizer.lr=0.1", "own_losses:Same", "cosine"]
    assert list(found) == labels
    assert found[labels[3]].method.name == "own_losses:Cosine" and found[labels[3]].optimizer.lr == 0.1
    assert found[labels[3]].method.first.options == {"init": "random"}
    assert slug(labels[3]) == "own_losses-Cosine-init=random-optimizer.lr=0.1"
    assert not slug("../x").startswith("."), "a folder in its place"


class Local(Cosine):
    """Terms: as cosine's."""

    name = "local"


def test_a_class_trains_from_python(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    training = {"max_steps": 2, "batch_size": 8, "use_cpu": True}
    done = distilvec.distill(
        str(tiny_bert),
        student=str(tiny_bert),
        corpus=texts,
        method=Local,
        output=tmp_path / "out",
        training=training,
        judging={"speed": False},
    )
    assert Recipe.load(tmp_path / "out/recipe.yaml").method.name == f"{__name__}:Local"
    assert done.record.title.startswith("local: "), "the class's own word"
    distilvec.train(
        str(tiny_bert),
        student=str(tiny_bert),
        corpus=texts,
        method={"name": Local, "init": "random"},
        output=tmp_path / "other",
        training=training,
    )
    assert '"term/local"' in (tmp_path / "other/run.jsonl").read_text()
    assert "init: random" in (tmp_path / "other/recipe.yaml").read_text()


class Asking(Method):
    """Whose needs a test sets."""

    name = "asking"
    asked = Needs()

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return self.asked


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Needs(teachers=(Wanted(tokens=(1,)),)), r"^asking: .*tokens-1.*inside = True on the class"),
        (Needs(teachers=(Wanted(attention=(1,)),)), r"attention-1.*inside = True"),
        (Needs(teachers=(Wanted(alignment=("strict",)),)), r"tokenids.*inside = True"),
        (Needs(teachers=(Wanted(logits=True),)), r"logits.*inside = True"),
        (Needs(WantedOfStudent(tokens=(0, 9))), r"states of layer 9, this student has 0 to 1"),
        (Needs(WantedOfStudent(attention=(0,))), r"maps of layer 0, this student has 1 to 1"),
        (None, r"^asking: needs returns a Needs, not a NoneType"),
    ],
)
def test_what_needs_asks_in_vain_is_refused_before_teaching(
    asked: Any, told: str, tmp_path: Path, tiny_bert: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Asking, "asked", asked)
    given = recipe(tiny_bert, texts, method={"name": Asking}, output=str(tmp_path / "out"))
    with pytest.raises(DistilvecError, match=told):
        train(given)
    assert not (tmp_path / "out/stores").exists() and not (tmp_path / "out/checkpoints").exists()


def test_a_student_without_layers_is_refused_before_it_is_made(
    tmp_path: Path, tiny_bert: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Asking, "asked", Needs(WantedOfStudent(layers=True)))
    static = {"static": {"of": "tiny", "dimensions": 16}}
    given = recipe(tiny_bert, texts, method={"name": Asking}, student=static, output=str(tmp_path / "out"))
    with pytest.raises(DistilvecError, match="a static student: asking looks at the layers"):
        train(given)
    assert not (tmp_path / "out/start").exists()
