"""Functions and services as teachers."""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distilvec.corpus import content_keys, read_corpus
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.store import SignalStore, fill
from distilvec.teachers import Reading, load_teacher
from distilvec.teachers.callable import CallTeacher, Patience
from distilvec.teachers.cards import fingerprint
from distilvec.teachers.carried import carried
from distilvec.teachers.describe import batch_invariance
from distilvec.teachers.sections import CallSection


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), float(text.count("e")), 1.0] for text in texts]


class Clock:
    """Time that passes only by sleeping, and a service that takes `cost` seconds a call."""

    def __init__(self, cost: float = 0.0, failures: int = 0) -> None:
        self.now, self.cost, self.failures = 0.0, cost, failures
        self.sleeps: list[float] = []
        self.calls: list[tuple[float, list[str]]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def serve(self, texts: list[str]) -> list[list[float]]:
        self.calls.append((self.now, texts))
        self.now += self.cost
        if len(self.calls) > 1 and self.failures:  # the first call only measures the width
            self.failures -= 1
            raise ConnectionError("try later")
        return embed(texts)


def _teacher(clock: Clock, attempts: int = 6, **options: Any) -> CallTeacher:
    return CallTeacher(CallSection(call=clock.serve, **options), Reading(), Patience(attempts, clock, clock.sleep))


def test_batches_in_order(sentences: list[str]) -> None:
    clock = Clock()
    teacher = _teacher(clock, batch_size=32, prompt="p: ")
    vectors = teacher.encode(sentences)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, np.array(embed(["p: " + text for text in sentences]), np.float32))
    assert [len(texts) for _, texts in clock.calls[1:]] == [32] * 6 + [8]
    assert (teacher.card.kind, teacher.card.width, teacher.card.prompt) == ("callable", 3, "p: ")
    assert teacher.signals(sentences[:3]).present.all()
    assert teacher.has(["x", "y"]).tolist() == [True, True]


def test_retry_waits_longer_each_time() -> None:
    clock = Clock(failures=3)
    teacher = _teacher(clock)
    assert teacher.encode(["abc"]).tolist() == [[3.0, 0.0, 1.0]]
    assert clock.sleeps == [1.0, 2.0, 4.0]
    assert len(clock.calls) == 5


def test_retry_gives_up() -> None:
    clock = Clock(failures=99)
    teacher = _teacher(clock, attempts=4)
    with pytest.raises(EnvironmentProblem, match=r"teacher: 4 .*ConnectionError: try later") as caught:
        teacher.encode(["abc"])
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert len(clock.calls) == 5


def test_mistakes_in_the_function_are_not_repeated() -> None:
    calls = []

    def wrong(texts: list[str]) -> Any:
        calls.append(texts)
        return texts + 1  # type: ignore[operator]

    with pytest.raises(DistilvecError, match="^teacher: .*TypeError: "):
        load_teacher(call=wrong)
    assert len(calls) == 1


def test_rate_limit_counts_starts_of_calls() -> None:
    clock = Clock(cost=0.1)
    teacher = _teacher(clock, batch_size=1, rate_limit=2.0)
    teacher.encode(["a", "b", "c"])
    assert [time for time, _ in clock.calls] == pytest.approx([0.0, 0.5, 1.0, 1.5])
    slow = Clock(cost=0.9)
    _teacher(slow, batch_size=1, rate_limit=2.0).encode(["a", "b"])
    assert slow.sleeps == []  # it is slower than the limit by itself


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda texts: [[1.0]] * (len(texts) + 1), r"expected \[1, D\], found \[2, 1\]"),
        (lambda texts: [1.0] * len(texts), r"expected \[1, D\], found \[1\]"),
        (lambda texts: [[float("nan"), 1.0]] * len(texts), r"'A probe\.'.*NaN"),
        (lambda texts: None, r"expected \[1, D\], found \[\]"),
        (lambda texts: [["a"]] * len(texts), r"\b1 .*found list: .*'a'"),
        (lambda texts: [[]] * len(texts), r"expected \[1, D\], found \[1, 0\]"),
    ],
)
def test_wrong_answers(answer: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^service: .*{message}"):
        load_teacher(name="service", call=answer)


def test_a_function_that_lacks_items(tmp_path: Path) -> None:
    """None or a row of NaN: not in the store, asked for again, and absent for a live teacher."""
    texts = ["one", "two", "three", "four"]

    def embed(items: list[str]) -> list[Any]:
        answers = {"two": None, "three": [float("nan")] * 2}
        return [answers.get(item, [float(len(item)), 1.0]) for item in items]

    teacher = load_teacher(call=embed, batch_size=3)
    found = teacher.signals(texts)
    assert found.present.tolist() == [True, False, False, True]
    assert found.sentence.tolist() == [[3, 1], [0, 0], [0, 0], [4, 1]]
    corpus = read_corpus(texts, tmp_path / "corpus", holdout=0.0)
    store = SignalStore.create(tmp_path / "store", teacher.card, 2, "float32")
    for asked in (4, 2):
        filled = fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys)
        assert (filled.distinct - filled.present, filled.absent) == (asked, 2)
    assert store.missing(corpus.teacher_keys).tolist() == [False, True, True, False]
    assert batch_invariance(teacher, items=texts).passed
    nothing = load_teacher(call=lambda items: [[1.0, 2.0] if item == "A probe." else None for item in items])
    assert np.isnan(nothing.encode(texts)).all()
    with pytest.raises(DataError, match=r"^teacher: .*'A probe\.'"):
        load_teacher(call=lambda items: [None for _ in items])


