"""EMO: what METHODS section 2 asks of it; test_suite asks what it asks of every method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.methods.world import World, mean, small_world, total
from torch.nn.functional import cosine_similarity

from distilvec.errors import DistilvecError
from distilvec.methods.table import build_method, build_options
from distilvec.methods.tokens import emo, importance, pairs
from distilvec.methods.tokens.pairs import TokenPairs
from distilvec.students.output import StudentInfo

PRESETS = [
    {},
    {"preset": "paper"},
    {"preset": "code"},
    {"cka": "plain", "plan": "unrolled", "importance": "softmax"},
    {"student_mass": "pairs", "special_tokens": True, "average_views": False},
]
EVERY = pytest.mark.parametrize("options", PRESETS, ids=lambda options: "-".join(map(str, options.values())) or "sound")
DEPTH = 3
TASK = StudentInfo("toy", 8, DEPTH, 8, classes=4)


@pytest.fixture
def world() -> World:
    return small_world()


@pytest.fixture
def float64() -> Iterator[None]:
    """Enough digits to tell dependence from rounding: the debiased estimate cancels several of float32's."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@EVERY
def test_terms_have_the_shapes_of_the_contract(world, options) -> None:
    terms = world.step(world.method("emo", **options))
    views = 1 if options.get("average_views") is False or options.get("preset") == "code" else 2
    assert {name: term.values.shape for name, term in terms.items()} == {
        "simcse": (8,),
        "ira": (views, 8),
        "otis": (views, 8),
    }
    assert all(term.values.dtype == torch.float32 for term in terms.values())


@pytest.mark.parametrize(
    "options",
    [*PRESETS, {"ira_weight": 0}, {"cka": "debiased", "share": 1.0}],
    ids=["sound", "paper", "code", "softmax", "pairs", "otis alone", "debiased, all pairs"],
)
@pytest.mark.parametrize("causal", [False, True])
def test_neighbours_and_padding_do_not_matter(options, causal, float64) -> None:
    world = small_world(causal=causal)
    method = world.method("emo", **options, alpha=0).eval()
    world.encoder.eval()
    together = world.step(method, range(12))
    for padding in ({"pad": 5}, {"left": True}, {"pad": 3, "left": True}):
        moved = world.step(method, range(12), **padding)
        for name, term in together.items():
            torch.testing.assert_close(moved[name].values, term.values, rtol=0, atol=1e-6)
    for row in (0, 7, 11):
        for name, term in world.step(method, [row]).items():
            torch.testing.assert_close(term.values[:, 0], together[name].values[:, row], rtol=0, atol=1e-6)
            assert term.counted[0, 0] == together[name].counted[0, row]


def test_debiased_sentences_weigh_by_their_pairs(world) -> None:
    method = world.method("emo", alpha=0, otis_weight=0, share=1.0).eval()
    world.encoder.eval()
    rows = range(12)
    alone = [world.step(method, [row])["ira"] for row in rows]
    pairs = (world.signals(rows)[0].alignments["strict"][..., 0] >= 0).sum(-1)
    counted = torch.tensor([bool(term.counted) for term in alone])
    assert counted.sum() > 2 and torch.equal(counted, pairs >= 4)
    weights = (pairs * (pairs - 3)).where(counted, 0).float()
    world.encoder.eval()
    expected = sum(w * term.values[0, 0] for w, term in zip(weights, alone, strict=True)) / weights.sum()
    torch.testing.assert_close(mean(world.step(method, rows)["ira"]), expected)


def test_teachers_count_by_their_weights() -> None:
    world = small_world(teachers=2)
    even = world.step(world.method("emo"))
    world.weights = [3.0, 1.0]
    terms = world.step(world.method("emo"))
    for term, own in (("ira", 0.1), ("otis", 1.0)):
        assert [even[f"{term}:teacher{k}"].weight for k in (0, 1)] == pytest.approx([0.25 * own, 0.25 * own])
        assert [terms[f"{term}:teacher{k}"].weight for k in (0, 1)] == pytest.approx([0.375 * own, 0.125 * own])
    assert terms["simcse"].weight == even["simcse"].weight == 0.5


