"""DistillMoE: what METHODS section 3 asks of it; test_suite asks what it asks of every method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from tests.methods.world import World, mean, mixed, small_world, total
from torch import nn

from distilvec.errors import DistilvecError
from distilvec.functional import cka_distance, margin_gap, optimal_gate
from distilvec.methods.base import Method, Sample, Wanted
from distilvec.methods.table import build_method, build_options
from distilvec.methods.tokens.dynamic_cka import soft_alignment
from distilvec.methods.tokens.maps import FixedMap
from distilvec.modules.expert_head import ExpertHead
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.students.tap import StudentTap

SMALL = {"width": 16}
WIDTH, DEPTH, ITEMS = 8, 3, 24
PRESETS = [
    {},
    {"preset": "paper"},
    {"preset": "code", "maps": "separate"},
    {"token_map": "pairs", "scope": "sentence", "gate_gradient": "task", "gate_kl": 0.1, "aggregation": "sba"},
    {"experts": ["contrast"], "gate": "mlp"},
    {"head": False, "loss_weights": [0.2, 0.6, 0.2]},
    {"experts": []},
    {"moe_weight": 1},
]
EVERY = pytest.mark.parametrize(
    "options", PRESETS, ids=["sound", "paper", "code", "pairs", "one expert", "no head", "no experts", "no tokens"]
)
TASK = StudentInfo("toy", WIDTH, DEPTH, WIDTH, regression=True)


@pytest.fixture
def world() -> World:
    return small_world()


def parameters(world: World, method: Method) -> list[nn.Parameter]:
    head = method.expert_head
    return [*world.encoder.parameters(), *method.parameters(), *([] if head is None else head.parameters())]


@EVERY
def test_terms_have_the_shapes_of_the_contract(world, options) -> None:
    terms = world.step(world.method("distillmoe", **SMALL, **options))
    for name, term in terms.items():
        assert term.values.shape in {(8,), (2, 8), ()}, name
        assert term.values.dtype == torch.float32
        assert term.values.isfinite().all()
        assert term.weight > 0 or not term.values.requires_grad
    weighted = {name for name, term in terms.items() if term.weight}
    assert ("moe" in weighted) == bool(options.get("experts", True))
    assert ("diversity" in weighted) == (options.get("experts") != [] and "head" not in options)
    assert ("dynamic_cka" in weighted) == ("moe_weight" not in options)


def test_padding_does_not_matter_and_neither_do_neighbours_where_rows_are_not_coupled(world) -> None:
    options = {"scope": "sentence", "alpha": 0}
    for extra in ({}, {"preset": "paper"}, {"cka": "plain", "special_tokens": True}):
        method = world.method("distillmoe", **SMALL, **{**extra, **options}).eval()
        world.encoder.eval()
        together = world.step(method, range(12))
        for padding in ({"pad": 5}, {"left": True}):
            for name, term in world.step(method, range(12), **padding).items():
                torch.testing.assert_close(term.values, together[name].values, rtol=1e-6, atol=1e-6)
        for row in (0, 7):
            alone = world.step(method, [row])
            for name in ("cosine", "dynamic_cka", "diversity", "gate_floor"):
                torch.testing.assert_close(alone[name].values[:, 0], together[name].values[:, row], rtol=0, atol=1e-6)


def test_batch_scope_is_cka_over_all_content_tokens(world) -> None:
    method = world.method("distillmoe", **SMALL, scope="batch", alpha=0, layers=1, cka="plain", mass=1.0).eval()
    world.encoder.eval()
    signals = world.signals(range(6))[0]
    world.encoder.eval()
    student = world.output(range(6))
    module = method.dynamic_cka[0]
    own, aligned = [], []
    for row in range(6):
        ours = student.tokens[DEPTH][0, row][student.content[row]]
        theirs = module.standardize[0](signals.tokens[6][row])[signals.content[row]]
        cosines = nn.functional.cosine_similarity(module.query(ours)[:, None], theirs[None], dim=-1)
        own.append(ours)
        aligned.append((cosines / 0.1).softmax(-1) @ theirs)
    expected = cka_distance(torch.cat(own), torch.cat(aligned))
    term = method(_with_extras(method, student), [signals], world.batch(range(6)))["dynamic_cka"]
    torch.testing.assert_close(term.values, expected)


def _with_extras(method: Method, student: StudentOutput) -> StudentOutput:
    mixed(method, student)
    return student


def test_the_head_is_the_students_and_ships_with_it(tiny_bert, sentences, tmp_path) -> None:
    """Built on a real student, attached, tapped, trained, saved."""
    student = SentenceTransformer(str(tiny_bert), device="cpu")
    student.append(Normalize())
    info = StudentTap(student).info
    world = small_world()
    method = build_method("distillmoe", {"moe_weight": 1, "alpha": 0, "width": 16})
    method.needs(info, world.teachers)
    embedding = torch.from_numpy(student.encode(sentences[:ITEMS]))
    method.build(info, world.teachers, Sample(StudentOutput(embedding[None]), world.signals(range(ITEMS))))
    method.attach(student)
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "ExpertHead", "Normalize"]
    assert not {id(p) for p in method.parameters()} & {id(p) for p in student.parameters()}
    output = StudentTap(student)(student.preprocess(sentences[:8]), views=2)
    assert output.extras["sentence_vector"].shape == (2, 8, info.width)
    assert output.extras["expert_outputs"].shape == (2, 8, 3, info.width)
    torch.testing.assert_close(output.extras["gate"].sum(-1), torch.ones(2, 8))
    mixture = (output.extras["gate"][..., None] * output.extras["expert_outputs"]).sum(-2)
    torch.testing.assert_close(output.embedding, mixture)
    total(method(output, world.signals(range(8)), world.batch(range(8)))).backward()
    torch.optim.SGD(student.parameters(), lr=0.1).step()
    student.eval()
    student.save_pretrained(str(tmp_path / "student"), create_model_card=False)
    known = {"expert_head.ExpertHead": ExpertHead}
    loaded = SentenceTransformer._load_with_module_classes(str(tmp_path / "student"), known, device="cpu")
    assert np.array_equal(loaded.encode(sentences), student.encode(sentences))


def test_a_student_without_its_head_says_so(world) -> None:
    method = world.method("distillmoe", **SMALL, alpha=0)
    with pytest.raises(DistilvecError, match=r'"expert_outputs".*attach\(student\)'):
        method(world.output(range(4)), world.signals(range(4)), world.batch(range(4)))


def test_diversity_is_zero_for_orthogonal_experts_and_the_floor_for_an_even_gate(world) -> None:
    method = world.method("distillmoe", **SMALL, alpha=0)
    student, signals = world.output(range(4)), world.signals(range(4))
    mixed(method, student)
    student.extras["expert_outputs"] = torch.eye(3, WIDTH).expand(1, 4, 3, WIDTH)
    student.extras["gate"] = torch.tensor([[[0.1, 0.3, 0.6], [1 / 3] * 3, [0.0, 0.5, 0.5], [0.05, 0.05, 0.9]]])
    terms = method(student, signals, world.batch(range(4)))
    assert not terms["diversity"].values.any()
    torch.testing.assert_close(terms["gate_floor"].values, torch.tensor([[0, 0, 0.01, 0.005]]))
    torch.testing.assert_close(terms["gate_entropy"].values[0, 1], torch.tensor(3.0).log())
    assert terms["gate_cosine"].values[0].tolist() == pytest.approx([0.1, 1 / 3, 0, 0.05])


def test_removing_an_expert_leaves_the_others_as_they_are(world) -> None:
    world.encoder.eval()
    full = world.method("distillmoe", **SMALL, alpha=0, moe_weight=1).eval()
    names = full.options.experts
    world.encoder.eval()
    expected = world.step(full)
    for gone in range(3):
        kept = [k for k in range(3) if k != gone]
        less = world.method("distillmoe", **SMALL, alpha=0, moe_weight=1, experts=[names[k] for k in kept]).eval()
        head, whole = less.expert_head, full.expert_head
        rows = torch.cat([torch.arange(16) + 16 * k for k in kept])
        with torch.no_grad():
            head.first.weight.copy_(whole.first.weight[rows])
            head.first.bias.copy_(whole.first.bias[rows])
            head.second.copy_(whole.second[kept])
            head.bias.copy_(whole.bias[kept])
        less.load_state_dict({k: v for k, v in full.state_dict().items() if k in less.state_dict()})
        world.encoder.eval()
        found = world.step(less)
        assert names[gone] not in found
        for k in kept:
            torch.testing.assert_close(found[names[k]].values, expected[names[k]].values)


def test_experts_that_say_what_the_teacher_says_are_at_the_minimum(world) -> None:
    """The teacher's vectors are the student's own, turned: maps and the order of neighbours are exact."""
    world.encoder.eval()
    method = world.method("distillmoe", alpha=0, moe_weight=1, head=False, experts=["cosine", "contrast", "margin"])
    losses = method.expert_losses[0]
    width = world.teachers[0].width
    turn = torch.linalg.qr(torch.randn(width, WIDTH, generator=torch.Generator().manual_seed(0)))[0]
    with torch.no_grad():
        for expert in ("cosine", "contrast"):
            losses.maps[0][expert].weight.copy_(turn)
    world.encoder.eval()
    student, signals, batch = world.output(range(8)), world.signals(range(8)), world.batch(range(8))
    embedding = student.embedding.detach().requires_grad_()
    signals[0].sentence = (embedding[0] @ turn.T).detach()
    world.encoder.eval()

    def terms(vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        return {n: t.values for n, t in method(replace(student, embedding=vectors), signals, batch).items()}

    found = terms(embedding)
    assert found["cosine"].abs().max() < 1e-5 and found["margin"].abs().max() == 0
    for seed in range(3):
        noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(seed))
        moved = terms(embedding.detach() + noise)
        assert moved["cosine"].mean() > 0.01 and moved["margin"].mean() > 0
        assert moved["contrast"].mean() > found["contrast"].mean()


def test_the_mixture_weighs_the_experts_losses(world) -> None:
    values = []
    for gate_gradient in ("loss", "task", "scaled"):
        method = world.method("distillmoe", **SMALL, alpha=0, gate_gradient=gate_gradient).eval()
        world.encoder.eval()
        terms = world.step(method)
        expected = sum(terms[name].values * terms[f"gate_{name}"].values for name in method.options.experts)
        torch.testing.assert_close(terms["moe"].values, expected)
        values.append(terms["moe"].values)
        assert terms["moe"].weight == terms["diversity"].weight == 0.8
        assert terms["dynamic_cka"].weight == pytest.approx(0.2)
    assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])


def gate_gradient(mode: str, logits: torch.Tensor, losses: torch.Tensor, beta: float = 0.0) -> torch.Tensor:
    """Of the mixture with respect to the gate's logits, for given losses."""
    world = small_world()
    method = world.method("distillmoe", **SMALL, gate_gradient=mode).expert_losses[0]
    logits = logits.clone().requires_grad_()
    gate = logits.softmax(-1)
    value = method._weighted(losses, torch.ones(losses.shape[1:], dtype=torch.bool), gate).sum()
    value = value + beta * (gate * gate.log()).sum()
    return torch.autograd.grad(value, logits)[0]


