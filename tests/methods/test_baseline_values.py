"""The baselines' values: by hand, and against other implementations and plain loops."""

import math
from dataclasses import replace

import numpy as np
import ot
import pytest
import scipy.special
import scipy.stats
import torch
from tests.methods.baseline_cases import (
    CLASSIFYING,
    KNOWN,
    LAST,
    REGRESSING,
    TEACHER_LAST,
    UNSUPERVISED,
    Step,
    make_method,
    make_sample,
    make_step,
    mean,
    total,
)

from distilvec.methods.base import Method, Sample
from distilvec.methods.mse import MSE
from distilvec.methods.tokens import pairs
from distilvec.methods.tokens.cdm import average_partners
from distilvec.methods.tokens.class_logits import class_divergence
from distilvec.methods.tokens.dskd import ClassHead
from distilvec.methods.tokens.maps import unit_error
from distilvec.students.output import StudentOutput
from distilvec.teachers.signals import TeacherSignals


def logit_step(ours: list[list[float]], theirs: list[list[float]]):
    """Probabilities of each item -> a step with their logarithms as logits."""
    step = make_step(len(ours), views=1)
    step.student.logits = torch.tensor(ours).log()[None]
    step.signals.logits = torch.tensor(theirs).log()
    return step


def values(method, step) -> dict[str, list[float]]:
    terms = method(step.student, [step.signals], step.batch)
    return {name: term.values[0].tolist() for name, term in terms.items()}


def test_uld_by_hand() -> None:
    found = values(
        make_method("uld", CLASSIFYING),
        logit_step([[0.25, 0.75, 1e-30], [0.2, 0.3, 0.5]], [[0.5, 0.25, 0.25], [0.5, 0.2, 0.3]]),
    )
    assert found["uld"] == pytest.approx([0.5, 0.0], abs=1e-6)


def test_multilevel_ot_by_hand() -> None:
    step = logit_step([[0.25, 0.5, 0.25], [0.5, 0.2, 0.3]], [[0.25, 0.25, 0.5], [0.6, 0.3, 0.1]])
    found = values(make_method("multilevel_ot", CLASSIFYING), step)
    assert found["absolute"] == pytest.approx([0.0, 0.2], abs=1e-6)
    expected = 0.6 * math.log(0.6 / 0.5) + 0.3 * math.log(0.3 / 0.3) + 0.1 * math.log(0.1 / 0.2)
    assert found["logarithmic"] == pytest.approx([0.0, expected], abs=1e-6)
    found = values(make_method("multilevel_ot", CLASSIFYING, top_k=2), step)
    assert found["absolute"] == pytest.approx([0.0, 2 * abs(0.5 / 0.8 - 0.6 / 0.9)], abs=1e-6)


def test_multilevel_ot_orders_by_the_batch_where_asked() -> None:
    """Class 2 leads over the batch, though item 1's own best is class 0; the deviation takes the scale away."""
    step = logit_step([[0.1, 0.2, 0.7], [0.5, 0.2, 0.3]], [[0.7, 0.2, 0.1], [0.4, 0.5, 0.1]])
    found = values(make_method("multilevel_ot", CLASSIFYING, order="batch"), step)
    # student order 2, 0, 1; teacher order 0, 1, 2
    assert found["absolute"] == pytest.approx([0.2, 0.1 + 0.0 + 0.1], abs=1e-6)
    method = make_method("multilevel_ot", CLASSIFYING, divide_by_deviation=True)
    step.signals.logits = 7 * step.student.logits[0]
    assert values(method, step)["absolute"] == pytest.approx([0, 0], abs=1e-3)


