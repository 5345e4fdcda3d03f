"""What METHODS section 9 asks of every method of the table, in the forms that differ."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.methods.world import CLASSES, World, mean, total, unbuilt
from torch.utils._python_dispatch import TorchDispatchMode

from distilvec.methods.base import Method
from distilvec.methods.combined import Combined
from distilvec.methods.contract import check_needs, check_terms
from distilvec.methods.table import TABLE, build_methods
from distilvec.modules import sphere
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherSignals


class Case(NamedTuple):
    """A method in one form, and the task it stands beside: none, "classes" or "regression"; "ranks" is no task, but a
    student that is a cross-encoder."""

    name: str
    options: dict[str, Any] = {}
    dims: list[int] | None = None
    task: str | None = None
    more: list[dict[str, Any]] = []

    def world(self, teachers: int = 1) -> World:
        return World(
            teachers,
            classes=CLASSES if self.task == "classes" else None,
            regression=self.task == "regression",
            ranks=self.task == "ranks",
        )

    def method(self, world: World) -> Method:
        if self.more:
            return world.method(self.entries)
        return world.method(self.name, self.dims, **self.options)

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [{"name": self.name, **self.options}, *self.more]

    def made(self, teachers: int = 1) -> tuple[World, Method]:
        """A world of its own and the method built in it; the same numbers every time."""
        made = _made(str(self), teachers, torch.get_default_dtype())
        world = made[0]
        fixed = [*world.inputs, *(item for theirs in world.theirs for item in theirs)]
        return copy.deepcopy(made, {id(tensor): tensor for tensor in fixed})

    def __str__(self) -> str:
        others = [each["name"] for each in self.more]
        words = (self.name, self.task or "", *(self.dims or ()), *self.options.values(), *others)
        return "-".join(str(word) for word in words if word != "")


MOE = {"width": 16}
CASES = [
    Case("talas"),
    Case("talas", {"preset": "code"}),
    Case("talas", {"preset": "paper", "guide": "detached", "layers": 3}),
    Case("talas", {"simcse_weight": 0, "lasd_weight": 0, "anchored_layers": 3}),
    Case("talas", dims=[4]),
    Case("simcse"),
    Case("simcse", {"preset": "code"}),
    Case("cosine"),
    Case("cosine", {"init": "random"}, [4, 6]),
    Case("mse"),
    Case("mse", {"vectors": "raw"}),
    Case("relational"),
    Case("relational", {"form": "cross_entropy"}),
    Case("leaf"),
    Case("leaf", {"preset": "paper"}),
    Case("jasper_stella"),
    Case("jasper_stella", {"prefixes": [5], "pairs": 50}),
    Case("distilcse", {"queue": 24}),
    Case("distilcse", {"queue": 0}),
    Case("distilcse", {"preset": "code", "queue": 8}),
    Case("distillcse"),
    Case("distillcse", {"preset": "code"}),
    Case("distillcse", {"group_p": None}, [6]),
    Case("gaussian", {"width": 16}),
    Case("gaussian", {"preset": "code"}),
    Case("gaussian", {"covariance": "triangular", "components": 2, "width": 8}, [4]),
    Case("gaussian", {"beta_nll": 0.5, "teacher_weight": "per_dim", "width": 16}),
    Case("multi_mse", {"width": 16}),
    Case("multi_cosine", {"width": 16}),
    Case("emo"),
    Case("emo", {"preset": "paper"}),
    Case("emo", {"preset": "code"}),
    Case("emo", {"cka": "plain", "plan": "unrolled", "importance": "softmax"}),
    Case("emo", {"student_mass": "pairs", "special_tokens": True, "average_views": False}),
    Case("emo", {"cka": "plain", "alpha": 0}),
    Case("emo", task="classes"),
    Case("distillmoe", MOE),
    Case("distillmoe", {**MOE, "preset": "paper"}),
    Case("distillmoe", {**MOE, "preset": "code", "maps": "separate"}),
    Case(
        "distillmoe",
        {
            **MOE,
            "token_map": "pairs",
            "scope": "sentence",
            "gate_gradient": "task",
            "gate_kl": 0.1,
            "aggregation": "sba",
        },
    ),
    Case("distillmoe", {**MOE, "experts": ["contrast"], "gate": "mlp"}),
    Case("distillmoe", {**MOE, "experts": ["cosine"], "alpha": 0, "scope": "sentence", "gate_gradient": "loss"}),
    Case("distillmoe", {**MOE, "head": False, "loss_weights": [0.2, 0.6, 0.2]}),
    Case("distillmoe", {**MOE, "experts": []}),
    Case("distillmoe", {**MOE, "moe_weight": 1}),
    Case("mnrl"),
    Case("mnrl", {"preset": "paper"}),
    Case("mnrl", {"teacher_margin": 0.0}),
    Case("margin_mse"),
    Case("margin_mse", {"preset": "paper"}, [4]),
    Case("score_kl"),
    Case("score_kl", {"raw": True}),
    Case("margin_mse", task="ranks"),
    Case("score_kl", task="ranks"),
    Case("score_bce", task="ranks"),
    Case("margin_mse", task="ranks", more=[{"name": "score_bce", "weight": 2.0}]),
    Case("cosine", more=[{"name": "score_kl", "weight": 0.5}]),
    Case("talas", {"preset": "paper"}, more=[{"name": "relational"}, {"name": "cosine", "weight": 2.0}]),
    Case(
        "matryoshka", {"dims": [4], "of": {"name": "mse"}}, more=[{"name": "emo", "iterations": 3, "tolerance": 1e-30}]
    ),
    Case("sft", task="classes"),
    Case("uld", task="classes"),
    Case("uld", {"preset": "code", "temperature": 2.0}, task="classes"),
    Case("multilevel_ot", task="classes"),
    Case("multilevel_ot", {"preset": "paper", "top_k": 2}, task="classes"),
    Case("multilevel_ot", {"preset": "code"}, task="classes"),
    Case("mined", task="classes"),
    Case("mined", {"preset": "paper", "top_k": 2}, task="classes"),
    Case("mined"),
    Case("mined", {"preset": "paper"}),
    Case("mined", {"form": "embedding"}, task="regression"),
    Case("cdm", task="classes"),
    Case("cdm"),
    Case("cdm", {"preset": "paper"}),
    Case("cdm", {"preset": "code"}),
    Case("cdm", {"alpha": 0, "token_weight": 0}),
    Case("cdm", {"form": "embedding"}, task="classes"),
    Case("dskd", task="classes"),
    Case("dskd", {"sentence_weight": 0, "token_weight": 0}, task="classes"),
    Case("dskd"),
    Case("dskd", {"preset": "paper"}),
    Case("dskd", {"preset": "code"}),
    Case("dskd", {"alpha": 0, "sentence_weight": 0}),
    Case("dskd", {"token_weight": 0}, task="regression"),
]
# Every other method of the table, as it is by default.
CASES += [Case(name) for name in TABLE if name not in {"token_states", *(case.name for case in CASES)}]
#: `token_states` needs a student cut out of its teacher: tests/methods/test_token_states.py.
#: Which has no terms: the task's own loss is all there is.
TERMLESS = {"sft"}


@functools.cache
def _made(name: str, teachers: int, dtype: torch.dtype) -> tuple[World, Method]:
    case = next(case for case in CASES if str(case) == name)
    world = case.world(teachers)
    return world, case.method(world)


def coupled(case: Case) -> bool:
    world = case.world()
    method = build_methods(case.entries) if case.more else unbuilt(case.name, case.options, case.dims)
    return method.needs(world.student, world.teachers).coupled


def over(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


EVERY = over(CASES)
TERMS = over([case for case in CASES if case.name not in TERMLESS])
PER_ITEM = over([case for case in CASES if case.name not in TERMLESS and not coupled(case)])
CONTRASTIVE = over(
    [
        case
        for case in CASES
        if case.name in {"talas", "simcse", "distilcse", "distillcse"} and "lasd_weight" not in case.options
    ]
)
# distillcse averages the teachers' cosines, distillmoe has one gate over all of their experts, kernels of two teachers
# lie in one stack: test_gaussian and test_distillmoe double them.
ONE_TERM_PER_TEACHER = over(
    [
        case
        for case in CASES
        if case.name not in {"distillcse", "distillmoe", "gaussian", "multi_mse", "multi_cosine", *TERMLESS}
    ]
)


def about_teacher(terms: dict[str, Any]) -> dict[str, Any]:
    """The terms that say something of a teacher."""
    own = ("simcse", "lasd", "ranking", "margin", "listwise", "answers", "diversity", "gate")
    return {name: term for name, term in terms.items() if not re.split("[@:]", name)[0].startswith(own)}


def weights(world: World, method: Method) -> Iterator[torch.nn.Parameter]:
    """All that a step trains: the student, the expert head it got, and the method's heads."""
    yield from world.encoder.parameters()
    yield from method.parameters()
    head = getattr(method, "expert_head", None)
    if head is not None:
        yield from head.parameters()


