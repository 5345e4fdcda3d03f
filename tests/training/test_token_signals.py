"""Token states, attention maps and alignments: from a store and from a live teacher alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.world import options_of

from distilvec.alignment import align
from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.batch import Batch
from distilvec.errors import DataError, DistilvecError
from distilvec.flow.teach import teacher_info
from distilvec.methods.base import Sample
from distilvec.methods.table import resolve
from distilvec.methods.tokens.emo import EMO
from distilvec.store import SignalStore, fill
from distilvec.store.ragged import RaggedSignal
from distilvec.students import load_student
from distilvec.students.output import StudentOutput
from distilvec.students.tap import StudentTap
from distilvec.teachers import load_teacher
from distilvec.teachers.signals import Digest, TeacherInfo, TeacherSignals, Wanted
from distilvec.training import Collator, LiveSource, StoreSource, TokenizedCorpus
from distilvec.training.step import mean_of

#: Of no item: maps that start at random need none.
SIGNALS = TeacherSignals(present=torch.zeros(0, dtype=torch.bool), sentence=torch.zeros(0, 32))
#: Without the thresholds that choose DistillMoE's tokens: float16 can move one over them.
ALL_TOKENS = {"mass": 1.0, "most_tokens": None, "least_cosine": None}
WANTED = Wanted(tokens=(0, 2), attention=(2,), alignment=("strict", "full"))


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def parts(
    request: pytest.FixtureRequest,
    tiny_model_folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[str],
) -> dict[str, Any]:
    """A teacher of one kind (qwen3 pads on the left), a student of another tokenizer, corpus and filled store."""
    folder = tmp_path_factory.mktemp(request.param)
    corpus = read_corpus(sentences[:40], folder / "corpus", holdout=0.0)
    teacher = load_teacher(model=tiny_model_folders[request.param])
    student = load_student(tiny_model_folders["xlmr"], device="cpu")
    store = SignalStore.create(folder / "store", teacher.card, teacher.card.width, "float32")
    report = fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys, WANTED)
    assert report.taught == len(corpus)
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), folder / "tokens", corpus.fingerprint)
    return {"corpus": corpus, "teacher": teacher, "student": student, "store": store, "tokens": tokens, "at": folder}


def test_store_and_live_teacher_say_the_same(parts: dict[str, Any]) -> None:
    corpus, tokens = parts["corpus"], parts["tokens"]
    stored = StoreSource(parts["store"], corpus)
    live = LiveSource(parts["teacher"], corpus, parts["at"] / "live")
    for source in (stored, live):
        source.prepare(WANTED, tokens)
    rows = [3, 11, 0, 29]
    first, second = (Collator(corpus, tokens, [source])(rows)["teachers"][0] for source in (stored, live))
    torch.testing.assert_close(first["sentence"], second["sentence"], atol=1e-5, rtol=1e-5)
    for row in range(len(rows)):
        here, there = first["mask"][row], second["mask"][row]
        assert torch.equal(first["content"][row][here], second["content"][row][there])
        for layer in (0, 2):
            one, two = first["tokens"][layer][row][here], second["tokens"][layer][row][there]
            torch.testing.assert_close(one, two, atol=2e-3, rtol=2e-3)  # kept in float16
        one = first["attention"][2][row][here][:, here]
        torch.testing.assert_close(one, second["attention"][2][row][there][:, there], atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(one.sum(-1), torch.ones(len(one)), atol=1e-3, rtol=0)


def test_pairs_are_those_of_the_token_strings_at_their_padded_places(parts: dict[str, Any]) -> None:
    corpus, tokens, teacher = parts["corpus"], parts["tokens"], parts["teacher"]
    live = LiveSource(teacher, corpus, parts["at"] / "pairs")
    live.prepare(WANTED, tokens)
    rows = [5, 17, 2]
    batch = Collator(corpus, tokens, [live])(rows)
    ids = batch["features"]["input_ids"]
    seen = teacher.signals(corpus.teacher_texts(np.array(rows)), WANTED)
    student = tokens.tokenizer
    checked = 0
    for row in range(len(rows)):
        theirs = [teacher.vocabulary[i] for i in seen.ids[row][seen.content[row]]]
        special = set(student.all_special_ids)
        places = [p for p, i in enumerate(ids[row].tolist()) if i not in special]
        ours = student.convert_ids_to_tokens([int(ids[row][p]) for p in places])
        at = seen.content[row].nonzero()[:, 0].tolist()
        expected = [[places[s], at[t]] for s, t in align(ours, theirs)]
        found = batch["teachers"][0]["alignments"]["strict"][row]
        assert found[found[:, 0] >= 0].tolist() == expected
        checked += len(expected)
        whole = batch["teachers"][0]["alignments"]["full"][row]
        whole = whole[whole[:, 0] >= 0]
        assert set(whole[:, 0].tolist()) == set(places) and set(whole[:, 1].tolist()) == set(at)
    assert checked > 0


@pytest.mark.parametrize("short", ["student", "teacher", "both"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "store"])
def test_what_one_side_does_not_read_goes_with_nothing(
    tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str], short: str, live: bool
) -> None:
    """Where a text is cut, the rest of it is not tied to the last token, and what is left is aligned as if alone."""
    texts = sorted(sentences[:60], key=len)[-8:]
    corpus = read_corpus(texts, tmp_path / "corpus", holdout=0.0)
    lengths = {"student": (16, None), "teacher": (None, 14), "both": (16, 14)}[short]
    student = load_student(tiny_model_folders["xlmr"], device="cpu", max_length=lengths[0])
    teacher = load_teacher(model=tiny_model_folders["bert"], max_length=lengths[1])
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), tmp_path / "tokens", corpus.fingerprint)
    source: LiveSource | StoreSource = LiveSource(teacher, corpus, tmp_path / "live")
    if not live:
        store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width, "float32")
        fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys, WANTED)
        source = StoreSource(store, corpus)
    source.prepare(WANTED, tokens)
    rows = np.arange(len(corpus))
    batch = Collator(corpus, tokens, [source])(rows.tolist())
    ours, theirs = tokens.contents(rows), teacher.contents(corpus.teacher_texts(rows))
    whole = load_teacher(model=tiny_model_folders["bert"]).contents(corpus.teacher_texts(rows))
    assert any(len(one[0]) > len(other[0]) + 4 for one, other in zip(whole, theirs, strict=True)) == (
        short != "student"
    )
    for row in rows:
        full = batch["teachers"][0]["alignments"]["full"][row]
        full = full[full[:, 0] >= 0].tolist()
        strings = [
            [token.strip("▁") for token in tokens.tokenizer.convert_ids_to_tokens(ours[row][0].tolist())],
            [teacher.vocabulary[i].removeprefix("##") for i in theirs[row][0]],
        ]
        read = min(sum(map(len, side)) for side in strings)
        for side, content in enumerate((ours[row], theirs[row])):
            starts = np.cumsum([0, *map(len, strings[side][:-1])])
            assert sorted({pair[side] for pair in full}) == content[1][starts < read].tolist()
            assert sum(pair[side] == full[-1][side] for pair in full) < 5


def _steps(source: StoreSource | LiveSource, method: EMO, parts: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """EMO's terms of two batches, by what a source hands out."""
    tap, tokens, corpus = StudentTap(parts["student"].eval()), parts["tokens"], parts["corpus"]
    needs, found = method.needs(tap.info, [parts["info"]]), []
    for rows in ([3, 11, 0, 29], [7, 8, 30]):
        batch = Collator(corpus, tokens, [source])(rows)
        with torch.no_grad():
            seen = tap(batch["features"], views=1, tokens=needs.student.tokens, attention=needs.student.attention)
        signals = TeacherSignals(**batch["teachers"][0])
        terms = method(seen, [signals], Batch(batch["keys"], Batch.equal_items(batch["keys"])))
        found.append(
            {name: term.values for name, term in terms.items()} | {"maps": torch.tensor(len(signals.attention))}
        )
    return found