def test_the_absolute_cost_is_optimal_transport_between_ordered_entries() -> None:
    """Sum |p - q| over ranks is the exact transport with cost 2 between different ranks and 0 on the same."""
    step = make_step(views=1)
    ours = np.sort(step.student.logits[0].detach().double().softmax(-1).numpy(), -1)[:, ::-1]
    theirs = np.sort(step.signals.logits.double().softmax(-1).numpy(), -1)[:, ::-1]
    expected = [
        ot.emd2(a / a.sum(), b / b.sum(), 2 * (1 - np.eye(3))) for a, b in zip(ours.copy(), theirs.copy(), strict=True)
    ]
    assert values(make_method("multilevel_ot", CLASSIFYING), step)["absolute"] == pytest.approx(expected, abs=1e-5)
    assert values(make_method("uld", CLASSIFYING), step)["uld"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["mined", "cdm"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_kl_of_the_classes_against_scipy(name, temperature) -> None:
    step = make_step(views=1)
    p = scipy.special.softmax(step.signals.logits.double().numpy() / temperature, -1)
    q = scipy.special.softmax(step.student.logits[0].detach().double().numpy() / temperature, -1)
    found = values(make_method(name, CLASSIFYING, temperature=temperature), step)
    assert found[name] == pytest.approx(list(scipy.stats.entropy(p, q, axis=-1)), abs=1e-6)


def test_divergence_keeps_the_teachers_best_classes() -> None:
    student, teacher = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[0.0, math.log(3), -1.0]])
    kept = class_divergence(student, teacher, 1.0, top_k=2).item()
    log_q = student[0, 0].log_softmax(-1)
    expected = 0.25 * (math.log(0.25) - log_q[0]) + 0.75 * (math.log(0.75) - log_q[1])
    assert kept == pytest.approx(float(expected), abs=1e-6)
    assert class_divergence(student, teacher, 1.0, top_k=9).equal(class_divergence(student, teacher, 1.0))


@pytest.mark.parametrize("name", ["uld", "multilevel_ot", "mined", "cdm"])
def test_a_perfect_student_is_at_the_minimum(name) -> None:
    method, step = make_method(name, CLASSIFYING), make_step(views=1)
    logits = step.signals.logits[None].clone().requires_grad_()
    step.student.logits = logits
    value = total(method(step.student, [step.signals], step.batch))
    assert value.item() == pytest.approx(0, abs=1e-6)
    for seed in range(3):
        step.student.logits = logits.detach() + 0.3 * torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
        assert total(method(step.student, [step.signals], step.batch)) > 1e-4


@pytest.mark.parametrize("name", ["uld", "multilevel_ot"])
def test_which_class_is_which_does_not_matter_where_classes_are_sorted(name) -> None:
    method, step = make_method(name, CLASSIFYING), make_step(views=1)
    before = values(method, step)
    step.signals.logits = step.signals.logits[:, [2, 0, 1]]
    for key, found in values(method, step).items():
        assert found == pytest.approx(before[key], abs=1e-6)


def test_unit_error_is_twice_the_cosine_distance_or_a_share_of_it() -> None:
    x, y = torch.tensor([3.0, 0.0]), torch.tensor([[1.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    assert unit_error(x, y, "distance").tolist() == pytest.approx([2 - math.sqrt(2), 2, 1])
    assert unit_error(x, y, "element").tolist() == pytest.approx([1 - math.sqrt(0.5), 1, 0.5])


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


def error(x: np.ndarray, y: np.ndarray, kind: str) -> float:
    squares = (unit(x) - unit(y)) ** 2
    return float(squares.sum() if kind == "distance" else squares.mean())


def states_of(step, standardize) -> tuple[np.ndarray, np.ndarray]:
    """Student [V, B, S, d] and standardised teacher [B, T, D] states in float64."""
    ours = step.student.tokens[LAST].detach().double().numpy()
    return ours, standardize(step.signals.tokens[TEACHER_LAST]).double().numpy()


def cells(step, mode: str, row: int) -> list[tuple[int, int]]:
    return [(i, j) for i, j in step.signals.alignments[mode][row].tolist() if i >= 0]


@pytest.mark.parametrize("preset", ["sound", "paper", "code"])
def test_cdm_tokens_against_a_plain_loop(preset) -> None:
    method, step = make_method("cdm", UNSUPERVISED, preset=preset), make_step()
    ours, theirs = states_of(step, method.standardize[0])
    weight = method.maps[0].weight.detach().double().numpy()
    term = method(step.student, [step.signals], step.batch)["tokens"]
    kind = method.options.error
    for view in range(2):
        for row in range(6):
            partners: dict[int, list[int]] = {}
            for i, j in cells(step, "strict" if preset == "code" else "full", row):
                partners.setdefault(i, []).append(j)
            errors = [
                error(weight @ ours[view, row, i], theirs[row, js].mean(0), kind) for i, js in sorted(partners.items())
            ]
            assert bool(term.counted[view, row]) == bool(errors)
            if errors:
                assert term.values[view, row].item() == pytest.approx(np.mean(errors), abs=1e-5)
    assert not term.counted[:, 1].any() or preset != "code"


def test_partners_are_averaged_and_padded_pairs_left_out() -> None:
    states = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]], [[7.0, 7.0], [0.0, 1.0], [0.0, 0.0]]])
    cells = torch.tensor([[[0, 0], [0, 1], [1, 2]], [[0, 1], [-1, -1], [-1, -1]]])
    signals = TeacherSignals(torch.tensor([True, True]), alignments={"full": cells})
    found, real = average_partners(states, pairs.pairs(signals, "full"), 3)
    assert found.tolist() == [[[2, 1], [5, 5], [0, 0]], [[0, 1], [0, 0], [0, 0]]]
    assert real.tolist() == [[True, True, False], [True, False, False]]


