"""Token states as a lesson beside a method: by hand, from a store, on axes, where words are cut into other pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.batch import Batch
from distilvec.errors import DistilvecError
from distilvec.flow.teach import teacher_info
from distilvec.methods.base import Method, Sample
from distilvec.methods.contract import check_pieces
from distilvec.methods.table import build_method, build_methods
from distilvec.store import SignalStore, fill
from distilvec.store.axes import axes_of
from distilvec.students import load_student, shrink
from distilvec.students.output import StudentOutput
from distilvec.students.tap import StudentTap
from distilvec.teachers import load_teacher
from distilvec.teachers.signals import TeacherSignals
from distilvec.training import Collator, LiveSource, StoreSource, TokenizedCorpus
from distilvec.training.step import mean_of

PIECES = 260


class World:
    """A tiny teacher and a student cut out of it, with fewer pieces."""

    def __init__(self, folder: Path, model: Path, sentences: list[str], vocabulary: int | None) -> None:
        self.folder = folder
        self.corpus: Corpus = read_corpus(sentences[:40], folder / "corpus", holdout=0.0)
        self.teacher = load_teacher(model=model)
        source = load_student(model, device="cpu").eval()
        self.student, _ = shrink(source, layers=[1], vocabulary=vocabulary, texts=sentences)
        self.student.eval()
        self.tap = StudentTap(self.student)
        self.tokens = TokenizedCorpus.build(self.student, self.corpus.texts, 40, folder / "tokens")

    def term(self, source: Any, method: Method, rows: list[int], wanted: Any) -> tuple[Any, Any]:
        source.prepare(wanted, self.tokens)
        batch = Collator(self.corpus, self.tokens, [source])(rows)
        needs = method.needs(self.tap.info, [teacher_info(self.teacher, wanted.axes)])
        seen = self.tap(batch["features"], views=1, tokens=needs.student.tokens)
        told = TeacherSignals(**batch["teachers"][0])
        terms = method(seen, [told], Batch(batch["keys"], Batch.equal_items(batch["keys"])))
        assert list(terms) == ["cosine", "token_states"]
        return terms["token_states"], (seen, told)

    def method(self, weight: float = 0.5, axes: int | None = None, found: dict[int, Any] | None = None) -> Method:
        method = build_methods([{"name": "cosine", "map": False}, {"name": "token_states", "weight": weight}])
        info = replace(teacher_info(self.teacher, axes), axes=found or {})
        nothing = TeacherSignals(present=torch.zeros(0, dtype=torch.bool), sentence=torch.zeros(0, 32))
        method.build(self.tap.info, [info], Sample(StudentOutput(torch.zeros(1, 1, 32)), [nothing]))
        return method


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def same(kind: str, tiny_model_folders: dict[str, Path], tmp_path_factory: Any, sentences: list[str]) -> World:
    return World(tmp_path_factory.mktemp("same"), tiny_model_folders[kind], sentences, None)


def test_the_term_is_the_formula(same: World) -> None:
    """Left and right padding, texts of several lengths; all tokens count, special ones too."""
    method = same.method(weight=0.5)
    wanted = method.needs(same.tap.info, [teacher_info(same.teacher)]).of(0)
    rows = [3, 11, 0, 29]
    term, (seen, told) = same.term(LiveSource(same.teacher, same.corpus, same.folder), method, rows, wanted)
    ours, theirs = seen.tokens[1][0][seen.mask], told.tokens[same.teacher.card.layers][told.mask]
    assert len(ours) == int(same.tokens.lengths[rows].sum())
    expected = (ours - theirs).square().sum() / theirs.square().sum()
    assert float(mean_of(term)) == pytest.approx(float(expected), rel=1e-5)
    assert term.weight == 0.5
    one = [row for row in range(4) if row != 2]
    absent = replace(told, present=torch.tensor([True, True, False, True]))
    left = method(seen, [absent], Batch(torch.zeros(4, 16), torch.zeros(4, 4)))["token_states"]
    sums = [(seen.tokens[1][0][row] - told.tokens[same.teacher.card.layers][row]).square() for row in one]
    parts = [
        (part[seen.mask[row]].sum(), told.tokens[same.teacher.card.layers][row][told.mask[row]].square().sum())
        for row, part in zip(one, sums, strict=True)
    ]
    assert float(mean_of(left)) == pytest.approx(float(sum(p[0] for p in parts) / sum(p[1] for p in parts)), rel=1e-5)


def test_a_store_says_what_its_teacher_says(same: World, tmp_path: Path) -> None:
    method, rows = same.method(), [7, 8, 30]
    wanted = method.needs(same.tap.info, [teacher_info(same.teacher)]).of(0)
    store = SignalStore.create(tmp_path / "store", same.teacher.card, 32, "float32")
    fill(store, same.teacher, same.corpus.teacher_texts(), same.corpus.teacher_keys, wanted)
    live, _ = same.term(LiveSource(same.teacher, same.corpus, tmp_path), method, rows, wanted)
    stored, _ = same.term(StoreSource(store, same.corpus), method, rows, wanted)
    assert float(mean_of(stored)) == pytest.approx(float(mean_of(live)), rel=1e-3)
    axes = replace(wanted, axes=12)
    narrow = SignalStore.create(tmp_path / "narrow", same.teacher.card, 32, "float32")
    fill(narrow, same.teacher, same.corpus.teacher_texts(), same.corpus.teacher_keys, axes)
    matrix = torch.from_numpy(axes_of(narrow.path)[same.teacher.card.layers].matrix)
    method = same.method(axes=12, found={same.teacher.card.layers: matrix})
    reduced, (seen, told) = same.term(StoreSource(narrow, same.corpus), method, rows, axes)
    ours, theirs = seen.tokens[1][0][seen.mask] @ matrix, told.tokens[same.teacher.card.layers][told.mask]
    expected = (ours - theirs).square().sum() / theirs.square().sum()
    assert float(mean_of(reduced)) == pytest.approx(float(expected), rel=1e-5)


def test_tokens_that_are_other_pieces_do_not_count(
    tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]
) -> None:
    world = World(tmp_path, tiny_model_folders["bert"], sentences, PIECES)
    method = world.method()
    wanted = method.needs(world.tap.info, [teacher_info(world.teacher)]).of(0)
    rows = list(range(20))
    _, (seen, told) = world.term(LiveSource(world.teacher, world.corpus, tmp_path), method, rows, wanted)
    assert not torch.equal(seen.mask.sum(1), told.mask.sum(1)), "no word is cut otherwise, so nothing is tested"
    pairs = told.alignments["strict"]
    ids = world.tokens.features(rows)["input_ids"]
    pieces = world.student.tokenizer.convert_ids_to_tokens
    names = world.teacher.vocabulary
    same, pieces_of = 0, world.teacher.contents(world.corpus.teacher_texts(rows))
    untouched = torch.ones(seen.mask.shape, dtype=torch.bool)
    for row in range(len(rows)):
        strings = dict(zip(pieces_of[row][1].tolist(), pieces_of[row][0].tolist(), strict=True))
        for ours, theirs in pairs[row].tolist():
            if ours >= 0:
                assert pieces([int(ids[row, ours])])[0].lstrip("#") == names[strings[theirs]].lstrip("#")
                untouched[row, ours], same = False, same + 1
    assert 0 < same < int(seen.content.sum())
    states = seen.tokens[1].detach().clone().requires_grad_()
    terms = method(replace(seen, tokens={1: states}), [told], Batch(torch.zeros(20, 16), torch.zeros(20, 20)))
    mean_of(terms["token_states"]).backward()
    touched = states.grad[0].abs().sum(-1) > 0
    assert not (touched & untouched & seen.content).any()
    assert (touched == (~untouched | (seen.mask & ~seen.content))).all()


def test_narrower_states_are_compared_behind_the_map_of_the_pooling(
    tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    world = World(tmp_path, tiny_model_folders["bert"], sentences, None)
    source = load_student(tiny_model_folders["bert"], device="cpu").eval()
    student, _ = shrink(source, layers=[1], embedding=12, width=16, texts=sentences)
    student.eval()
    world.student, world.tap = student, StudentTap(student)
    assert (world.tap.info.hidden, world.tap.info.width) == (16, 32)
    method = world.method()
    method.attach(student)
    counted = [name for name, _ in method.named_parameters()]
    assert not counted, "the student's map would be trained twice"
    wanted = method.needs(world.tap.info, [teacher_info(world.teacher)]).of(0)
    rows = list(range(12))
    term, (seen, told) = world.term(LiveSource(world.teacher, world.corpus, tmp_path), method, rows, wanted)
    head, (last,) = student[2].linear, seen.tokens
    theirs = told.tokens[world.teacher.card.layers]
    ours = seen.tokens[last][0] @ head.weight.T + head.bias
    torch.testing.assert_close(ours.shape, theirs.shape)
    missed = ((ours - theirs).square().sum(-1) * seen.mask).sum() / (theirs.square().sum(-1) * told.mask).sum()
    torch.testing.assert_close(mean_of(term), missed)
    mean_of(term).backward()
    assert head.weight.grad is not None and head.weight.grad.abs().sum() > 0
    plain, _ = shrink(source, layers=[1], embedding=12, width=16, texts=sentences)
    plain[2].activation_function = torch.nn.Tanh()
    with pytest.raises(DistilvecError, match=r"^token_states: .*\blinear map\b.*shrink"):
        method.attach(plain)


def test_a_student_as_wide_as_there_are_axes_is_compared_behind_its_map(
    tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    world = World(tmp_path, tiny_model_folders["bert"], sentences, None)
    source = load_student(tiny_model_folders["bert"], device="cpu").eval()
    world.student, _ = shrink(source, layers=[1], embedding=12, width=16, texts=sentences)
    world.tap, layer = StudentTap(world.student.eval()), world.teacher.card.layers
    matrix = torch.linalg.qr(torch.randn(32, 16, generator=torch.Generator().manual_seed(0))).Q
    whole, method = world.method(), world.method(axes=16, found={layer: matrix})
    for each in (whole, method):
        each.attach(world.student)
    wanted = method.needs(world.tap.info, [teacher_info(world.teacher, 16)]).of(0)
    _, (seen, told) = world.term(LiveSource(world.teacher, world.corpus, tmp_path), whole, [3, 7], wanted)
    theirs = told.tokens[layer] @ matrix
    batch = Batch(torch.zeros(2, 16), torch.zeros(2, 2))
    found = method(seen, [replace(told, tokens={layer: theirs})], batch)["token_states"]
    ours = world.student[2]({"sentence_embedding": seen.tokens[1][0]})["sentence_embedding"] @ matrix
    missed = ((ours - theirs).square().sum(-1) * seen.mask).sum() / (theirs.square().sum(-1) * told.mask).sum()
    torch.testing.assert_close(mean_of(found), missed)
    world.tap.info = replace(world.tap.info, width=16)  # without a map
    with pytest.raises(DistilvecError, match=r"token states have 32 numbers, the student's 16"):
        world.method(axes=16, found={layer: matrix})


def test_what_does_not_go_together_is_refused(
    same: World, tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]
) -> None:
    method, student, teacher = build_method("token_states", {}), same.tap.info, teacher_info(same.teacher)
    with pytest.raises(DistilvecError, match=r"token_states .*\b2\b"):
        method.needs(student, [teacher, teacher])
    with pytest.raises(DistilvecError, match=rf"^{student.name}: token_states .*\b64 numbers.*\b32\b.*shrink"):
        method.needs(student, [replace(teacher, hidden=64, width=64)])
    with pytest.raises(DistilvecError, match=f"^{student.name}: token_states .*shows none.*transformer"):
        method.needs(replace(student, layers=None), [teacher])
    other = load_student(tiny_model_folders["xlmr"], device="cpu")
    with pytest.raises(DistilvecError, match=r"^teacher: token_states .*\b\d+% .*shrink"):
        check_pieces(method, list(other.tokenizer.get_vocab()), same.teacher.vocabulary, "teacher")
    check_pieces(method, list(same.student.tokenizer.get_vocab()), same.teacher.vocabulary, "teacher")
    with pytest.raises(DistilvecError, match=r"^teacher teacher: .*\b48 and 32\b.*method\.map"):
        build_method("cosine", {"map": False}).needs(student, [replace(teacher, width=48)])