def test_the_gate_learns_fit_and_not_units() -> None:
    losses = torch.rand(1, 4, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    logits = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(1))
    units = torch.tensor([1.0, 100.0, 1.0])
    torch.testing.assert_close(gate_gradient("scaled", logits, losses), gate_gradient("scaled", logits, losses * units))
    assert not torch.allclose(gate_gradient("loss", logits, losses), gate_gradient("loss", logits, losses * units))
    assert not gate_gradient("task", logits, losses).any()


def test_the_regularised_gate_is_that_of_the_lemma() -> None:
    """At softmax(-L / beta) the gradient of gate and KL together vanishes."""
    losses = 2 * torch.rand(1, 4, 3, generator=torch.Generator().manual_seed(0))
    best = optimal_gate(losses, 0.3).log()
    assert gate_gradient("loss", best, losses, 0.3).abs().max() < 1e-6
    assert gate_gradient("loss", best + torch.tensor([0.5, 0.0, 0.0]), losses, 0.3).abs().max() > 1e-3
    terms = (world := small_world()).step(world.method("distillmoe", **SMALL, gate_kl=0.3, alpha=0))
    torch.testing.assert_close(terms["gate_kl"].values, torch.tensor(3.0).log() - terms["gate_entropy"].values)
    assert terms["gate_kl"].weight == pytest.approx(0.8 * 0.3)