@pytest.mark.parametrize(
    "options", [{}, {"preset": "paper"}, {"preset": "code"}, {"ira_weight": 0}, {"otis_weight": 0}]
)
def test_a_store_digests_maps_once_and_nothing_changes(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    teacher, corpus, tokens = parts["teacher"], parts["corpus"], parts["tokens"]
    card = teacher.card
    parts["info"] = TeacherInfo(
        "teacher", card.width, teacher.card.layers, hidden=teacher.hidden, causal=teacher.causal
    )
    method = EMO(options_of("emo", {"init": "random", "standardize": False, "alpha": 0, **options}))
    student = StudentTap(parts["student"]).info
    needs = method.needs(student, [parts["info"]])
    method.build(student, [parts["info"]], Sample(StudentOutput(torch.zeros(1, 1, student.width)), []))
    wanted = needs.of(0)
    store = SignalStore.create(tmp_path / "store", card, card.width, "float32")
    fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys, wanted)
    digested, plain = StoreSource(store, corpus), StoreSource(store, corpus)
    digested.prepare(wanted, tokens)
    plain.prepare(replace(wanted, digest=None), tokens)
    short, long = _steps(digested, method, parts), _steps(plain, method, parts)
    for one, other in zip(short, long, strict=True):
        assert int(one.pop("maps")) == 0 < int(other.pop("maps"))
        assert one.keys() == other.keys() and one
        for name in one:
            torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=1e-5)
            assert one[name].any()
    again = StoreSource(store, corpus)
    monkeypatch.setattr("distilvec.training.derived._write_digests", lambda *_: pytest.fail("it was made before"))
    again.prepare(wanted, tokens)
    assert not list((store.path / "derived").glob(".distilvec-tmp*"))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("emo", {"preset": "paper", "alpha": 0}),
        ("distillmoe", {"alpha": 0, "layers": 2, "head": False}),
        ("distillmoe", {"alpha": 0, "layers": 2, "head": False, "preset": "code", "maps": "separate", **ALL_TOKENS}),
        ("dskd", {"alpha": 0}),
        ("mined", {"alpha": 0}),
        ("cdm", {"alpha": 0}),
    ],
)
def test_a_method_makes_the_same_of_a_store_and_of_its_teacher(
    parts: dict[str, Any], tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    """Values and the student's gradient, of two batches; a store keeps float16."""
    teacher, corpus, tokens = parts["teacher"], parts["corpus"], parts["tokens"]
    tap, info = StudentTap(parts["student"].eval()), teacher_info(teacher)
    torch.manual_seed(3)
    method = resolve(name)(options_of(name, {"init": "random", "standardize": False, **options}))
    needs = method.needs(tap.info, [info])
    method.build(tap.info, [info], Sample(StudentOutput(torch.zeros(1, 1, tap.info.width)), [SIGNALS]))
    method.eval()
    wanted = needs.of(0)
    store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width, "float32")
    fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys, wanted)
    for rows in ([3, 11, 0, 29], [7, 8, 30]):
        found = []
        for source in (StoreSource(store, corpus), LiveSource(teacher, corpus, tmp_path / "live")):
            source.prepare(wanted, tokens)
            batch = Collator(corpus, tokens, [source])(rows)
            seen = tap(
                batch["features"],
                views=1,
                layers=needs.student.layers,
                tokens=needs.student.tokens,
                attention=needs.student.attention,
            )
            signals = TeacherSignals(**batch["teachers"][0])
            terms = method(seen, [signals], Batch(batch["keys"], Batch.equal_items(batch["keys"])))
            loss = torch.stack([term.weight * mean_of(term) for term in terms.values()]).sum()
            (gradient,) = torch.autograd.grad(loss, parts["student"][0].model.embeddings.word_embeddings.weight)
            found.append((loss.item(), gradient))
        (one, first), (other, second) = found
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4) and one
        assert (first - second).norm() < 0.01 * second.norm()


