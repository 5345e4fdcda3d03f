"""What METHODS section 9 asks of every method."""

import copy
import re

import pytest
import torch

from distilvec.methods.base import Method
from distilvec.methods.table import TABLE
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherSignals

CASES = [
    ("talas", None, {}),
    ("talas", None, {"preset": "code"}),
    ("talas", None, {"preset": "paper", "guide": "detached", "layers": 3}),
    ("talas", None, {"simcse_weight": 0, "lasd_weight": 0, "anchored_layers": 3}),
    ("talas", [4], {}),
    ("simcse", None, {}),
    ("simcse", None, {"preset": "code"}),
    ("cosine", None, {}),
    ("cosine", [4, 6], {"init": "random"}),
    ("mse", None, {}),
    ("mse", None, {"vectors": "raw"}),
    ("relational", None, {}),
    ("relational", None, {"form": "cross_entropy"}),
    ("leaf", None, {}),
    ("leaf", None, {"preset": "paper"}),
    ("jasper_stella", None, {}),
    ("jasper_stella", None, {"prefixes": [5], "pairs": 50}),
    ("distilcse", None, {"queue": 24}),
    ("distilcse", None, {"queue": 0}),
    ("distilcse", None, {"preset": "code", "queue": 8}),
    ("distillcse", None, {}),
    ("distillcse", None, {"preset": "code"}),
    ("distillcse", [6], {"group_p": None}),
    ("gaussian", None, {"width": 16}),
    ("gaussian", None, {"preset": "code"}),
    ("gaussian", [4], {"covariance": "triangular", "components": 2, "width": 8}),
    ("gaussian", None, {"beta_nll": 0.5, "teacher_weight": "per_dim", "width": 16}),
    ("multi_mse", None, {"width": 16}),
    ("multi_cosine", None, {"width": 16}),
]
KERNELS = {"gaussian", "multi_mse", "multi_cosine"}


def over(cases: list) -> pytest.MarkDecorator:
    names = ["-".join(map(str, (name, dims or "", *options.values()))) for name, dims, options in cases]
    return pytest.mark.parametrize(("name", "dims", "options"), cases, ids=names)


EVERY = over(CASES)
PER_ITEM = over([case for case in CASES if case[0] in {"cosine", "mse", "leaf", *KERNELS} or "lasd_weight" in case[2]])
CONTRASTIVE = over(
    [
        case
        for case in CASES
        if case[0] in {"talas", "simcse", "distilcse", "distillcse"} and "lasd_weight" not in case[2]
    ]
)
# distillcse averages the teachers' cosines; kernels of two teachers lie in one stack, test_gaussian doubles them.
ONE_TERM_PER_TEACHER = over([case for case in CASES if case[0] not in {"distillcse", *KERNELS}])
TEACHERLESS = {"simcse", "lasd"}


def about_teacher(term_name: str) -> bool:
    return term_name.split("@", maxsplit=1)[0].split(":", maxsplit=1)[0] not in TEACHERLESS


#: Methods that look at tokens or logits: test_emo, test_distillmoe, test_token_models and test_baselines ask the same
#: of them, with signals of that kind; test_mnrl does with pairs.
ELSEWHERE = {"emo", "distillmoe", "sft", "uld", "mined", "dskd", "multilevel_ot", "cdm", "mnrl"}


def test_every_method_of_the_table_is_in_the_suite() -> None:
    assert {name for name, _, _ in CASES} | ELSEWHERE == set(TABLE)


@EVERY
def test_gradients_reach_the_student_and_every_head(world, loss, name, dims, options) -> None:
    method = world.method(name, dims, **options)
    for rows in (range(8), range(8, 16)):
        loss(world.step(method, rows)).backward()
    for parameter in (*world.encoder.parameters(), *method.parameters()):
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0


@EVERY
def test_terms_have_the_shapes_of_the_contract(world, name, dims, options) -> None:
    method = world.method(name, dims, **options)
    for term_name, term in world.step(method).items():
        assert term.values.shape in {(8,), (1, 8), (2, 8), ()}, term_name
        assert term.values.dtype == torch.float32
        assert term.counted is None or term.counted.shape == term.values.shape
        assert term.weight >= 0
        assert torch.isfinite(term.values).all()


