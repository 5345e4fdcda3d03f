"""What functions carry past their closures: names in code written within, defaults, global arrays."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
from functools import partial
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from distilvec.scorers.load import load_scorer
from distilvec.teachers import carried as module
from distilvec.teachers import load_teacher
from distilvec.teachers.cards import fingerprint
from distilvec.teachers.carried import carried


class Network(torch.nn.Module):
    """Its weights are `value` and the next two numbers."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0) + value)

    def encode(self, text: str) -> np.ndarray:
        return self.weight.detach().numpy() * len(text)


def array(value: float) -> np.ndarray:
    return np.arange(3, dtype=np.float32) + np.float32(value)


class Holder:
    def __init__(self, value: float) -> None:
        self.number, self.model = id(self), Network(value)

    def encode(self, text: str) -> np.ndarray:
        return self.model.encode(text)


def built(folder: Path, text: str, **names: Any) -> Any:
    """`embed` of a module with this text, in which these names are known."""
    file = folder / "distilvec_test_further.py"
    file.write_text(textwrap.dedent(text))
    known = {"__name__": file.stem, "np": np, "torch": torch, "functools": functools, **names}
    exec(compile(file.read_text(), file, "exec", dont_inherit=True), known)
    return known["embed"]


def mark(function: Any) -> str:
    return load_teacher(call=function).card.fingerprint


