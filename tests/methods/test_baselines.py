"""What METHODS section 9 asks of the cross-tokenizer baselines, in every form."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.methods.baseline_cases import (
    CLASSIFYING,
    KNOWN,
    LAST,
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
from distilvec.students.output import StudentInfo
from distilvec.teachers.signals import TeacherInfo

CASES = [
    ("uld", CLASSIFYING, {}),
    ("uld", CLASSIFYING, {"preset": "code", "temperature": 2.0}),
    ("multilevel_ot", CLASSIFYING, {}),
    ("multilevel_ot", CLASSIFYING, {"preset": "paper", "top_k": 2}),
    ("multilevel_ot", CLASSIFYING, {"preset": "code"}),
    ("mined", CLASSIFYING, {}),
    ("mined", CLASSIFYING, {"preset": "paper", "top_k": 2}),
    ("mined", UNSUPERVISED, {}),
    ("mined", UNSUPERVISED, {"preset": "paper"}),
    ("mined", REGRESSING, {"form": "embedding"}),
    ("cdm", CLASSIFYING, {}),
    ("cdm", UNSUPERVISED, {}),
    ("cdm", UNSUPERVISED, {"preset": "paper"}),
    ("cdm", UNSUPERVISED, {"preset": "code"}),
    ("cdm", UNSUPERVISED, {"alpha": 0, "token_weight": 0}),
    ("cdm", CLASSIFYING, {"form": "embedding"}),
    ("dskd", CLASSIFYING, {}),
    ("dskd", CLASSIFYING, {"sentence_weight": 0, "token_weight": 0}),
    ("dskd", UNSUPERVISED, {}),
    ("dskd", UNSUPERVISED, {"preset": "paper"}),
    ("dskd", UNSUPERVISED, {"preset": "code"}),
    ("dskd", UNSUPERVISED, {"alpha": 0, "sentence_weight": 0}),
    ("dskd", REGRESSING, {"token_weight": 0}),
]


def kind(info: StudentInfo) -> str:
    return "regression" if info.regression else "classes" if info.classes else "alone"


def over(cases: list) -> pytest.MarkDecorator:
    names = ["-".join(map(str, (name, kind(info), *options.values()))) for name, info, options in cases]
    return pytest.mark.parametrize(("name", "info", "options"), cases, ids=names)


BY_BATCH = ("multilevel_ot", CLASSIFYING, {"preset": "code"})
EVERY = over(CASES)
PER_ITEM = over([case for case in CASES if case != BY_BATCH])


def step_of(method, info, **changes):
    return make_step(views=method.needs(info, [KNOWN]).views, **changes)


def run(method, step, teachers=1):
    return method(step.student, [step.signals] * teachers, step.batch)


def about_teacher(terms):
    return {name: term for name, term in terms.items() if name != "simcse"}


@EVERY
def test_gradients_reach_the_student_and_every_head(name, info, options) -> None:
    method = make_method(name, info, **options)
    step = step_of(method, info)
    terms = run(method, step)
    total(terms).backward()
    reached = [leaf for leaf in step.leaves() if leaf.grad is not None]
    assert reached
    for tensor in (*reached, *method.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().sum() > 0
    needs = method.needs(info, [KNOWN])
    assert (step.student.logits.grad is not None) == any(needs.logits)
    assert any(leaf.grad is not None for leaf in step.leaves()[:2]) == needs.states


@EVERY
def test_terms_keep_the_contract(name, info, options) -> None:
    method = make_method(name, info, **options)
    needs = method.needs(info, [KNOWN])
    step = make_step(views=needs.views)
    for term_name, term in run(method, step).items():
        assert term.values.shape == ((6,) if term_name == "simcse" else (needs.views, 6))
        assert term.counted is None or term.counted.shape == term.values.shape
        assert term.values.dtype == torch.float32
        assert term.weight > 0
    assert needs.coupled == ("simcse" in run(method, step) or (name, info, options) == BY_BATCH)


@EVERY
def test_only_what_is_asked_for_is_used(name, info, options) -> None:
    """A step in which everything else is missing gives the same."""
    method = make_method(name, info, **options)
    needs = method.needs(info, [KNOWN])
    step = make_step(views=needs.views)
    full = run(method, step)
    modes = needs.alignment[0].split("+") if needs.alignment else ()
    step.signals.alignments = {mode: step.signals.alignments[mode] for mode in modes}
    if not needs.sentence:
        step.signals.sentence = None
    if not any(needs.logits):
        step.signals.logits = step.student.logits = None
    if not needs.tokens.student:
        step.student.tokens, step.signals.tokens = {}, {}
        step.student.mask = step.student.content = step.signals.mask = step.signals.content = None
    for key, term in run(method, step).items():
        torch.testing.assert_close(term.values, full[key].values, rtol=0, atol=0)


@PER_ITEM
def test_neighbours_do_not_matter_to_terms_about_the_teacher(name, info, options) -> None:
    method = make_method(name, info, **options)
    step = step_of(method, info)
    together = about_teacher(run(method, step))
    for row in range(6):
        for key, term in about_teacher(run(method, step.only(row))).items():
            torch.testing.assert_close(term.values[:, 0], together[key].values[:, row], rtol=1e-6, atol=1e-6)
            assert bool(term.counted[0, 0]) == bool(together[key].counted[0, row])


@EVERY
def test_padding_does_not_matter(name, info, options) -> None:
    method = make_method(name, info, **options)
    step = step_of(method, info)
    before, after = run(method, step), run(method, step.padded(2, 3))
    for key, term in before.items():
        torch.testing.assert_close(after[key].values, term.values, rtol=1e-6, atol=1e-6)


@EVERY
def test_absent_items_contribute_nothing(name, info, options) -> None:
    method = make_method(name, info, **options)

    def absent(rows: list[int], garbage: float):
        step = step_of(method, info)
        signals = step.signals
        signals.present = torch.tensor([row not in rows for row in range(6)])
        gone = ~signals.present
        signals.sentence = signals.sentence.masked_fill(gone[:, None], garbage)
        signals.logits = signals.logits.masked_fill(gone[:, None], garbage)
        states = signals.tokens[TEACHER_LAST].masked_fill(gone[:, None, None], garbage)
        signals.tokens = {TEACHER_LAST: states}
        terms = about_teacher(run(method, step))
        total(terms).backward()
        return terms, [leaf.grad for leaf in step.leaves() if leaf.grad is not None]

    first, gradients = absent([3], 0.0)
    second, _ = absent([3], 5.0)
    for key, term in first.items():
        torch.testing.assert_close(term.values, second[key].values, rtol=0, atol=0)
        assert not term.counted[:, 3].any()
        assert not term.values[:, 3].any()
    assert not any(gradient[:, 3].any() for gradient in gradients)
    terms, gradients = absent([0, 1, 2, 3, 4, 5], 0.0)
    assert total(terms).item() == 0
    assert not any(gradient.any() for gradient in gradients)


@EVERY
@pytest.mark.parametrize("case", ["zero", "huge", "one item", "no content"])
def test_finite_at_degenerate_inputs(name, info, options, case) -> None:
    method = make_method(name, info, **options)
    step = step_of(method, info, items=1 if case == "one item" else 6)
    student, signals = step.student, step.signals
    if case in {"zero", "huge"}:
        factor = 0.0 if case == "zero" else 1e4
        student.embedding, student.logits = student.embedding * factor, student.logits * factor
        student.tokens = {LAST: student.tokens[LAST] * factor}
        signals.sentence, signals.logits = signals.sentence * factor, signals.logits * factor
        signals.tokens = {TEACHER_LAST: signals.tokens[TEACHER_LAST] * factor}
    if case == "no content":
        student.content, signals.content = student.content & False, signals.content & False
        signals.alignments = {mode: torch.full_like(found, -1) for mode, found in signals.alignments.items()}
    terms = run(method, step)
    value = total(terms)
    value.backward()
    assert value.isfinite()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in method.parameters())
    if case == "no content":
        aligned = {"tokens", "mined"} & set(terms) if method.needs(info, [KNOWN]).tokens.student else set()
        assert not any(terms[key].counted.any() for key in aligned)


@EVERY
def test_state_survives_a_strict_load(name, info, options) -> None:
    method, other = make_method(name, info, **options), make_method(name, info, **options)
    step = step_of(method, info)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.add_(1)
    other.load_state_dict(copy.deepcopy(method.state_dict()), strict=True)
    for key, term in run(method, step).items():
        torch.testing.assert_close(run(other, step)[key].values, term.values, rtol=0, atol=0)


@EVERY
def test_a_teacher_twice_is_the_teacher_once(name, info, options) -> None:
    single, double = make_method(name, info, **options), make_method(name, info, teachers=2, **options)
    state = single.state_dict()
    rename = {key: next(own for own in state if own == key.replace(".1.", ".0.", 1)) for key in double.state_dict()}
    double.load_state_dict({key: state[own] for key, own in rename.items()})
    step = step_of(single, info)
    torch.testing.assert_close(total(run(double, step, 2)), total(run(single, step)), rtol=1e-6, atol=1e-6)
    assert set(run(double, step, 2)) >= {f"{key}:teacher1" for key in about_teacher(run(single, step))}


@over([case for case in CASES if case[0] != "sft"])
def test_teachers_count_by_their_weights(name, info, options) -> None:
    single, double = make_method(name, info, **options), make_method(name, info, 2, (1.0, 0.0), **options)
    double.load_state_dict(single.state_dict(), strict=False)  # random starts of the first teacher's maps
    step, other = step_of(single, info), step_of(single, info, seed=7).signals
    terms = run(single, step)
    double_terms = double(step.student, [step.signals, other], step.batch)
    torch.testing.assert_close(total(double_terms), total(terms), rtol=1e-6, atol=1e-6)
    weighted = run(make_method(name, info, 2, (3.0, 1.0), **options), step, 2)
    for key, term in about_teacher(terms).items():
        assert weighted[f"{key}:teacher0"].weight == pytest.approx(0.75 * term.weight)
        assert weighted[f"{key}:teacher1"].weight == pytest.approx(0.25 * term.weight)


@EVERY
def test_autocast_agrees_loosely(name, info, options) -> None:
    method = make_method(name, info, **options)
    step = step_of(method, info)
    exact = run(method, step)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loose = run(method, step)
    for key, term in exact.items():
        assert loose[key].values.dtype == torch.float32
        torch.testing.assert_close(loose[key].values, term.values, rtol=0.08, atol=0.05)


@EVERY
def test_half_precision_signals_of_a_store_are_taken(name, info, options) -> None:
    method = make_method(name, info, **options)
    step = step_of(method, info)
    exact = run(method, step)
    signals = step.signals
    signals.logits = signals.logits.half()
    signals.tokens = {TEACHER_LAST: signals.tokens[TEACHER_LAST].half()}
    for key, term in run(method, step).items():
        torch.testing.assert_close(term.values, exact[key].values, rtol=5e-3, atol=5e-3)


def test_every_option_names_its_source_and_every_preset_is_valid() -> None:
    for name, cls in METHODS.items():
        assert cls.name == name
        assert cls.summary
        assert cls.paper
        for field, found in cls.Options.model_fields.items():
            if field != "preset":
                assert any(mark in found.description for mark in ("[P", "[C", "[S", ", C]", ", S]")), field
        for preset in ("paper", "code", "sound"):
            cls.Options(preset=preset)


SILENT = TeacherInfo("silent", 8, 3, hidden=6)
FLAT = TeacherInfo("flat", 8, classes=3)
REFUSED = [
    ("sft", UNSUPERVISED, KNOWN, {}, "there is no task.*simcse"),
    ("uld", UNSUPERVISED, KNOWN, {}, "without a classification task.*cosine, dskd, emo or distillmoe"),
    ("uld", REGRESSING, KNOWN, {}, "a regression task has none.*cosine, dskd, emo or distillmoe"),
    ("uld", CLASSIFYING, SILENT, {}, "silent: .*this teacher gives none.*distilvec finetune"),
    ("multilevel_ot", UNSUPERVISED, KNOWN, {}, "without a classification task.*cosine, dskd"),
    ("multilevel_ot", REGRESSING, KNOWN, {}, "a regression task has none.*cosine, dskd"),
    ("mined", REGRESSING, KNOWN, {}, "a regression task has none.*form: embedding"),
    ("mined", CLASSIFYING, SILENT, {}, "gives none.*finetune.*form: embedding"),
    ("mined", UNSUPERVISED, KNOWN, {"form": "logits"}, "without a classification task"),
    ("mined", UNSUPERVISED, FLAT, {}, "flat: .*token states"),
    ("mined", StudentInfo("static", 5, None, 5), KNOWN, {}, "static: .*token states"),
    ("cdm", REGRESSING, KNOWN, {}, "a regression task has none.*form: embedding"),
    ("cdm", CLASSIFYING, replace(KNOWN, classes=7), {}, "the task has 3, this teacher 7"),
    ("cdm", UNSUPERVISED, FLAT, {}, "flat: .*token states"),
    ("dskd", CLASSIFYING, replace(KNOWN, classes=7), {}, "the task has 3, this teacher 7.*logit_weight: 0"),
    ("dskd", UNSUPERVISED, FLAT, {}, "flat: .*token states"),
    ("dskd", REGRESSING, KNOWN, {"sentence_weight": 0, "token_weight": 0}, "nothing to distil"),
]


@pytest.mark.parametrize(("name", "info", "teacher", "options", "message"), REFUSED)
def test_refusals_name_what_to_do_instead(name, info, teacher, options, message) -> None:
    method = METHODS[name](METHODS[name].Options(**options))
    with pytest.raises(DistilvecError, match=message):
        method.needs(info, [teacher])


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
        needs = method.needs(info, [KNOWN])
        assert (needs.views, needs.sentence, needs.logits, needs.coupled, needs.states) == (1, False, (), False, False)
        assert run(method, make_step(views=1)) == {}


def test_a_missing_signal_is_named() -> None:
    method = make_method("uld", CLASSIFYING)
    step = make_step(views=1)
    step.signals.logits = None
    with pytest.raises(DistilvecError, match="class logits of the teacher"):
        run(method, step)