def test_a_digest_that_is_stopped_half_way_leaves_nothing(parts: dict[str, Any], tmp_path: Path) -> None:
    def make(signals: TeacherSignals) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        raise KeyboardInterrupt

    derived = parts["store"].path / "derived"
    before = set(derived.iterdir()) if derived.is_dir() else set()
    source = StoreSource(parts["store"], parts["corpus"])
    with pytest.raises(KeyboardInterrupt):
        source.prepare(replace(WANTED, alignment=(), digest=Digest("stopped", ("a",), (), make)), parts["tokens"])
    assert set(derived.iterdir()) == before


def test_only_what_is_missing_is_taught_and_added(
    tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    corpus = read_corpus(sentences[:20], tmp_path / "corpus", holdout=0.0)
    teacher = load_teacher(model=tiny_model_folders["bert"])
    store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
    texts, keys = corpus.teacher_texts(), corpus.teacher_keys
    fill(store, teacher, texts, keys)
    wanted = Wanted(tokens=(1,))
    assert fill(store, teacher, texts[:12], keys[:12], wanted).taught == 12
    assert len(store) == 20  # the sentence vectors were there
    report = fill(store, teacher, texts, keys, wanted)
    assert (report.present, report.taught) == (12, 8)
    assert fill(store, teacher, texts, keys, wanted).taught == 0
    more = Wanted(tokens=(1, 2))
    assert fill(store, teacher, texts, keys, more).taught == 20
    assert len(RaggedSignal(store.path, "tokens-1")) == 20
    assert SignalStore.open(store.path, verify=True).bad == {}


@pytest.mark.parametrize("kind", ["bert", "qwen3", "modernbert"])
def test_last_states_from_before_the_final_norm_are_refused_and_nothing_else_is(
    kind: str, tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    corpus = read_corpus(sentences[:10], tmp_path / "corpus", holdout=0.0)
    teacher = load_teacher(model=tiny_model_folders[kind], prompt="")
    last = teacher.card.layers or 0
    store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
    texts, keys = corpus.teacher_texts(), corpus.teacher_keys
    assert fill(store, teacher, texts, keys, Wanted(tokens=(1, last), attention=(last,))).taught == 10
    file = store.path / "store.json"
    now = json.loads(file.read_text())
    marked = {name for name, entry in now["signals"].items() if "fingerprint" in entry}
    assert marked == (set() if kind == "bert" else {f"tokens-{last}"})
    for name in marked:  # the store of an earlier version
        del now["signals"][name]["fingerprint"]
    file.write_text(json.dumps(now))
    assert fill(store, teacher, texts, keys, Wanted(tokens=(1,), attention=(last,))).taught == 0
    if kind == "bert":
        assert fill(store, teacher, texts, keys, Wanted(tokens=(1, last))).taught == 0
        return
    with pytest.raises(DistilvecError, match=rf"store.*tokens-{last}.*final norm.*[0-9a-f]{{32}}"):
        fill(store, teacher, texts, keys, Wanted(tokens=(1, last)))


def test_a_bad_part_is_set_aside_and_made_again(
    tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    corpus = read_corpus(sentences[:10], tmp_path / "corpus", holdout=0.0)
    teacher = load_teacher(model=tiny_model_folders["bert"])
    store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
    arguments = (store, teacher, corpus.teacher_texts(), corpus.teacher_keys, Wanted(attention=(1,)))
    fill(*arguments)
    part = next(store.path.glob("attention-1-*.arrow"))
    part.write_bytes(part.read_bytes()[:-100])
    assert len(RaggedSignal(store.path, "attention-1")) == 0
    assert list(store.path.glob("attention-1-*.arrow.bad"))
    part = next(store.path.glob("tokenids-*.arrow"))
    whole = bytearray(part.read_bytes())
    whole[len(whole) // 2] ^= 1
    part.write_bytes(bytes(whole))
    assert part.stem in SignalStore.open(store.path, verify=True).bad
    assert fill(*arguments).taught == 10
    assert len(RaggedSignal(store.path, "attention-1")) == 10


def test_unavailable_signals_are_refused(
    tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    corpus: Corpus = read_corpus(sentences[:10], tmp_path / "corpus", holdout=0.0)
    teacher = load_teacher(model=tiny_model_folders["bert"])
    store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
    fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys)
    student = load_student(tiny_model_folders["bert"], device="cpu")
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), tmp_path / "tokens")
    with pytest.raises(DataError, match="/store: .*tokens-1.*`distilvec teach`"):
        StoreSource(store, corpus).prepare(Wanted(tokens=(1,)), tokens)
    fill(store, teacher, corpus.teacher_texts()[:4], corpus.teacher_keys[:4], Wanted(tokens=(1,)))
    with pytest.raises(DataError, match=r"/store: .*tokens-1 for 6\b.*`distilvec teach`"):
        StoreSource(store, corpus).prepare(Wanted(tokens=(1,)), tokens)
    with pytest.raises(DistilvecError, match=r"^teacher: .*layer 9\b.*\b0 to 3\b"):
        teacher.signals(["a"], Wanted(tokens=(9,)))
    with pytest.raises(DistilvecError, match="^teacher: .*logits.*`distilvec finetune`"):
        teacher.refuse(Wanted(logits=True))
    function = load_teacher(call=lambda texts: np.ones((len(texts), 4), np.float32))
    with pytest.raises(DistilvecError, match=r"^teacher: .*tokens.*`distilvec methods`"):
        function.refuse(Wanted(tokens=(1,)))
