"""The queue of DistilCSE, the shuffling of DistillCSE, the order term of Jasper & Stella."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from distilvec.errors import DistilvecError
from distilvec.methods import distillcse
from distilvec.methods.base import Sample
from distilvec.methods.distilcse import KeyQueue


def test_the_queue_supplies_negatives_from_the_second_batch_on(world, mean) -> None:
    plain, queued = world.method("distilcse", queue=0), world.method("distilcse", queue=40)
    first = mean(world.step(queued, range(8))["contrast"])
    torch.testing.assert_close(first, mean(world.step(plain, range(8))["contrast"]))
    found = mean(world.step(queued, range(8, 16))["contrast"])
    torch.manual_seed(1)
    student = world.output(range(8, 16)).embedding[0]
    queries = torch.nn.functional.normalize(queued.teacher_map()(student), dim=-1)
    keys = torch.nn.functional.normalize(world.vectors[0][[*range(8, 16), *range(8)]], dim=-1)
    expected = torch.nn.functional.cross_entropy(queries @ keys.T / 0.05, torch.arange(8))
    torch.testing.assert_close(found, expected)


def test_queue_entries_of_the_batch_itself_are_left_out(world, mean) -> None:
    method = world.method("distilcse", queue=40)
    first = mean(world.step(method, range(8))["contrast"])
    world.step(method, range(8, 16))
    method.eval()
    again = mean(world.step(method, range(8))["contrast"])
    only = world.method("distilcse", queue=40)
    world.step(only, range(8, 16))
    torch.testing.assert_close(again, mean(world.step(only, range(8))["contrast"]))
    assert again > first


def test_the_queue_is_first_in_first_out_and_saves_keys_only(world) -> None:
    method = world.method("distilcse", queue=20)
    for start in (0, 8, 16):
        world.step(method, range(start, start + 8))
    queue = method.queues[0]
    method.state_dict()  # a checkpoint holds the last batch too
    held = {bytes(key.tolist()) for key in queue.keys}
    assert held == {bytes(key.tolist()) for key in world.keys[4:24]}
    assert not any("vectors" in key for key in method.state_dict())
    assert method.state_dict()["queues.0.keys"].dtype == torch.uint8
    assert queue.position.tolist() == [4, 20]
    method.eval()
    world.step(method, range(24, 32))
    method.state_dict()
    assert queue.position.tolist() == [4, 20]


def test_items_that_are_held_are_not_added_again(world) -> None:
    method = world.method("distilcse", queue=40)
    for rows in (range(8), range(4, 12), range(8)):
        world.step(method, rows)
    method.state_dict()
    assert method.queues[0].position.tolist() == [12, 12]


def test_a_batch_longer_than_the_queue_keeps_its_end() -> None:
    queue = KeyQueue(4, 3)
    keys = torch.arange(1, 7, dtype=torch.uint8)[:, None].expand(6, 16)
    queue.offer(keys, torch.randn(6, 3))
    queue.flush()
    assert sorted(queue.keys[:, 0].tolist()) == [3, 4, 5, 6]
    queue.offer(torch.zeros(0, 16, dtype=torch.uint8), torch.zeros(0, 3))
    queue.flush()
    assert queue.position.tolist() == [0, 4]


def test_without_a_store_the_loaded_queue_starts_empty_and_says_so(world, caplog) -> None:
    method = world.method("distilcse", queue=40)
    world.step(method, range(8))
    other = world.method("distilcse", queue=40)
    other.load_state_dict(method.state_dict())
    world.step(other, range(8, 16))
    other.state_dict()
    assert "starts empty" in caplog.text
    assert other.queues[0].position.tolist() == [8, 8]


def test_absent_items_do_not_enter_the_queue(world) -> None:
    method = world.method("distilcse", queue=40)
    signals = world.signals(range(8))
    signals[0].present[2] = False
    method(world.output(range(8)), signals, world.batch(range(8)))
    method.state_dict()
    assert int(method.queues[0].position[1]) == 7
    assert bytes(world.keys[2].tolist()) not in {bytes(key.tolist()) for key in method.queues[0].keys}


def test_distillcse_rows_are_the_cross_entropy_without_the_diagonal(world, mean) -> None:
    method = world.method("distillcse", group_p=None)
    torch.manual_seed(1)
    student, signals = world.output(range(8), 2), world.signals(range(8))
    found = mean(method(student, signals, world.batch(range(8)))["rows"])

    def rows(vectors: torch.Tensor, temperature: float) -> torch.Tensor:
        unit = torch.nn.functional.normalize(vectors, dim=-1)
        off = ~torch.eye(8, dtype=torch.bool)
        return (unit @ unit.T)[off].view(8, 7) / temperature

    target, logits = rows(signals[0].sentence, 0.0125).softmax(-1), rows(student.embedding[0], 0.025)
    torch.testing.assert_close(found, -(target * logits.log_softmax(-1)).sum(-1).mean())


def test_shuffling_permutes_inside_groups_of_equal_mass(world, monkeypatch) -> None:
    """With one group of everything any pairing may occur; with tiny groups none but the true one does."""
    batch = world.batch(range(10))
    generator = torch.Generator().manual_seed(0)
    wanted, relations = torch.rand(10, 10, generator=generator), torch.rand(10, 10, generator=generator)
    allowed = ~batch.duplicate
    monkeypatch.setattr(distillcse, "TEACHER_TEMPERATURE", 1.0)

    def shuffled(p: float) -> tuple[torch.Tensor, torch.Tensor]:
        method = world.method("distillcse", group_p=p, seed=1)
        found, target, mask = method._shuffle(relations, wanted, allowed, batch)
        assert mask[:, :9].all()
        assert not mask[:, 9].any()
        assert (target[:, :8] >= target[:, 1:9]).all()
        return found[:, :9], relations.gather(-1, wanted.masked_fill(~allowed, -2).argsort(-1, descending=True))[:, :9]

    found, plain = shuffled(1e-4)
    assert torch.equal(found, plain)
    found, plain = shuffled(0.999)
    assert not torch.equal(found, plain)
    assert torch.equal(found.sort(-1).values, plain.sort(-1).values)
    found, plain = shuffled(0.5)
    mass = wanted.masked_fill(~allowed, -1e9).softmax(-1).sort(-1, descending=True).values[:, :9]
    group = ((mass.cumsum(-1) - mass) / 0.5).floor()
    for row in range(10):
        for number in group[row].unique():
            inside = group[row] == number
            assert torch.equal(found[row][inside].sort().values, plain[row][inside].sort().values)


def test_distillcse_averages_the_cosines_of_teachers_that_are_there(two_teachers, mean) -> None:
    world = two_teachers
    method = world.method("distillcse", group_p=None, simcse_weight=0)
    student, signals, batch = world.output(range(6)), world.signals(range(6)), world.batch(range(6))
    for one in signals:
        one.present[1] = False
    signals[1].present[2] = False
    rows = method(student, signals, batch)["rows"]
    assert rows.counted.tolist() == [True, False, True, True, True, True]
    keep = [0, 2, 3, 4, 5]
    cosines = [torch.nn.functional.normalize(one.sentence[keep], dim=-1) for one in signals]
    first, second = (unit @ unit.T for unit in cosines)
    average = (first + second) / 2
    average[1, :] = first[1, :]
    average[:, 1] = first[:, 1]
    off = ~torch.eye(5, dtype=torch.bool)
    unit = torch.nn.functional.normalize(student.embedding[0][keep], dim=-1)
    target = (average[off].view(5, 4) / 0.0125).softmax(-1)
    logits = ((unit @ unit.T)[off].view(5, 4) / 0.025).log_softmax(-1)
    torch.testing.assert_close(mean(rows), -(target * logits).sum(-1).mean())


def test_distillcse_averages_by_the_teachers_weights(two_teachers) -> None:
    world = two_teachers
    student, signals, batch = world.output(range(6)), world.signals(range(6)), world.batch(range(6))

    def rows(weights: list[float], given: list) -> torch.Tensor:
        method = world.method("distillcse", group_p=None, simcse_weight=0)
        infos = [replace(world.teachers[0], name=str(number), weight=weight) for number, weight in enumerate(weights)]
        method.build(world.student, infos, Sample(student, given))
        return method(student, given, batch)["rows"].values

    first, second = signals
    torch.testing.assert_close(rows([1.0, 0.0], [first, second]), rows([1.0], [first]))
    torch.testing.assert_close(rows([3.0, 1.0], [first, second]), rows([1.0] * 4, [first, first, first, second]))


def test_the_order_term_over_all_pairs_is_the_published_sum(world) -> None:
    """Few enough pairs of pairs are all taken; then it is the mean over a < b of the published hinge."""
    method = world.method("jasper_stella", prefixes=[5], margin=0.4)
    torch.manual_seed(1)
    student, signals = world.output(range(6)), world.signals(range(6))
    found = method(student, signals, world.batch(range(6)))["order"].values
    projected, hinges = method.teacher_map()(student.embedding[0]), []
    teacher = torch.nn.functional.normalize(signals[0].sentence, dim=-1)
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    for width in (20, 5):
        unit = torch.nn.functional.normalize(projected[:, :width], dim=-1)
        for a, (i, j) in enumerate(pairs):
            for k, m in pairs[a + 1 :]:
                wanted = teacher[i] @ teacher[j] - teacher[k] @ teacher[m]
                gap = unit[i] @ unit[j] - unit[k] @ unit[m]
                hinges.append(torch.relu(0.4 - wanted.sign() * gap))
    torch.testing.assert_close(found, torch.stack(hinges).mean())


def test_drawn_pairs_estimate_the_whole_and_depend_on_the_batch_only(world, mean) -> None:
    whole = world.method("jasper_stella", pairs=10**6)
    drawn = world.method("jasper_stella", pairs=20_000)
    exact = world.step(whole, range(40))["order"].values
    first = world.step(drawn, range(40))["order"].values
    assert first.item() == pytest.approx(exact.item(), rel=0.05)
    assert first.item() != exact.item()
    assert world.step(copy.deepcopy(drawn), range(40))["order"].values.item() == first.item()
    (i, j), (k, m) = drawn._pairs_of_pairs(world.batch(range(40)))
    assert ((i < j) & (k < m)).all()
    assert ((i != k) | (j != m)).all()
    (other, _), _ = drawn._pairs_of_pairs(world.batch(range(1, 41)))
    assert not torch.equal(i, other)


def test_jasper_trains_the_heads_first(world) -> None:
    method = world.method("jasper_stella")
    assert not method.trains_student(0.0)
    assert not method.trains_student(0.28)
    assert method.trains_student(0.29)
    assert world.method("jasper_stella", heads_share=0).trains_student(0.0)
    with pytest.raises(DistilvecError, match=r"^jasper_stella, teacher teacher0: .*\[20\] .*1 .*20\b"):
        world.method("jasper_stella", prefixes=[20])


def test_simcse_of_orthonormal_views_has_its_closed_form(world) -> None:
    from distilvec.students.output import StudentOutput

    method = world.method("simcse", temperature=0.5)
    embedding = torch.eye(12)[:8].expand(2, -1, -1)
    values = method(StudentOutput(embedding), [], world.batch(range(8)))["simcse"].values
    torch.testing.assert_close(values, torch.full((8,), math.log(1 + 7 * math.exp(-2))))


def test_leaf_logs_the_cosine_without_training_on_it(world, loss) -> None:
    terms = world.step(world.method("leaf"))
    assert set(terms) == {"leaf", "cosine"}
    assert terms["cosine"].weight == 0
    assert not terms["cosine"].values.requires_grad