@pytest.fixture
def float64(case: Case) -> Iterator[None]:
    """Enough digits to tell dependence from rounding: debiased estimates cancel several of float32's."""
    if case.name != "dskd":  # whose maps are float32 whatever it is given
        torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@TERMS
def test_gradients_reach_the_student_and_every_head(case) -> None:
    world, method = case.made()
    for rows in (range(8), range(8, 16)):
        total(world.step(method, rows)).backward()
    still = set()
    if case.options.get("experts") in (["contrast"], ["cosine"]):  # one expert: nothing to choose
        still = {id(p) for p in method.expert_head.router.parameters()}
    for parameter in weights(world, method):
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0 or id(parameter) in still
    needs = method.needs(world.student, world.teachers)
    assert (world.head.weight.grad is not None) == needs.logits


@EVERY
def test_terms_have_the_shapes_of_the_contract(case) -> None:
    world, method = case.made()
    check_needs(method, method.needs(world.student, world.teachers), world.student)
    student, signals, batch = world.given(method, range(8))
    state = torch.get_rng_state()
    terms = check_terms(method, method(student, signals, batch), student)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is not touched by a step"
    assert bool(terms) == (case.name not in TERMLESS)
    for name, term in terms.items():
        assert term.values.shape in {(8,), (1, 8), (2, 8), ()}, name
        assert term.values.dtype == torch.float32
        assert term.counted is None or term.counted.shape == term.values.shape
        assert term.weight >= 0
        assert torch.isfinite(term.values).all()