@EVERY
def test_absent_items_contribute_nothing(two_teachers, loss, name, dims, options) -> None:
    """What stands in an absent item's row is irrelevant, and absent teachers give no gradient at all."""
    world = two_teachers
    method = world.method(name, dims, **options)
    views = method.needs(world.student, world.teachers).views

    def run(garbage: float, present: torch.Tensor) -> tuple[dict, list[TeacherSignals], torch.Tensor]:
        runner = copy.deepcopy(method)
        torch.manual_seed(1)
        student, signals = world.output(range(8), views), world.signals(range(8))
        for one in signals:
            one.present = present.clone()
            one.sentence = torch.where(present[:, None], one.sentence, garbage).requires_grad_()
        student.embedding.retain_grad()
        terms = runner(student, signals, world.batch(range(8)))
        taught = {key: term for key, term in terms.items() if about_teacher(key)}
        loss(taught).backward() if taught else None
        return taught, signals, student.embedding.grad

    present = torch.arange(8) != 3
    first, signals, _ = run(0.0, present)
    second, _, _ = run(5.0, present)
    for key, term in first.items():
        torch.testing.assert_close(term.values, second[key].values)
        if term.counted is not None:
            assert not term.counted[..., 3].any()
            assert not term.values[..., 3].any()
    for one in signals:
        assert one.sentence.grad is None or not one.sentence.grad[3].any()
    taught, _, gradient = run(0.0, torch.zeros(8, dtype=torch.bool))
    assert loss(taught).item() == 0
    assert gradient is None or not gradient.any()


@PER_ITEM
def test_neighbours_do_not_matter_unless_rows_are_coupled(world, name, dims, options) -> None:
    method = world.method(name, dims, **options).eval()
    assert not method.needs(world.student, world.teachers).coupled
    world.encoder.eval()
    together = world.step(method, range(8))
    for row in (0, 5):
        alone = world.step(method, [row])
        for key, term in together.items():
            torch.testing.assert_close(alone[key].values[..., 0], term.values[..., row], rtol=1e-5, atol=1e-6)


@EVERY
def test_padding_does_not_matter(world, name, dims, options) -> None:
    method = world.method(name, dims, **options).eval()
    world.encoder.eval()
    before = world.step(copy.deepcopy(method))
    world.ids = torch.where(world.mask, world.ids, 0)
    world.ids = torch.cat([world.ids, torch.zeros(len(world.ids), 3, dtype=torch.int64)], 1)
    world.mask = torch.cat([world.mask, torch.zeros(len(world.mask), 3, dtype=torch.bool)], 1)
    after = world.step(method)
    for key, term in before.items():
        torch.testing.assert_close(after[key].values, term.values, rtol=1e-5, atol=1e-6)


@EVERY
@pytest.mark.parametrize("kind", ["zero", "equal", "one row", "two rows", "all duplicates", "huge"])
def test_finite_at_degenerate_inputs(world, loss, name, dims, options, kind) -> None:
    method = world.method(name, dims, **options)
    rows = {"one row": [0], "two rows": [0, 1], "all duplicates": [0] * 6}.get(kind, list(range(6)))
    views = method.needs(world.student, world.teachers).views
    student, signals = world.output(rows, views), world.signals(rows)
    if kind in {"zero", "equal", "huge"}:
        factor = {"zero": 0.0, "equal": 0.0, "huge": 1e4}[kind]
        shift = 1.0 if kind == "equal" else 0.0
        student = StudentOutput(
            student.embedding * factor + shift,
            layers=student.layers * factor + shift,
            tokens={0: student.tokens[0] * factor + shift},
            mask=student.mask,
        )
        for one in signals:
            one.sentence = one.sentence * factor + shift
    terms = method(student, signals, world.batch(rows))
    value = loss(terms)
    assert torch.isfinite(value)
    if value.requires_grad:
        value.backward()
    for parameter in (*world.encoder.parameters(), *method.parameters()):
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@EVERY
def test_state_survives_a_strict_load(world, name, dims, options) -> None:
    """Also the queue, whose vectors are looked up again by their keys."""
    position = {bytes(key.tolist()): row for row, key in enumerate(world.keys)}

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        return world.vectors[teacher][[position[bytes(key.tolist())] for key in keys]]

    method = world.method(name, dims, **options)
    method.lookup = lookup
    for start in (0, 8, 16, 24):
        world.step(method, range(start, start + 8))
    other = world.method(name, dims, **options)
    other.lookup = lookup
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(copy.deepcopy(method.state_dict()), strict=True)
    for rows in (range(32, 40), range(0, 8)):
        expected, found = world.step(method, rows), world.step(other, rows)
        for key, term in expected.items():
            torch.testing.assert_close(found[key].values, term.values, rtol=1e-6, atol=1e-7)


@EVERY
def test_autocast_agrees_loosely_with_float32(world, mean, name, dims, options) -> None:
    method = world.method(name, dims, **options)
    world.encoder.eval()
    exact = world.step(copy.deepcopy(method))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loose = world.step(method)
    for key, term in exact.items():
        assert loose[key].values.dtype == torch.float32
        torch.testing.assert_close(mean(loose[key]), mean(term), rtol=0.08, atol=0.03)


@EVERY
def test_a_second_pass_over_the_same_batch_is_the_same_objective(world, name, dims, options) -> None:
    """Sharpness-aware steps evaluate a batch twice; with equal dropout masks both passes must agree."""
    method = world.method(name, dims, **options)
    world.step(method, range(8, 16))
    first, second = world.step(method), world.step(method)
    for key, term in first.items():
        torch.testing.assert_close(second[key].values, term.values, rtol=0, atol=0)