@pytest.mark.parametrize("cka", ["plain", "debiased"])
def test_an_identical_model_has_nothing_left_to_learn_from_attention(cka) -> None:
    world = small_world(same=True)
    method = world.method("emo", cka=cka, alpha=0, otis_weight=0).eval()
    world.encoder.eval()
    term = world.step(method)["ira"]
    assert term.counted.sum() > 4
    assert term.values.abs().max() < 1e-5
    other = small_world()
    other.encoder.eval()
    assert mean(other.step(other.method("emo", cka=cka, alpha=0, otis_weight=0).eval())["ira"]) > 0.1


@EVERY
def test_marginals_of_the_plan_are_met(world, monkeypatch, options) -> None:
    kept = {}

    def spy(cost, source, target, *rest):
        kept.update(source=source, target=target, plan=solve(cost, source, target, *rest))
        return kept["plan"]

    solve = emo.sinkhorn
    monkeypatch.setattr(emo, "sinkhorn", spy)
    method = world.method("emo", iterations=3000, **options)
    assert world.step(method)["otis"].counted.all()
    torch.testing.assert_close(kept["source"].sum(-1), torch.ones(8))
    torch.testing.assert_close(kept["target"].sum(-1), torch.ones(8))
    assert (kept["plan"].sum(-1) - kept["source"]).abs().sum(-1).max() < 1e-5
    assert (kept["plan"].sum(-2) - kept["target"]).abs().sum(-1).max() < 1e-3
    content = world.output(range(8)).content
    special = world.output(range(8)).mask & ~content
    assert bool(kept["source"][special].any()) == method.options.special_tokens


def test_the_default_plan_is_near_its_marginals(world, monkeypatch) -> None:
    """At epsilon 0.02 a hundred iterations leave an error; no more than a twentieth of the mass of any item."""
    kept = {}

    def spy(cost, source, target, *rest):
        kept.update(target=target, plan=solve(cost, source, target, *rest))
        return kept["plan"]

    solve = emo.sinkhorn
    monkeypatch.setattr(emo, "sinkhorn", spy)
    world.step(world.method("emo"))
    error = (kept["plan"].sum(-2) - kept["target"]).abs().sum(-1)
    assert 0 < error.max() < 0.05 and error.mean() < 0.02


def test_a_split_word_keeps_its_mass() -> None:
    """Teacher tokens 0, 1, 2; the student splits 1 in two and joins 2 to it."""
    scores = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 0.0]])
    cells = torch.tensor([[[0, 0], [1, 1], [2, 1], [2, 2]], [[-1, -1]] * 4])
    path = TokenPairs(cells[..., 0].clamp_min(0), cells[..., 1].clamp_min(0), cells[..., 0] >= 0)
    ours, theirs = importance.path_masses(scores, path, 4)
    torch.testing.assert_close(ours, torch.tensor([[0.5, 0.15, 0.35, 0.0], [0.0] * 4]))
    torch.testing.assert_close(theirs, scores)
    one = TokenPairs(torch.tensor([[0]]), torch.tensor([[0]]), torch.tensor([[True]]))
    rows = torch.tensor([[True, True, True, False]])
    starved = importance.pair_masses(scores[:1], scores[:1] > 0, one, rows, "sum")
    torch.testing.assert_close(starved, torch.tensor([[0.5, 0.2, 0.2, 0.0]]) / 0.9)


def test_importance_sums_to_one_and_leaves_out_what_it_should(world) -> None:
    signals = world.signals(range(8))[0]
    for special, by in ((False, "sum"), (True, "sum"), (True, "softmax")):
        method = world.method("emo", special_tokens=special, importance=by)
        columns = signals.mask if special else signals.content
        maps = method.from_maps[0]
        scores, scored = maps(signals)[1]["importance"], maps.columns(signals)
        torch.testing.assert_close(scores.sum(-1), torch.ones(8))
        assert torch.equal(scores > 0, scored)
        assert torch.equal(scored, columns)