def test_fixed_loss_weights_take_the_gates_place(world) -> None:
    world.encoder.eval()
    for head in (True, False):
        method = world.method("distillmoe", **SMALL, alpha=0, loss_weights=[0.2, 0.6, 0.1], head=head).eval()
        assert (method.expert_head is None) != head
        world.encoder.eval()
        terms = world.step(method)
        expected = sum(w * terms[n].values for w, n in zip([0.2, 0.6, 0.1], method.options.experts, strict=True))
        torch.testing.assert_close(terms["moe"].values, expected)


def test_the_margin_gap_among_present_items() -> None:
    own, target = torch.randn(2, 6, 4), torch.randn(6, 5)
    everyone = torch.ones(6, dtype=torch.bool)
    torch.testing.assert_close(margin_gap(own, target, 0.1, everyone), margin_gap(own, target.expand(2, 6, 5), 0.1))
    some = torch.tensor([True, False, True, True, False, True])
    expected = margin_gap(own[:, some], target[some].expand(2, 4, 5), 0.1)
    torch.testing.assert_close(margin_gap(own, target, 0.1, some)[:, some], expected)


@EVERY
def test_absent_items_contribute_nothing(world, options) -> None:
    method = world.method("distillmoe", **SMALL, **options)
    terms = world.step(method, absent=[3])
    for name in ("moe", "cosine", "contrast", "margin"):
        if name in terms:
            assert not terms[name].counted[:, 3].any()
            assert not terms[name].values[:, 3].any()
    nobody = world.step(method, absent=range(8))
    taught = {name: term for name, term in nobody.items() if name in {"moe", "dynamic_cka", "token_map", "true_cka"}}
    assert total(taught).item() == 0
    total(nobody).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in parameters(world, method))