@TERMS
def test_absent_items_contribute_nothing(case) -> None:
    """What stands in an absent item's row is irrelevant, and absent teachers give no gradient at all."""
    world, method = case.made(2)

    def run(garbage: float, absent: list[int]) -> tuple[dict[str, Any], list[Any], list[torch.Tensor | None]]:
        runner = copy.deepcopy(method)
        world.encoder.zero_grad()
        student, signals, batch = world.given(runner, absent=absent)
        for one in signals:
            gone = ~one.present
            if one.sentence is not None:
                one.sentence = one.sentence.masked_fill(gone[:, None], garbage).requires_grad_()
            if one.logits is not None:
                one.logits = one.logits.masked_fill(gone[:, None], garbage)
            for kind in (one.tokens, one.attention):
                kind.update({layer: value.masked_fill(gone[:, None, None], garbage) for layer, value in kind.items()})
        taught = about_teacher(runner(student, signals, batch))
        value = total(taught)
        if value.requires_grad:
            value.backward()
        return taught, signals, [parameter.grad for parameter in world.encoder.parameters()]

    first, signals, _ = run(0.0, [3])
    second, _, _ = run(5.0, [3])
    for key, term in first.items():
        torch.testing.assert_close(term.values, second[key].values)
        if term.counted is not None:
            assert not term.counted[..., 3].any()
            assert not term.values[..., 3].any()
    for one in signals:
        assert one.sentence is None or one.sentence.grad is None or not one.sentence.grad[3].any()
    taught, _, gradients = run(0.0, list(range(8)))
    assert total(taught).item() == 0
    assert not any(gradient is not None and gradient.any() for gradient in gradients)