@EVERY
def test_the_global_generator_is_not_touched_by_a_step(world, name, dims, options) -> None:
    method = world.method(name, dims, **options)
    student, signals = world.output(range(8), 2), world.signals(range(8))
    state = torch.get_rng_state()
    method(student, signals, world.batch(range(8)))
    assert torch.equal(torch.get_rng_state(), state)


@ONE_TERM_PER_TEACHER
def test_two_teachers_count_half_each(world, two_teachers, loss, name, dims, options) -> None:
    """A teacher doubled is the teacher alone."""
    single = world.method(name, dims, **options)
    two_teachers.vectors = [world.vectors[0], world.vectors[0]]
    two_teachers.encoder.load_state_dict(world.encoder.state_dict())
    double = two_teachers.method(name, dims, **options)
    state = single.state_dict()
    double.load_state_dict(
        {key: state[re.sub(r"(heads|anchors|queues)\.1", r"\1.0", key)] for key in double.state_dict()}
    )
    expected, found = world.step(single), two_teachers.step(double)
    torch.testing.assert_close(loss(found), loss(expected), rtol=1e-5, atol=1e-6)


PERFECT = [
    ("cosine", {}),
    ("mse", {}),
    ("mse", {"vectors": "raw"}),
    ("relational", {}),
    ("relational", {"form": "cross_entropy"}),
    ("leaf", {}),
    ("jasper_stella", {"order_weight": 0, "prefixes": []}),
    ("talas", {"simcse_weight": 0, "lasd_weight": 0, "anchored_layers": 1}),
    ("distillcse", {"simcse_weight": 0, "teacher_temperature": 0.025, "group_p": None}),
]


@pytest.mark.parametrize(("name", "options"), PERFECT, ids=[f"{n}-{list(o.values())}" for n, o in PERFECT])
def test_a_perfect_student_is_at_the_minimum(world, name, options) -> None:
    """The teacher's vectors are the student's own: no gradient, and any disturbance costs."""
    world.encoder.eval()
    with torch.no_grad():
        world.vectors = [world.output(range(64)).embedding[0]]
    method = world.method(name, **options)
    world.encoder.eval()
    for head in method.parameters():
        with torch.no_grad():
            head.copy_(torch.eye(12))
    world.assert_at_the_minimum(method)


@pytest.mark.parametrize("name", ["cosine", "mse", "leaf", "talas", "jasper_stella", "distilcse"])
def test_the_teacher_map_leads_from_the_final_embedding_into_the_teachers_space(world, two_teachers, name) -> None:
    method = world.method(name)
    linear = method.teacher_map()
    assert (linear.in_features, linear.out_features, linear.bias) == (12, 20, None)
    assert any(linear.weight is parameter for parameter in method.parameters())
    assert two_teachers.method(name).teacher_map() is None
    full = world.method(name, [4, 6]).teacher_map()
    assert full.in_features == 12


@pytest.mark.parametrize("name", ["simcse", "relational", "distillcse", "gaussian", "multi_mse"])
def test_methods_without_a_map_say_so(world, name) -> None:
    assert world.method(name).teacher_map() is None


@CONTRASTIVE
def test_equal_items_are_never_negatives(world, name, dims, options) -> None:
    """Contrastive values of a batch in which an item stands twice equal those of the batch without the copy."""
    method = world.method(name, dims, **options).eval()
    world.encoder.eval()
    twice, once = world.step(method, [0, 1, 2, 3, 0]), world.step(method, [0, 1, 2, 3])
    checked = [key for key in twice if key.split("@")[0] in {"simcse", "contrast"}]
    assert checked
    for key in checked:
        # Row 0 must not see its copy; the other rows do see one item more, as a batch of five has.
        torch.testing.assert_close(twice[key].values[0], once[key].values[0], rtol=1e-5, atol=1e-6)


def test_methods_declare_themselves() -> None:
    from distilvec.methods.table import resolve

    for name in TABLE:
        method = resolve(name)
        assert issubclass(method, Method)
        assert method.name == name
        assert method.summary
        assert method.paper
        for field, info in method.Options.model_fields.items():
            if field != "preset":
                assert any(mark in info.description for mark in ("[P", "[C", "[S", ", C]", ", S]")), field
        for preset in ("paper", "code", "sound"):
            method.Options(preset=preset)


def test_students_without_layers_are_refused_where_layers_are_needed(world) -> None:
    from distilvec.errors import DistilvecError

    flat = StudentInfo("static", 12, None, 12)
    method = world.method("talas")
    with pytest.raises(DistilvecError, match="needs a student with layers"):
        method.needs(flat, world.teachers)
    shallow = world.method("talas", simcse_weight=0, lasd_weight=0, anchored_layers=1)
    assert not shallow.needs(flat, world.teachers).layers