def test_causal_importance_is_relative_to_even_attention() -> None:
    """With even attention over what is seen all tokens are alike, whatever the padding; the first is a sink."""
    mask = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    even = torch.ones(6, 6).tril() * mask.unsqueeze(1)
    attention = even / even.sum(-1, keepdim=True).clamp_min(1) * mask.unsqueeze(-1)
    corrected = importance.importance(attention, mask, mask, mask)
    torch.testing.assert_close(corrected, mask.float())
    plain = importance.importance(attention, mask, mask)
    assert plain[1, 0] > 4 * plain[1, 5]
    causal = small_world(causal=True)
    signals = causal.signals(range(4))[0]
    first = signals.mask.int().argmax(-1)
    signals.content[torch.arange(4), first] = True  # a teacher that puts no special token in front
    maps = causal.method("emo").from_maps[0]
    scores, scored = maps(signals)[1]["importance"], maps.columns(signals)
    assert not scores[torch.arange(4), first].any() and not scored[torch.arange(4), first].any()
    torch.testing.assert_close(scores.sum(-1), torch.ones(4))


def test_the_best_third_of_the_pairs_is_used() -> None:
    table = torch.tensor([[[i, 8 - i] for i in range(9)], [[i, i] if i < 2 else [-1, -1] for i in range(9)]])
    found = TokenPairs(*table.clamp_min(0).unbind(-1), table[..., 0] >= 0)
    scores = torch.arange(9).float().expand(2, 9)
    best = importance.best_pairs(found, scores, 1 / 3, 1)
    assert best.student.shape == (2, 3)
    assert sorted(best.teacher[0].tolist()) == [6, 7, 8]
    assert torch.equal(best.student[0], 8 - best.teacher[0])
    assert best.real.tolist() == [[True] * 3, [True, False, False]]
    assert importance.best_pairs(found, scores, 1 / 3, 8).real.sum(-1).tolist() == [8, 2]


@EVERY
@pytest.mark.parametrize("kind", ["no pair", "no table", "no path either", "no content", "absent"])
def test_items_without_pairs_contribute_nothing(world, options, kind) -> None:
    method = world.method("emo", **options)
    needs = method.needs(world.student, world.teachers)
    student, signals = world.output(range(4), needs.student.views), world.signals(range(4))
    for mode, table in signals[0].alignments.items():
        if mode != "full" or kind in {"no path either", "no content"}:
            signals[0].alignments[mode] = table[:, :0] if kind == "no table" else torch.full_like(table, -1)
    if kind == "no content":
        student.content, signals[0].content = student.content & False, signals[0].content & False
    if kind == "absent":
        signals[0] = replace(world.signals(range(4))[0], present=torch.zeros(4, dtype=torch.bool))
    terms = method(student, signals, world.batch(range(4)))
    assert not terms["ira"].counted.any()
    assert not terms["ira"].values.any()
    carried = kind.startswith("no") and (
        method.options.fixed.student_mass == "pairs" or kind in {"no pair", "no table"}
    )
    carried &= kind != "no content" or method.options.special_tokens
    assert terms["otis"].counted.all() if carried else not terms["otis"].counted.any()
    loss = total(terms)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in (*world.encoder.parameters(), *method.parameters()))