def test_changing_width() -> None:
    widths = iter([3, 3, 4])

    def moody(texts: list[str]) -> np.ndarray:
        return np.ones((len(texts), next(widths)))

    teacher = load_teacher(call=moody, batch_size=1)
    with pytest.raises(DataError, match=r"^teacher: .*\b3\b.*\b4\b"):
        teacher.encode(["a", "b"])


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "distilvec_test_service.py").write_text(
        "class Client:\n"
        "    @staticmethod\n"
        "    def embed(texts):\n"
        "        return [[float(len(t)), 2.0] for t in texts]\n"
        "width = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    teacher = load_teacher(call="distilvec_test_service:Client.embed")
    assert sys.path == path
    assert teacher.encode(["four"]).tolist() == [[4.0, 2.0]]
    assert teacher.card.source == "distilvec_test_service:Client.embed"
    with pytest.raises(DistilvecError, match=r'distilvec_test_service:Client\.embd: .*"embed"'):
        load_teacher(call="distilvec_test_service:Client.embd")
    with pytest.raises(DistilvecError, match=r"distilvec_test_service:width: .*\bint\b"):
        load_teacher(call="distilvec_test_service:width")
    with pytest.raises(DistilvecError, match='"distilvec_test_service".*module:function'):
        load_teacher(call="distilvec_test_service")
    with pytest.raises(DistilvecError, match="distilvec_no_such_module:f: .*'distilvec_no_such_module'"):
        load_teacher(call="distilvec_no_such_module:f")


@pytest.mark.parametrize("made", ["Encoder()", "SentenceTransformer(FOLDER, device='cpu')"])
def test_a_model_object_named_as_function_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_bert: Path, made: str
) -> None:
    module = f"distilvec_test_models_{len(made)}"
    (tmp_path / f"{module}.py").write_text(
        "from sentence_transformers import SentenceTransformer\n"
        f"FOLDER = {str(tiny_bert)!r}\n"
        "class Encoder:\n"
        "    def encode(self, texts):\n"
        "        return [[float(len(each)), 2.0] for each in texts]\n"
        f"MODEL = {made}\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DistilvecError, match=f"{made.partition('(')[0]}.*call: module:NAME.encode"):
        load_teacher(call=f"{module}:MODEL")
    assert load_teacher(call=f"{module}:MODEL.encode").encode(["four", "one"]).shape[0] == 2


def test_fingerprint_follows_source_and_prompt() -> None:
    def other(texts: list[str]) -> list[list[float]]:
        return [[0.0, 1.0, 2.0] for _ in texts]

    seen = {load_teacher(call=function).card.fingerprint for function in (embed, other)}
    seen.add(load_teacher(call=embed, prompt="query: ").card.fingerprint)
    assert len(seen) == 3
    assert load_teacher(call=embed).card.fingerprint in seen


def test_a_function_without_a_file_is_known_by_what_it_does() -> None:
    """As one that is typed at a prompt, or comes by a pipe."""

    def typed(scale: float) -> str:
        names: dict[str, Any] = {}
        exec(f"def embed(texts):\n    return [[len(text) * {scale}, 1.0] for text in texts]", names)
        return load_teacher(call=names["embed"]).card.fingerprint

    assert typed(2.0) == typed(2.0) != typed(3.0)


def test_an_edited_function_keeps_its_store_where_it_says_that_its_answers_are_the_same(tmp_path: Path) -> None:
    def edited(texts: list[str]) -> list[list[float]]:
        return [list(row) for row in embed(texts)]

    def store_of(function: Any) -> SignalStore:
        teacher = load_teacher(call=function)
        return SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)

    first = store_of(embed)
    fill(first, load_teacher(call=embed), ["a", "bc"], content_keys(["a", "bc"]))
    told = first.card["fingerprint"]
    with pytest.raises(DistilvecError, match=f'answers as before says so: `function.fingerprint = "{told}"`'):
        store_of(edited)
    edited.fingerprint = told  # type: ignore[attr-defined]
    assert len(store_of(edited)) == 2
    edited.fingerprint = "another"  # type: ignore[attr-defined]
    assert load_teacher(call=edited).card.fingerprint == "another"
    assert load_teacher(call=edited, prompt="query: ").card.fingerprint != "another"
    edited.fingerprint = ""  # type: ignore[attr-defined]
    assert len(load_teacher(call=edited).card.fingerprint) == 32