def test_mined_tokens_against_a_plain_loop_and_items_without_pairs() -> None:
    method, step = make_method("mined", UNSUPERVISED), make_step()
    ours, theirs = states_of(step, method.standardize[0])
    weight = method.maps[0].weight.detach().double().numpy()
    term = method(step.student, [step.signals], step.batch)["mined"]
    assert not term.counted[:, 1].any()
    assert term.counted[:, 0].all()
    for view in range(2):
        for row in (0, 2, 3, 4, 5):
            pairs = cells(step, "strict", row)
            distances = [1 - unit(weight @ ours[view, row, i]) @ unit(theirs[row, j]) for i, j in pairs]
            if pairs:
                assert term.values[view, row].item() == pytest.approx(np.mean(distances), abs=1e-5)


@pytest.mark.parametrize("preset", ["sound", "paper", "code"])
def test_dskd_tokens_against_a_plain_loop(preset) -> None:
    method, step = make_method("dskd", UNSUPERVISED, preset=preset), make_step()
    bridge, options = method.bridges[0], method.options
    ours, theirs = states_of(step, bridge.standardize)
    query, key, there, back = (
        module.weight.detach().double().numpy() for module in (bridge.query, bridge.key, bridge.there, bridge.back)
    )
    term = method(step.student, [step.signals], step.batch)["tokens"]
    student, signals = step.student, step.signals
    assert query.shape == key.shape[:1] + (4,)
    for view in range(2):
        for row in range(6):
            rows, columns = student.content[row].nonzero()[:, 0], signals.content[row].nonzero()[:, 0]
            seen, seen_columns = (
                (student.mask[row].nonzero()[:, 0], signals.mask[row].nonzero()[:, 0])
                if options.special_tokens
                else (rows, columns)
            )

            def score(i: int, j: int, view: int = view, row: int = row) -> float:
                q, k = query @ ours[view, row, i], key @ theirs[row, j]
                if options.attention == "cosine":
                    return unit(q) @ unit(k) / 0.1
                return q @ k / math.sqrt(len(q))

            errors_there = []
            for j in columns:
                b = scipy.special.softmax([score(i, j) for i in seen])
                read = sum(b_i * (there @ ours[view, row, i]) for b_i, i in zip(b, seen, strict=True))
                errors_there.append(error(read, theirs[row, j], options.error))
            errors_here = []
            for i in rows:
                a = scipy.special.softmax([score(i, j) for j in seen_columns])
                target = sum(a_j * (back @ theirs[row, j]) for a_j, j in zip(a, seen_columns, strict=True))
                errors_here.append(error(ours[view, row, i], target, options.error))
            expected = np.mean(errors_there) + np.mean(errors_here)
            assert term.values[view, row].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["cdm", "dskd"])
def test_sentence_terms_are_the_unit_error_in_the_teachers_space(name) -> None:
    """And for dskd in the student's as well; the teacher's space alone is what the mse method computes times D."""
    options = {"form": "embedding"} if name == "cdm" else {}
    method, step = make_method(name, REGRESSING, **options), make_step(views=1)
    reference = MSE()
    reference.build(REGRESSING, [KNOWN], make_sample())
    torch.testing.assert_close(method.teacher_map().weight, reference.heads[0].weight)
    expected = reference(step.student, [step.signals], step.batch)["mse"].values * KNOWN.width
    found = method(step.student, [step.signals], step.batch)["sentence"].values
    if name == "dskd":
        expected = expected + unit_error(step.student.embedding, method.backs[0](step.signals.sentence), "distance")
    torch.testing.assert_close(found, expected)