@pytest.mark.parametrize("init", ["ridge", "random"])
def test_transport_in_the_teachers_space_does_not_collapse(world, init) -> None:
    """Free student states and a trained map: the loss falls, and the states stay as spread as the teacher's."""
    method = world.method("emo", ira_weight=0, alpha=0, init=init)
    signals = world.signals(range(8))
    student = world.output(range(8))
    states = torch.randn(student.tokens[DEPTH].shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    optimizer = torch.optim.Adam([states, *method.parameters()], lr=0.03)
    losses = []
    for _ in range(150):
        terms = method(replace(student, tokens={DEPTH: states}), signals, world.batch(range(8)))
        optimizer.zero_grad()
        total(terms).backward()
        optimizer.step()
        losses.append(total(terms).item())
    assert losses[-1] < 0.7 * losses[0]
    content = states.detach()[0][student.content]
    alike = cosine_similarity(content[:, None], content[None], dim=-1)
    assert alike.mean() < 0.5


def test_ablations_ask_for_less(world) -> None:
    both = world.method("emo").needs(world.student, world.teachers)
    assert both.student.views == 2 and both.coupled and not both.sentence
    assert (both.student.tokens, both.student.attention) == ((3,), (2, 3))
    wanted = both.of(0)
    assert (wanted.tokens, wanted.attention, wanted.alignment) == ((6,), (4, 6), ("strict", "full"))
    without_otis = world.method("emo", otis_weight=0)
    needs = without_otis.needs(world.student, world.teachers)
    assert needs.student.tokens == () and needs.of(0).tokens == ()
    assert not list(without_otis.parameters())
    assert set(world.step(without_otis)) == {"simcse", "ira"}
    without_ira = world.method("emo", ira_weight=0)
    needs = without_ira.needs(world.student, world.teachers)
    assert needs.student.attention == () and needs.of(0).attention == (6,)
    assert set(world.step(without_ira)) == {"simcse", "otis"}


def test_shares_are_the_published_grid(world) -> None:
    world.encoder.eval()
    values = set()
    for share in (1, 1 / 2, 1 / 3):
        method = world.method("emo", share=share, minimum=1, cka="plain")
        values.add(mean(world.step(method, range(16))["ira"]).item())
    assert len(values) == 3


def test_a_task_takes_the_place_of_simcse(world) -> None:
    method = world.method("emo", student=TASK)
    needs = method.needs(TASK, world.teachers)
    assert needs.student.views == 1 and not needs.coupled
    terms = method(world.output(range(8)), world.signals(range(8)), world.batch(range(8)))
    assert {name: term.weight for name, term in terms.items()} == pytest.approx({"ira": 0.1, "otis": 1})
    unsupervised = world.step(world.method("emo", alpha=0.2))
    found = {name: term.weight for name, term in unsupervised.items()}
    assert found == pytest.approx({"simcse": 0.2, "ira": 0.08, "otis": 0.8})


def test_the_code_sums_attention_over_the_batch(world) -> None:
    world.encoder.eval()
    plain, summed = (
        world.step(world.method("emo", cka="plain", reduction=reduction).eval())["ira"] for reduction in ("mean", "sum")
    )
    torch.testing.assert_close(mean(summed), plain.values.sum() / 2)


def test_several_teachers_count_the_same() -> None:
    world = small_world(teachers=2)
    terms = world.step(world.method("emo", alpha=0))
    assert set(terms) == {"ira:teacher0", "ira:teacher1", "otis:teacher0", "otis:teacher1"}
    assert {name: term.weight for name, term in terms.items() if name.startswith("otis")} == {
        "otis:teacher0": 0.5,
        "otis:teacher1": 0.5,
    }
    assert {term.weight for name, term in terms.items() if name.startswith("ira")} == {0.05}


def test_layers_are_matched() -> None:
    student, deep, shallow = (
        StudentInfo("s", 8, 6, 8),
        *(small_world().teachers[0].__class__("t", 8, n, hidden=8) for n in (28, 4)),
    )
    assert [pairs.matching_layer(student, deep, k, "floor") for k in (1, 5, 6)] == [4, 20, 24]
    assert [pairs.matching_layer(student, deep, k, "scaled") for k in (1, 5, 6)] == [5, 23, 28]
    assert [pairs.matching_layer(student, shallow, k, "scaled") for k in (1, 5, 6)] == [1, 3, 4]
    with pytest.raises(DistilvecError, match=r"^t: layer_map floor .*\b6 layers.*\b4\b.*layer_map: scaled"):
        pairs.matching_layer(student, shallow, 6, "floor")


def test_models_that_show_no_layers_are_refused(world) -> None:
    method = build_method("emo", {})
    with pytest.raises(DistilvecError, match="^static: emo "):
        method.needs(StudentInfo("static", 8, None, 8), world.teachers)
    with pytest.raises(DistilvecError, match="^service: emo "):
        method.needs(world.student, [replace(world.teachers[0], name="service", layers=None)])
    with pytest.raises(DistilvecError, match=r"^toy: emo .*\b4 layers.*\b3\b.*method\.layers to 3"):
        build_method("emo", {"layers": 4}).needs(world.student, world.teachers)
    with pytest.raises(DistilvecError, match="^emo: ira_weight and otis_weight .*0"):
        build_options("emo", {"ira_weight": 0, "otis_weight": 0})