LIST = """
    def embed(texts):
        return np.stack([MODEL.encode(text) for text in texts])
"""
MODELS = {
    "list comprehension": LIST,
    "generator expression": """
        def embed(texts):
            return np.stack(list(MODEL.encode(text) for text in texts))
    """,
    "inner function": """
        def embed(texts):
            def one(text):
                return [MODEL.encode(each) for each in [text]][0]
            return np.stack(list(map(one, texts)))
    """,
    "inner lambda": """
        def embed(texts):
            return np.stack(list(map(lambda text: MODEL.encode(text), texts)))
    """,
    "default of a lambda": """
        embed = lambda texts, m=MODEL: np.stack(list(map(m.encode, texts)))
    """,
    "default by keyword": """
        def embed(texts, *, m=MODEL):
            return np.stack(list(map(m.encode, texts)))
    """,
    "default that is a method": """
        def embed(texts, encode=MODEL.encode):
            return np.stack(list(map(encode, texts)))
    """,
    "default that is a partial": """
        def of(m, texts):
            return np.stack(list(map(m.encode, texts)))
        def embed(texts, encode=functools.partial(of, MODEL)):
            return encode(texts)
    """,
    "default that holds": """
        def embed(texts, models={"one": MODEL}):
            return np.stack([models["one"].encode(text) for text in texts])
    """,
    "default that is a function": """
        def embed(texts, one=lambda text: MODEL.encode(text)):
            return np.stack(list(map(one, texts)))
    """,
    "function that is named": """
        def embed(texts):
            return np.stack([one(text) for text in texts])
        def one(text):
            return MODEL.encode(text)
    """,
    "decorated function that is named": """
        def embed(texts):
            return np.stack([one(text) for text in texts])
        @torch.no_grad()
        def one(text):
            return MODEL.encode(text)
    """,
    "functions that name each other": """
        def embed(texts):
            return np.stack([one(text, 3) for text in texts])
        def one(text, times):
            return other(text, times - 1) if times else MODEL.encode(text)
        def other(text, times):
            return one(text, times) if embed else embed
    """,
}
ARRAYS = {
    "named by the function": """
        def embed(texts):
            return np.array([[len(text)] for text in texts]) * np.asarray(W)
    """,
    "named by a comprehension": """
        def embed(texts):
            return np.stack([len(text) * np.asarray(W) for text in texts])
    """,
    "default": """
        def embed(texts, w=W):
            return np.array([[len(text)] for text in texts]) * np.asarray(w)
    """,
}


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_another_network_is_another_teacher(text: str, tmp_path: Path) -> None:
    first, again, other = (mark(built(tmp_path, text, MODEL=Network(value))) for value in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("text", [MODELS["default of a lambda"], MODELS["default by keyword"]])
def test_so_is_one_whose_default_holds_another_network(text: str, tmp_path: Path) -> None:
    """Its object has a number of its own in every process, which does not count."""
    first, again, other = (mark(built(tmp_path, text, MODEL=Holder(value))) for value in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("kind", [array, lambda value: torch.from_numpy(array(value))], ids=["numpy", "torch"])
@pytest.mark.parametrize("text", ARRAYS.values(), ids=ARRAYS)
def test_another_array_is_another_teacher(text: str, kind: Any, tmp_path: Path) -> None:
    first, again, other = (mark(built(tmp_path, text, W=kind(value))) for value in (1, 1, 2))
    assert first == again != other


def test_another_network_is_another_scorer(tmp_path: Path) -> None:
    text = "def embed(pairs):\n    return [float(MODEL.encode(query + document)[0]) for query, document in pairs]\n"
    first, again, other = (
        load_scorer(call=built(tmp_path, text, MODEL=Network(value))).card.fingerprint for value in (1, 1, 2)
    )
    assert first == again != other


def test_a_fingerprint_that_is_given_wins(tmp_path: Path) -> None:
    function = built(tmp_path, LIST, MODEL=Network(1))
    function.fingerprint = "mine"
    assert mark(function) == "mine"


def test_a_fingerprint_is_the_same_in_every_process_and_python(tmp_path: Path) -> None:
    """From 3.12 on a list comprehension is a part of its function, whose fingerprint has always been this."""
    assert carried(built(tmp_path, LIST, MODEL=Network(1))) == ["48f42b3b15797d6252ed5aeb597f2e30"]
    assert mark(built(tmp_path, LIST, MODEL=Network(1))) == "a97fdd5889e18db540071e16489ac51d"


# as they always were


PLAIN = """
    def embed(texts, scale=2.0):
        return [[scale * one(text) for _ in range(3)] for text in texts]

    def one(text):
        return float(len(text))
"""
CLOSURE = """
    def make(model, weights, word):
        def embed(texts):
            return np.stack([model.encode(text) * weights + text.count(word) for text in texts])
        return embed

    embed = make(MODEL, W, "a")
"""


def test_a_plain_function_is_the_teacher_that_it_was(tmp_path: Path) -> None:
    function = built(tmp_path, PLAIN)
    assert carried(function) == []
    assert mark(function) == "6d9234459516a1cd5b9324e9fcc0ea53"


def test_a_closure_is_the_teacher_that_it_was(tmp_path: Path) -> None:
    function = built(tmp_path, CLOSURE, MODEL=Network(1), W=array(2))
    assert carried(function) == ["48f42b3b15797d6252ed5aeb597f2e30", "a5cf057a16dc32838c1a25f4656c5cda", "a"]
    assert mark(function) == "2fc923c39f431ba7e276eb1abe81e58d"


def test_a_network_counts_once_in_the_fingerprint(tmp_path: Path) -> None:
    text = """
        def embed(texts, m=MODEL):
            MODEL.eval()
            return np.stack([MODEL.encode(text) for text in texts])
    """
    assert carried(built(tmp_path, text, MODEL=Network(1))) == ["48f42b3b15797d6252ed5aeb597f2e30"]


@pytest.mark.parametrize(
    ("default", "names"),
    [
        ("{}", {}),
        ("{'a': W}", {"W": array(1)}),  # may be answers that are kept, as may a global dictionary's
        ("None", {"length": {"a": array(1)}}),
        ("torch.nn.functional.normalize", {}),
        ("np.float32", {}),
        ("LABELS", {"LABELS": np.array(["a", None], dtype=object)}),
        ("POOL", {"POOL": torch.nn.Identity()}),
        ("SPARSE", {"SPARSE": torch.eye(2).to_sparse()}),
        ("None", {"width": array(1)}),  # the name of an attribute alone
    ],
)
def test_functions_that_carry_nothing_keep_their_fingerprint(
    default: str, names: dict[str, Any], tmp_path: Path
) -> None:
    text = f"""
        def embed(texts, given={default}):
            return [[float(len(text)), (text if False else LINE).width, 1.0] for text in texts if length]
    """
    function = built(tmp_path, text, **{"LINE": SimpleNamespace(width=1.0), "length": True, **names})
    assert carried(function) == []
    assert mark(function) == mark(FunctionType(function.__code__, function.__globals__, "embed", (None,)))


def test_names_of_installed_packages_do_not_count(tmp_path: Path) -> None:
    function = built(tmp_path, MODELS["function that is named"], MODEL=Network(1))
    assert len(carried(function)) == 1
    code = function.__globals__["one"].__code__
    function.__globals__["one"].__code__ = code.replace(co_filename=inspect.getfile(textwrap))
    assert carried(function) == []


def test_a_large_array_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        def embed(texts, w=W, *, again=W):
            return np.stack([len(text) * W + other() for text in texts]) + W
        def other():
            return 0 * W
    """
    seen: list[Any] = []
    digest = module._digest
    monkeypatch.setattr(module, "_digest", lambda arrays: (seen.extend(arrays), digest(arrays))[1])
    assert len(carried(built(tmp_path, text, W=array(1)))) == len(seen) == 1


@pytest.mark.parametrize(
    "given",
    [
        np.zeros((0, 3)),
        np.ones(()),
        np.array(["a", "bc"]),
        np.array(["2020"], "M8[D]"),
        np.arange(12).reshape(3, 4).T,
        np.ones(3, [("a", "i4"), ("b", "f8")]),
    ],
)
def test_the_digest_of_an_array_is_that_of_its_bytes(given: np.ndarray) -> None:
    told = f"{given.dtype}{given.shape}".encode() + np.ascontiguousarray(given).tobytes()
    assert module._digest([("", given)]) == hashlib.blake2b(told, digest_size=16).hexdigest()


def lengths(texts: list[str], scale: float = 1.0) -> np.ndarray:
    return np.array([[scale * len(text), text.count("e"), 1.0] for text in texts], np.float32)


def turned(texts: list[str], scale: float = 1.0) -> np.ndarray:
    return np.array([[1.0, text.count("e"), scale * len(text)] for text in texts], np.float32)


def wrapping(function: Any) -> Any:
    def wrapped(texts: list[str]) -> np.ndarray:
        return np.asarray(function(texts))

    return wrapped


class Held:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, texts: list[str]) -> np.ndarray:
        return np.asarray(self.function(texts))


@pytest.mark.parametrize("hold", [partial(partial, scale=2.0), wrapping, Held])
def test_wrapped_function_is_part_of_the_fingerprint(hold: Any) -> None:
    marks = [load_teacher(call=hold(function)).card.fingerprint for function in (lengths, turned, lengths)]
    assert marks[0] != marks[1] and marks[0] == marks[2]


def test_arguments_of_a_named_partial_are_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(texts: list[str], by: float) -> np.ndarray:
        return by * lengths(texts)

    def card(function: Any) -> Any:
        monkeypatch.setitem(sys.modules, "distilvec_test_named", SimpleNamespace(embed=function))
        return load_teacher(call="distilvec_test_named:embed").card.fingerprint

    assert card(functools.partial(scaled, by=1.0)) == card(functools.partial(scaled, by=1.0))
    assert card(functools.partial(scaled, by=1.0)) != card(functools.partial(scaled, by=2.0))
    as_always = fingerprint("distilvec_test_named:embed", inspect.getsource(lengths), "", 3)
    assert card(lengths) == as_always, "a plain function's store stays valid"