@pytest.mark.parametrize("scope", ["sentence", "batch"])
def test_an_item_without_teacher_tokens_has_no_part_in_the_cka(world, scope) -> None:
    """As if the teacher lacked it: an emoji alone, to a tokenizer that knows none."""
    method = world.method("distillmoe", **SMALL, scope=scope, moe_weight=0)
    whole = world.signals

    def without(*args, **more):
        found = whole(*args, **more)
        for one in found:
            one.content[3] = False
        return found

    expected = world.step(method, absent=[3])["dynamic_cka"]
    world.signals = without
    found = world.step(method)["dynamic_cka"]
    torch.testing.assert_close(found.values, expected.values)
    assert scope == "batch" or not found.counted[:, 3].any()


def test_alignment_weights() -> None:
    torch.manual_seed(0)
    queries, states = torch.randn(1, 2, 5, 6), torch.randn(2, 9, 6)
    columns = torch.ones(2, 9, dtype=torch.bool)
    columns[1, 4:] = False
    for settings in ((0.1, 0.9), (1.0, 0.9), (1.0, 0.95, 3, 0.3), (0.01, 1.0)):
        weights = soft_alignment(queries, states, columns, *settings)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 5))
        assert not weights[:, 1, :, 4:].any()
    cosines = nn.functional.cosine_similarity(queries[..., None, :], states[:, None], dim=-1)
    flat = soft_alignment(queries, states, columns, 1.0, 0.9)[:, 0]
    assert ((flat > 0).sum(-1) >= 7).all()
    assert flat.max() / flat[flat > 0].min() <= 7.39
    capped = soft_alignment(queries, states, columns, 1.0, 0.95, 3, 0.3)[:, 0]
    assert ((capped > 0).sum(-1) <= 3).all()
    alone = (capped > 0).sum(-1, keepdim=True) == 1
    assert ((cosines[:, 0] >= 0.3) | (capped == 0) | alone).all()
    assert not soft_alignment(queries, states, columns & False, 0.1, 0.9).any()