@PER_ITEM
def test_neighbours_do_not_matter_unless_rows_are_coupled(case, float64) -> None:
    world, method = case.made()
    method.eval()
    world.encoder.eval()
    together = world.step(method)
    for row in (0, 5):
        alone = world.step(method, [row])
        for key, term in together.items():
            if term.values.dim():
                torch.testing.assert_close(alone[key].values[..., 0], term.values[..., row], rtol=1e-5, atol=1e-6)


@TERMS
def test_padding_does_not_matter(case, float64) -> None:
    world, method = case.made()
    method.eval()
    world.encoder.eval()
    before = world.step(copy.deepcopy(method))
    for padding in ({"pad": 5}, {"pad": 3, "left": True}):
        after = world.step(copy.deepcopy(method), **padding)
        for key, term in before.items():
            torch.testing.assert_close(after[key].values, term.values, rtol=1e-5, atol=1e-6)


KINDS = {"one row": [0], "two rows": [0, 1], "all duplicates": [0] * 6}


@EVERY
def test_finite_at_degenerate_inputs(case) -> None:
    for kind in ("zero", "equal", "huge", "no content", "no pairs", *KINDS):
        world, method = case.made()
        rows = KINDS.get(kind, list(range(6)))
        scores = method.needs(world.student, world.teachers).scores
        parts = (4 if scores else 2) if method.trains_on_pairs else 1
        given = world.given(method, rows * (parts // math.gcd(parts, len(rows))))  # whole groups
        degenerate(kind, *given[:2])
        value = total(method(*given))
        assert torch.isfinite(value), kind
        if value.requires_grad:
            value.backward()
        for parameter in weights(world, method):
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), kind


def degenerate(kind: str, student: StudentOutput, signals: list[TeacherSignals]) -> None:
    if kind in {"zero", "equal", "huge"}:
        factor, shift = {"zero": (0.0, 0.0), "equal": (0.0, 1.0), "huge": (1e4, 0.0)}[kind]
        for one in (student, *signals):
            for name in ("embedding", "sentence", "layers", "logits"):
                if getattr(one, name, None) is not None:
                    setattr(one, name, getattr(one, name) * factor + shift)
            one.tokens = {layer: states * factor + shift for layer, states in one.tokens.items()}
            one.attention = {layer: maps * 0 + 1 / maps.shape[-1] for layer, maps in one.attention.items()}
    if kind in {"no content", "no pairs"}:
        for one in signals:
            one.alignments = {mode: torch.full_like(table, -1) for mode, table in one.alignments.items()}
    if kind == "no content":
        for one in (student, *signals):
            one.content = None if one.content is None else one.content & False


@EVERY
def test_state_survives_a_strict_load(case) -> None:
    """Also the queue, whose vectors are looked up again by their keys, and the head that ships."""
    world, method = case.made()
    position = {bytes(key.tolist()): row for row, key in enumerate(world.keys)}

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        return world.vectors[teacher][[position[bytes(key.tolist())] for key in keys]]

    other = copy.deepcopy(method)
    method.lookup = other.lookup = lookup
    for start in (0, 8, 16, 24):
        world.step(method, range(start, start + 8))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(copy.deepcopy(method.state_dict()), strict=True)
    if getattr(method, "expert_head", None) is not None:
        other.expert_head.load_state_dict(method.expert_head.state_dict())
    for rows in (range(32, 40), range(0, 8)):
        expected, found = world.step(method, rows), world.step(other, rows)
        for key, term in expected.items():
            torch.testing.assert_close(found[key].values, term.values, rtol=1e-6, atol=1e-7)


@TERMS
def test_autocast_and_half_precision_signals_of_a_store_are_close_to_float32(case) -> None:
    world, method = case.made()
    student, signals, batch = given = world.given(method)
    exact = copy.deepcopy(method)(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loose = copy.deepcopy(method)(*given)
    for key, term in exact.items():
        assert loose[key].values.dtype == torch.float32
        torch.testing.assert_close(mean(loose[key]), mean(term), rtol=0.08, atol=0.03)
    for one in signals:
        one.sentence = None if one.sentence is None else one.sentence.half().float()
        one.logits = None if one.logits is None else one.logits.half().float()
        one.tokens = {layer: states.half().float() for layer, states in one.tokens.items()}
    for key, term in method(student, signals, batch).items():
        torch.testing.assert_close(mean(term), mean(exact[key]), rtol=5e-3, atol=5e-3)


@TERMS
def test_a_second_pass_over_the_same_batch_is_the_same_objective(case) -> None:
    """Sharpness-aware steps evaluate a batch twice; with equal dropout masks both passes must agree."""
    world, method = case.made()
    world.step(method, range(8, 16))
    first, second = world.step(method), world.step(method)
    for key, term in first.items():
        torch.testing.assert_close(second[key].values, term.values, rtol=0, atol=0)


def of_the_first(method: Method, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state of a method with one teacher, for one with two: the second's heads are the first's."""
    first = (re.sub(r"(?<!methods)\.1(?=\.|$)", ".0", key, count=1) for key in method.state_dict())
    return {key: state[key if key in state else own] for key, own in zip(method.state_dict(), first, strict=True)}


@ONE_TERM_PER_TEACHER
def test_two_teachers_count_half_each(case) -> None:
    """A teacher doubled is the teacher alone."""
    world, single = case.made()
    twice = world.doubled()
    double = case.method(twice)
    double.load_state_dict(of_the_first(double, single.state_dict()))
    torch.testing.assert_close(total(twice.step(double)), total(world.step(single)), rtol=1e-5, atol=1e-6)


@ONE_TERM_PER_TEACHER
def test_teachers_count_by_their_weights(case) -> None:
    """A second teacher of weight 0 has no say."""
    (world, single), two = case.made(), case.world(2)
    two.weights = [1.0, 0.0]
    double = case.method(two)
    double.load_state_dict({**double.state_dict(), **single.state_dict()})
    torch.testing.assert_close(total(two.step(double)), total(world.step(single)), rtol=1e-5, atol=1e-6)


class Counting(TorchDispatchMode):
    """How many operations reach torch's kernels."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(step: Callable[[], dict[str, Any]]) -> int:
    """Forward and backward."""
    with Counting() as seen:
        total(step()).backward()
    return seen.count


@TERMS
def test_a_step_takes_as_many_operations_for_many_items_as_for_few(case, monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop over items or tokens. What stops where every item has converged makes a fixed number of rounds here."""
    monkeypatch.setattr(sphere, "KARCHER_STEPS", 2)
    fixed = {"iterations": 3, "tolerance": 1e-30} if case.name == "emo" else {}
    found = []
    world = case.world()
    built = case._replace(options={**case.options, **fixed}).method(world)
    for items, pad in ((24, 0), (48, 20)):
        method = copy.deepcopy(built)  # a queue is empty at first
        given = world.given(method, range(items), pad=pad)
        found.append(operations(lambda: method(*given)))  # noqa: B023
    assert found[0] == found[1] > 5


PERFECT = [
    ("cosine", {}),
    ("mse", {}),
    ("mse", {"vectors": "raw"}),
    ("relational", {}),
    ("relational", {"form": "cross_entropy"}),
    ("leaf", {}),
    ("talas", {"simcse_weight": 0, "lasd_weight": 0, "anchored_layers": 1}),
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


@pytest.mark.parametrize(("listed", "leading"), [(["cosine", "leaf"], 1), (["cosine", "mse"], 0)])
def test_the_map_of_several_is_that_of_the_one_that_lives_there(world, listed, leading) -> None:
    methods = [world.method(name) for name in listed]
    assert Combined(methods, [1.0, 1.0]).teacher_map() is methods[leading].teacher_map()


@pytest.mark.parametrize("name", ["simcse", "relational", "distillcse", "gaussian", "multi_mse"])
def test_methods_without_a_map_say_so(world, name) -> None:
    assert world.method(name).teacher_map() is None


@CONTRASTIVE
def test_equal_items_are_never_negatives(case) -> None:
    """Contrastive values of a batch in which an item stands twice equal those of the batch without the copy."""
    world, method = case.made()
    method.eval()
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
    with pytest.raises(DistilvecError, match="^static: talas .*lasd_weight: 0 and anchored_layers: 1"):
        method.needs(flat, world.teachers)
    shallow = world.method("talas", simcse_weight=0, lasd_weight=0, anchored_layers=1)
    assert not shallow.needs(flat, world.teachers).student.layers