def test_dskd_reads_projected_vectors_with_the_teachers_own_head() -> None:
    """A linear class head is recovered from vectors and logits; then a perfect projection costs nothing."""
    generator = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(3, 8, generator=generator), torch.randn(3, generator=generator)
    sample = make_sample()
    for _, (signals,) in sample.batches:
        signals.logits = signals.sentence @ weight.T + bias
    method = make_method("dskd", CLASSIFYING, sentence_weight=0, token_weight=0)
    method.build(CLASSIFYING, [KNOWN], sample)
    head = method.class_heads["0"]
    torch.testing.assert_close(head.weight, weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(head.bias, bias, rtol=1e-3, atol=1e-3)
    assert head.explained > 0.999
    step = make_step(views=1)
    step.signals.sentence = method.heads[0](step.student.embedding[0]).detach()
    step.signals.logits = step.signals.sentence @ weight.T + bias
    terms = method(step.student, [step.signals], step.batch)
    assert terms["teacher_space"].values.abs().max() < 1e-4
    assert not any(parameter is head.weight for parameter in method.parameters())


def test_dskd_says_how_well_a_teachers_class_head_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """Logits that have nothing to do with the vectors: no linear head explains them, and that is a warning."""
    sample, generator = make_sample(), torch.Generator().manual_seed(9)
    for _, (signals,) in sample.batches:
        signals.logits = torch.randn(signals.logits.shape, generator=generator)
    method = make_method("dskd", CLASSIFYING, sentence_weight=0, token_weight=0)
    caplog.clear()
    method.build(CLASSIFYING, [KNOWN], sample)
    assert method.class_heads["0"].explained < 0.9
    assert [record.levelname for record in caplog.records if "class head" in record.getMessage()] == ["WARNING"]


@pytest.mark.parametrize("width", [64, 192])
def test_dskd_reads_a_wide_teachers_class_head_as_well_as_its_rows_allow(width: int) -> None:
    """The teacher is as wide as there are rows, or wider, and a final `Normalize` stands between head and vectors: what
    is said of the head is what it is worth on other texts, and it is no worse than guessing the mean there."""
    generator = torch.Generator().manual_seed(3)
    states = torch.nn.functional.normalize(torch.randn(264, width, generator=generator), dim=-1)
    logits = states * (1 + 0.05 * torch.randn(264, 1, generator=generator)) @ torch.randn(width, 3, generator=generator)
    given = TeacherSignals(torch.ones(64).bool(), sentence=states[:64], logits=logits[:64])
    head = ClassHead(Sample(make_step().student, [], [(make_step().student, [given])]), 0)
    missed = (head(states[64:]) - logits[64:]).square().sum() / (logits[64:] - logits[64:].mean(0)).square().sum()
    assert missed < 1
    assert head.explained == pytest.approx(1 - float(missed), abs=0.15)


def test_dskd_follows_the_teacher_in_the_students_space_only_where_it_is_right() -> None:
    method, step = make_method("dskd", CLASSIFYING), make_step(views=1)
    step.batch.labels = step.signals.logits.argmax(-1).clone()
    step.batch.labels[2] = (step.batch.labels[2] + 1) % 3
    term = method(step.student, [step.signals], step.batch)["student_space"]
    assert term.counted[0].tolist() == [True, True, False, True, True, True]
    expected = class_divergence(step.student.logits, step.signals.logits, 2.0)
    torch.testing.assert_close(term.values[term.counted], expected[term.counted])
    step.batch.labels = None
    assert method(step.student, [step.signals], step.batch)["student_space"].counted.all()


def linear_world(width: int):
    """A sample and a step in which the teacher's states of pairs are one linear image of the student's."""
    image = torch.randn(4, width, generator=torch.Generator().manual_seed(2))

    def mapped(student: StudentOutput, signals: TeacherSignals) -> None:
        states = torch.zeros(*signals.mask.shape, width)
        for row, found in enumerate(signals.alignments["strict"].tolist()):
            for i, j in found:
                if i >= 0:
                    states[row, j] = student.tokens[LAST][0, row, i].detach() @ image
        signals.tokens = {TEACHER_LAST: states}

    sample, step = make_sample(), make_step(views=1)
    for student, (signals,) in sample.batches:
        mapped(student, signals)
    mapped(step.student, step.signals)
    return sample, step


def test_maps_start_where_the_pairs_already_agree() -> None:
    """At the ridge start pairs cost almost nothing, at a random one much."""
    sample, step = linear_world(6)
    options = {"form": "embedding", "standardize": False}
    ridge = make_method("mined", REGRESSING, **options)
    random = make_method("mined", REGRESSING, **options, init="random")
    for method in (ridge, random):
        method.build(REGRESSING, [KNOWN], sample)
    found = [mean(one(step.student, [step.signals], step.batch)["mined"]).item() for one in (ridge, random)]
    assert found[0] < 1e-3 < 0.1 < found[1]


@pytest.mark.parametrize("hidden", [3, 4, 6])
def test_cross_model_attention_starts_at_the_partner(hidden) -> None:
    """Whichever side is narrower, the ridge start gives a pair the cosine 1, the most that there is."""
    sample, step = linear_world(hidden)
    method = make_method("dskd", REGRESSING, sentence_weight=0, standardize=False)
    method.build(REGRESSING, [replace(KNOWN, hidden=hidden)], sample)
    bridge = method.bridges[0]
    scores = bridge._scores(step.student.tokens[LAST], step.signals.tokens[TEACHER_LAST])
    found = pairs.pairs(step.signals, "strict")
    row = torch.arange(6)[:, None].expand_as(found.student)[found.real]
    cosines = scores[0, row, found.student[found.real], found.teacher[found.real]] * 0.1
    assert len(cosines) > 6
    assert cosines.min() > 0.98


def test_absent_items_have_no_say_in_the_order_of_the_classes() -> None:
    method = make_method("multilevel_ot", CLASSIFYING, order="batch")
    step = logit_step([[0.1, 0.2, 0.7], [0.98, 0.01, 0.01]], [[0.7, 0.2, 0.1], [0.01, 0.98, 0.01]])
    step.signals.present = torch.tensor([True, False])
    assert values(method, step)["absolute"] == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("moves", [False, True])
def test_targets_in_the_students_space_are_trained_only_where_asked(moves) -> None:
    """A fixed target neither learns nor pulls: the student's side alone has the gradient of that direction."""
    target = "moving" if moves else "fixed"
    method = make_method("dskd", REGRESSING, sentence_target=target, token_target=target)
    trained = {name.split(".")[0] + "." + name.split(".")[-2] for name, _ in method.named_parameters()}
    assert ("backs.0" in trained, "bridges.back" in trained) == (moves, moves)
    step = make_step(views=1)
    step.signals.sentence.requires_grad_()
    unit_error(step.student.embedding, method.backs[0](step.signals.sentence), "distance").sum().backward()
    assert (method.backs[0].weight.grad is not None) == moves


def test_a_fixed_target_sends_no_gradient_through_the_attention() -> None:
    """With one content token on the student's side the other direction's attention is constant."""
    step = make_step(views=1)
    step.student.content = step.student.content & (step.student.content.cumsum(-1) == 1)
    for target, moves in (("fixed", False), ("moving", True)):
        method = make_method("dskd", REGRESSING, sentence_weight=0, token_target=target)
        total(method(step.student, [step.signals], step.batch)).backward()
        assert bool(method.bridges[0].query.weight.grad.abs().max() > 1e-6) == moves


def perfect_step(method: Method) -> Step:
    """A step of equal tokens on both sides in which the teacher says what the method's maps make of the student."""
    step = make_step(views=1)
    own, signals = step.student.tokens[LAST].detach(), step.signals
    signals.mask, signals.content = step.student.mask, step.student.content
    places = [[(i, i) for i in range(len(row)) if row[i]] for row in signals.content]
    longest = max(map(len, places))
    signals.alignments = dict.fromkeys(
        ("full", "strict"), torch.tensor([[*row, *[(-1, -1)] * (longest - len(row))] for row in places])
    )
    if len(method.maps):
        signals.tokens[TEACHER_LAST] = method.maps[0](own[0]).detach()
    if getattr(method, "heads", None):
        signals.sentence = method.heads[0](step.student.embedding[0]).detach()
    return step


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mined", {"form": "embedding", "standardize": False}),
        ("cdm", {"form": "embedding", "standardize": False}),
        ("cdm", {"form": "embedding", "standardize": False, "aggregate": "strict"}),
        ("dskd", {"token_weight": 0}),
    ],
)
def test_a_student_that_the_maps_take_onto_the_teacher_is_at_the_minimum_on_states(name, options) -> None:
    method = make_method(name, REGRESSING, **options)
    if name == "dskd":  # there and back again
        with torch.no_grad():
            there = torch.linalg.qr(torch.randn(8, 5, generator=torch.Generator().manual_seed(1)))[0]
            method.heads[0].weight.copy_(there)
            method.backs[0].weight.copy_(there.T)
    step = perfect_step(method)
    assert total(method(step.student, [step.signals], step.batch)).item() == pytest.approx(0, abs=1e-6)
    own, embedding = step.student.tokens[LAST].detach(), step.student.embedding.detach()
    for seed in range(3):
        noise = torch.Generator().manual_seed(seed)
        step.student.tokens[LAST] = own + 0.3 * torch.randn(own.shape, generator=noise)
        step.student.embedding = embedding + 0.3 * torch.randn(embedding.shape, generator=noise)
        assert total(method(step.student, [step.signals], step.batch)) > 1e-4