def test_the_alignment_is_a_constant_unless_asked(world) -> None:
    sound = world.method("distillmoe", **SMALL)
    assert isinstance(sound.dynamic_cka[0].query, FixedMap)
    assert not list(sound.dynamic_cka.parameters())
    pairs = world.method("distillmoe", **SMALL, token_map="pairs", alpha=0)
    terms = world.step(pairs)
    terms["token_map"].values.sum().backward()
    assert pairs.dynamic_cka[0].query.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in world.encoder.parameters())
    pairs.zero_grad()
    world.step(pairs)["dynamic_cka"].values.sum().backward()
    assert pairs.dynamic_cka[0].query.weight.grad is None or not pairs.dynamic_cka[0].query.weight.grad.any()
    assert any(p.grad is not None and p.grad.any() for p in world.encoder.parameters())


def test_the_ridge_map_starts_nearer_to_the_partners(world) -> None:
    near, far = (
        mean(world.step(world.method("distillmoe", **SMALL, alpha=0, token_map="pairs", init=init))["token_map"])
        for init in ("ridge", "random")
    )
    assert near < 0.95 * far


def test_true_cka_of_identical_models_is_one() -> None:
    world = small_world(same=True)
    method = world.method("distillmoe", **SMALL, alpha=0, standardize=False)
    world.encoder.eval()
    terms = world.step(method)
    assert terms["true_cka"].weight == 0
    assert terms["true_cka"].values.item() > 0.9999
    different = small_world()
    assert different.step(different.method("distillmoe", **SMALL, alpha=0))["true_cka"].values.item() < 0.6


def test_several_teachers_have_three_experts_each_under_one_gate() -> None:
    world = small_world(teachers=2)
    method = world.method("distillmoe", **SMALL, alpha=0)
    assert method.expert_head.experts == 6
    terms = world.step(method)
    names = [f"{expert}:teacher{k}" for k in range(2) for expert in ("cosine", "contrast", "margin")]
    assert [name for name in terms if name in names] == names
    torch.testing.assert_close(sum(terms[f"gate_{name}"].values for name in names), torch.ones(1, 8))
    assert terms["dynamic_cka:teacher1"].weight == pytest.approx(0.1)
    needs = method.needs(world.student, world.teachers)
    signals, student = world.signals(range(8)), world.output(range(8), needs.student.views)
    mixed(method, student)
    student.extras["gate"] = torch.tensor([0.05] * 5 + [0.75]).expand(1, 8, 6)
    signals[1].present[2] = False
    terms = method(student, signals, world.batch(range(8)))
    assert not terms["gate_floor"].values.any()  # 0.3 / 6
    expected = sum(terms[name].values[0, 2] for name in names[:3]) / 3  # item 2: the first teacher alone
    torch.testing.assert_close(terms["moe"].values[0, 2], expected)


