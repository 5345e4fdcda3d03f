"""The cross-tokenizer baselines: half precision, what is coupled, refusals; test_suite asks the rest of all methods."""

from dataclasses import replace

import pytest
import torch
from tests.methods.baseline_cases import (
    CLASSIFYING,
    KNOWN,
    METHODS,
    REGRESSING,
    TEACHER_LAST,
    UNSUPERVISED,
    make_method,
    make_sample,
    make_step,
    total,
)

from distilvec.errors import DistilvecError
from distilvec.methods.base import Needs
from distilvec.methods.table import resolve
from distilvec.students.output import StudentInfo
from distilvec.teachers.signals import TeacherInfo


def run(method, step, teachers=1):
    return method(step.student, [step.signals] * teachers, step.batch)


HALF = [
    ("uld", CLASSIFYING, {}),
    ("multilevel_ot", CLASSIFYING, {}),
    ("mined", UNSUPERVISED, {}),
    ("cdm", UNSUPERVISED, {}),
    ("dskd", CLASSIFYING, {}),
]


@pytest.mark.parametrize(("name", "info", "options"), HALF)
def test_half_precision_signals_of_a_store_are_taken(name, info, options) -> None:
    method = make_method(name, info, **options)
    step = make_step(views=method.needs(info, [KNOWN]).student.views)
    exact = run(method, step)
    signals = step.signals
    signals.logits = signals.logits.half()
    signals.tokens = {TEACHER_LAST: signals.tokens[TEACHER_LAST].half()}
    for key, term in run(method, step).items():
        torch.testing.assert_close(term.values, exact[key].values, rtol=5e-3, atol=5e-3)


def test_rows_are_coupled_only_where_the_batch_decides() -> None:
    """Beside labels every item stands alone, but where the classes' order is the batch's; SimCSE looks at all."""
    for name, info, options, coupled in (
        ("uld", CLASSIFYING, {}, False),
        ("multilevel_ot", CLASSIFYING, {}, False),
        ("multilevel_ot", CLASSIFYING, {"preset": "code"}, True),
        ("mined", CLASSIFYING, {}, False),
        ("mined", UNSUPERVISED, {}, True),
        ("cdm", UNSUPERVISED, {"alpha": 0}, False),
        ("dskd", REGRESSING, {}, False),
    ):
        assert make_method(name, info, **options).needs(info, [KNOWN]).coupled == coupled


SILENT = TeacherInfo("silent", 8, 3, hidden=6)
FLAT = TeacherInfo("flat", 8, classes=3)
REFUSED = [
    ("sft", UNSUPERVISED, KNOWN, {}, r"student: sft .*\btask\b.*simcse"),
    ("uld", UNSUPERVISED, KNOWN, {}, "student: uld .*classification task.*cosine, dskd, emo or distillmoe"),
    ("uld", REGRESSING, KNOWN, {}, "student: uld .*regression task.*cosine, dskd, emo or distillmoe"),
    ("uld", CLASSIFYING, SILENT, {}, "silent: uld .*distilvec finetune"),
    ("multilevel_ot", UNSUPERVISED, KNOWN, {}, "student: multilevel_ot .*classification task.*cosine, dskd"),
    ("multilevel_ot", REGRESSING, KNOWN, {}, "student: multilevel_ot .*regression task.*cosine, dskd"),
    ("mined", REGRESSING, KNOWN, {}, "student: mined .*regression task.*form: embedding"),
    ("mined", CLASSIFYING, SILENT, {}, "silent: mined .*distilvec finetune.*form: embedding"),
    ("mined", UNSUPERVISED, KNOWN, {"form": "logits"}, "student: mined .*classification task.*form: embedding"),
    ("mined", UNSUPERVISED, FLAT, {}, "flat: mined .*token states"),
    ("mined", StudentInfo("static", 5, None, 5), KNOWN, {}, "static: mined .*token states"),
    ("cdm", REGRESSING, KNOWN, {}, "student: cdm .*regression task.*form: embedding"),
    ("cdm", CLASSIFYING, replace(KNOWN, classes=7), {}, r"teacher: cdm .*\b3, .*\b7\b"),
    ("cdm", UNSUPERVISED, FLAT, {}, "flat: cdm .*token states"),
    ("dskd", CLASSIFYING, replace(KNOWN, classes=7), {}, r"teacher: dskd .*\b3, .*\b7\b.*Or take"),
    ("dskd", UNSUPERVISED, FLAT, {}, "flat: dskd .*token states"),
    (
        "dskd",
        REGRESSING,
        KNOWN,
        {"sentence_weight": 0, "token_weight": 0},
        "student: dskd .*sentence_weight and token_weight are 0",
    ),
]


@pytest.mark.parametrize(("name", "info", "teacher", "options", "message"), REFUSED)
def test_refusals_name_what_to_do_instead(name, info, teacher, options, message) -> None:
    method = METHODS[name](METHODS[name].Options(**options))
    with pytest.raises(DistilvecError, match=message):
        method.needs(info, [teacher])


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("cdm", ["token_weight", "sentence_weight"]),
        ("emo", ["ira_weight", "otis_weight"]),
    ],
)
def test_weights_that_are_all_0_are_refused_with_the_options(name: str, weights: list[str]) -> None:
    with pytest.raises(ValueError, match="nothing to distil"):
        resolve(name).Options(**dict.fromkeys(weights, 0))
    for left in weights:
        resolve(name).Options(**{weight: 0 for weight in weights if weight != left})


@pytest.mark.parametrize("name", ["uld", "multilevel_ot"])
def test_class_counts_may_differ_where_classes_are_sorted(name) -> None:
    method = METHODS[name](METHODS[name].Options())
    method.needs(CLASSIFYING, [replace(KNOWN, classes=7)])
    method.build(CLASSIFYING, [KNOWN], make_sample())
    step = make_step(views=1)
    step.signals.logits = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    assert total(run(method, step)).isfinite()


def test_sft_asks_teachers_for_nothing_and_adds_no_term() -> None:
    for info in (CLASSIFYING, REGRESSING):
        method = make_method("sft", info)
        assert method.needs(info, [KNOWN]) == Needs(sentence=False, states=False)
        assert run(method, make_step(views=1)) == {}


def test_a_missing_signal_is_named() -> None:
    method = make_method("uld", CLASSIFYING)
    step = make_step(views=1)
    step.signals.logits = None
    with pytest.raises(DistilvecError, match="class logits"):
        run(method, step)