class Network(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(1, 3)

    def encode(self, texts: list[str]) -> np.ndarray:
        return self.linear(torch.tensor([[float(len(text))] for text in texts])).detach().numpy()


class Service:
    """What reaches it has a number of its own in every process."""

    def __init__(self, network: Network | None = None) -> None:
        self.session, self.network = object(), network
        self.id = id(self.session)

    def __call__(self, texts: list[str]) -> Any:
        return embed(texts) if self.network is None else self.network.encode(texts)


def scaled(texts: list[str], by: float) -> list[list[float]]:
    return [[by * value for value in row] for row in embed(texts)]


def counting(letter: str) -> Any:
    return lambda texts: [[float(text.count(letter)), 1.0] for text in texts]


def held(network: Network) -> Any:
    def read(texts: list[str]) -> np.ndarray:
        return network.encode(texts) + 1

    return read


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (counting, "a", "b"),
        (lambda by: functools.partial(scaled, by=by), 1.0, 2.0),
        (lambda seed: Network(seed).encode, 0, 1),
        (lambda seed: held(Network(seed)), 0, 1),
        (lambda seed: Service(Network(seed)), 0, 1),
    ],
)
def test_the_closure_of_a_function_is_part_of_its_fingerprint(make: Any, one: Any, other: Any) -> None:
    """Or one model's vectors would be taken for another's whose `encode` has the same text."""
    first, again, second = (load_teacher(call=make(value)).card.fingerprint for value in (one, one, other))
    assert first == again != second


def test_the_fingerprint_of_a_plain_function_is_as_it_always_was() -> None:
    source = inspect.getsource(embed)
    assert load_teacher(call=embed).card.fingerprint == fingerprint(f"{__name__}:embed", source, "", 3)
    assert carried(embed) == [] == carried(Service().__call__)
    assert carried(Service()) == [inspect.getsource(Service)]  # whose object has no text of its own
    service = Service()

    def read(texts: list[str]) -> Any:
        return service(texts)

    assert carried(read) == []


def test_a_neighbour_may_be_imported_when_the_function_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "distilvec_test_lazy.py").write_text(
        "def embed(texts):\n    import distilvec_test_neighbour\n    return distilvec_test_neighbour.embed(texts)\n"
    )
    (tmp_path / "distilvec_test_neighbour.py").write_text(
        "def embed(texts):\n    return [[float(len(text)), 2.0] for text in texts]\n"
    )
    path = list(sys.path)
    with monkeypatch.context() as inside:
        inside.chdir(tmp_path)
        teacher = load_teacher(call="distilvec_test_lazy:embed")
    assert teacher.encode(["four"]).tolist() == [[4.0, 2.0]]
    assert sys.path == path


def test_a_tensor_that_requires_gradients_is_refused() -> None:
    with pytest.raises(DataError, match=r"rows of numbers were expected, found Tensor: .*requires grad"):
        load_teacher(call=lambda texts: torch.ones(len(texts), 2, requires_grad=True))


def test_bad_options() -> None:
    with pytest.raises(DistilvecError, match=r"^teacher, batch_size: .*greater than 0 \(got 0\)"):
        load_teacher(call=embed, batch_size=0)
    with pytest.raises(DistilvecError, match=r"^teacher, rate_limit: .*greater than 0 \(got 0\.0\)"):
        load_teacher(call=embed, rate_limit=0.0)


def test_invariance_of_functions() -> None:
    assert batch_invariance(load_teacher(call=embed)).passed

    def by_longest(texts: list[str]) -> list[list[float]]:
        longest = max(map(len, texts))
        return [[float(len(text)), float(longest)] for text in texts]

    report = batch_invariance(load_teacher(call=by_longest))
    assert not report.passed
    assert "batch_size" in report.advice