@pytest.mark.parametrize("options", [{}, {"gate_gradient": "loss"}, {"gate_gradient": "task"}, {"head": False}])
def test_experts_teach_by_their_teachers_weights(options) -> None:
    """And the gate compares losses as they are: otherwise a teacher of little weight would draw it to itself."""
    world = small_world(teachers=2)
    even = world.method("distillmoe", **SMALL, **options, alpha=0)
    world.weights = [1.0, 0.0]
    method = world.method("distillmoe", **SMALL, **options, alpha=0)
    terms = world.step(method)
    names = [f"{expert}:teacher0" for expert in ("cosine", "contrast", "margin")]
    gate = {name: terms[f"gate_{name}"].values if f"gate_{name}" in terms else 1 / 6 for name in names}
    expected = 2 * sum(gate[name] * terms[name].values for name in names)
    torch.testing.assert_close(terms["moe"].values, expected)
    terms["moe"].values.sum().backward()
    first, second = method.expert_losses[0].maps
    assert all(p.grad.abs().sum() > 0 for p in first.parameters())
    assert not any(p.grad.any() for p in second.parameters())
    if method.expert_head is not None:
        learnt = []
        for each in (even, method):
            each.zero_grad()
            each.expert_head.zero_grad()
            world.step(each)["moe"].values.sum().backward()
            learnt.append([p.grad for p in each.expert_head.router.parameters()])
        for ours, theirs in zip(*learnt, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_presets_and_ablations_ask_for_what_they_use(world) -> None:
    needs = world.method("distillmoe", **SMALL).needs(world.student, world.teachers)
    assert needs.student.views == 2 and needs.coupled and needs.sentence
    assert needs.student.tokens == (1, 2, 3)
    assert needs.teachers == (Wanted(tokens=(4, 5, 6), alignment=("strict",)),)
    without_tokens = world.method("distillmoe", **SMALL, moe_weight=1).needs(world.student, world.teachers)
    assert without_tokens.student.tokens == () and without_tokens.teachers == ()
    without_experts = world.method("distillmoe", **SMALL, experts=[], alpha=0)
    assert without_experts.expert_head is None
    assert not without_experts.needs(world.student, world.teachers).sentence
    task = world.method("distillmoe", student=TASK, **SMALL, scope="sentence", experts=["cosine"], gate_gradient="loss")
    needs = task.needs(TASK, world.teachers)
    assert needs.student.views == 1 and not needs.coupled
    student = world.output(range(4))
    mixed(task, student)
    terms = task(student, world.signals(range(4)), world.batch(range(4)))
    assert "simcse" not in terms and terms["moe"].weight == 0.8
    for layers in (1, 2, 3):
        assert "dynamic_cka" in world.step(world.method("distillmoe", **SMALL, layers=layers))
    assert world.method("distillmoe", width=40).expert_head.hidden == 40


def test_one_shared_map_is_not_trained(world) -> None:
    method = world.method("distillmoe", **SMALL, preset="code", alpha=0)
    assert not list(method.parameters())
    maps = method.expert_losses[0].maps[0]
    assert maps["cosine"] is maps["contrast"] is method.dynamic_cka[0].query
    total(world.step(method)).backward()
    with pytest.raises(DistilvecError, match="^teacher0: maps: shared .*99 and 16.*maps: separate"):
        build_method("distillmoe", {"preset": "code"}).needs(world.student, [replace(world.teachers[0], hidden=99)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": [], "moe_weight": 1}, "experts .*moe_weight 1"),
        ({"loss_weights": [1.0]}, r"loss_weights has 1 .*experts \d"),
        ({"token_map": "trained"}, "token_map: trained .*differentiate_weights: true"),
        ({"maps": "shared", "token_map": "pairs"}, "maps: shared .*token_map: fixed"),
        ({"experts": ["cosine", "cosine"]}, r"\['cosine', 'cosine'\]"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message) -> None:
    with pytest.raises(DistilvecError, match=f"^distillmoe.*: .*{message}"):
        build_options("distillmoe", options)


def test_models_that_show_no_layers_are_refused_where_layers_are_needed(world) -> None:
    flat = StudentInfo("static", WIDTH, None, WIDTH)
    with pytest.raises(DistilvecError, match="^static: distillmoe "):
        build_method("distillmoe", {}).needs(flat, world.teachers)
    assert build_method("distillmoe", {"moe_weight": 1}).needs(flat, world.teachers).sentence
    with pytest.raises(DistilvecError, match=r"^toy: distillmoe .*\b4 layers.*\b3\b.*method\.layers to 3"):
        build_method("distillmoe", {"layers": 4}).needs(world.student, world.teachers)
