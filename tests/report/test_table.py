"""Tables and sentences: what stands in them, and that none claims more than its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.console import Console
from tests.disk import full_beyond
from tests.report.example import example, teacher

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.compare import Comparison
from distilvec.judging import Judgement, Score
from distilvec.judging.bootstrap import make_score, paired_bootstrap
from distilvec.judging.scores import Outputs
from distilvec.report import (
    ModelRow,
    Record,
    ScoreEntry,
    compare_table,
    show_scores,
    show_table,
)
from distilvec.report.card import model_card
from distilvec.report.grid import Cell, Grid
from distilvec.report.render.markdown import blocks_markdown
from distilvec.report.render.terminal import brief_markdown
from distilvec.report.sections.training import log_curves, smoothed, thinned
from distilvec.report.summary import summary, verdict
from distilvec.words import duration, millions, number, points, share, signed, size


def judged(*rows: ModelRow) -> Record:
    return Record(title="x", sections={"scores": {"models": rows}})


def test_main_table_has_a_row_per_model_and_retrieval_apart() -> None:
    grid = example()["scores"].main_grid()
    assert grid.header == [
        "model", "in-domain", "out-of-domain", "average", "kept", "retrieval", "retrieval kept",
        "parameters", "on disk", "texts/s", "p50 / p95 ms",
    ]  # fmt: skip
    assert [row[0].text for row in grid.rows] == ["all-MiniLM-L6-v2", "untrained student", "free baseline", "student"]
    first = dict(zip(grid.header, grid.rows[0], strict=True))
    assert first["kept"].text == "100.0 %"
    assert first["retrieval"].text == "68.4"
    assert first["retrieval"].interval == "67.2–69.6"
    assert first["parameters"].text == "22.71 M"
    assert first["on disk"].text == "91.0 MB"
    assert first["p50 / p95 ms"].text == "7.9 / 9.4"


def test_columns_without_data_do_not_appear() -> None:
    row = ModelRow(name="m", role="student", scores={"t": ScoreEntry(value=0.5)})
    assert judged(row)["scores"].main_grid().header == ["model", "average"]


def test_a_single_domain_gets_no_column_of_its_own() -> None:
    row = ModelRow(name="m", scores={"t": ScoreEntry(value=0.5, domain="in")})
    assert judged(row)["scores"].main_grid().header == ["model", "average"]


def test_task_table_says_what_is_missing() -> None:
    rows = [
        ModelRow(name="a", scores={"t": ScoreEntry(value=0.5)}),
        ModelRow(name="b", scores={"u": ScoreEntry(value=0.25)}),
    ]
    grid = judged(*rows)["scores"].task_grid()
    assert [[cell.text for cell in row] for row in grid.rows] == [["t", "50.0", "—"], ["u", "—", "25.0"]]


def test_latex_cannot_be_broken_by_names() -> None:
    made = Grid(
        ["a & b", "50 %"], [[Cell("x_y{}~^\\#$"), Cell("—", "−1.0 to +2.0")]], ["100 %\n\\end{tabular}"]
    ).latex()
    assert made.splitlines()[1:6] == [
        r"\toprule", r"a \& b & 50 \% \\", r"\midrule",
        r"x\_y\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}\#\$ & --- ($-$1.0 to +2.0) \\", r"\bottomrule",
    ]  # fmt: skip
    assert made.splitlines()[-1] == r"% 100 % \end{tabular}" and len(made.splitlines()) == 8
    signs = Grid(["a<b>c|d"], [], []).latex().splitlines()[2]
    assert signs == r"a\textless{}b\textgreater{}c\textbar{}d \\", "the usual font prints other signs for them"


def test_markdown_cannot_be_broken_by_names() -> None:
    row = ModelRow(name="a|b\n# <img> [x](y)", scores={"t": ScoreEntry(value=0.5)})
    lines = brief_markdown(judged(row)).splitlines()
    assert len(lines) == 3
    assert "<img>" not in lines[2] and "a\\|b" in lines[2] and "[x](y)" not in lines[2]


def test_words_between_tildes_are_not_struck_through() -> None:
    """As chats have them; by a reader of the markdown that hubs show."""
    text = "so ~~nice~~, see you, ~30 of ~40"
    read = (
        MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(Grid(["t"], [[Cell(text)]], []).markdown())
    )
    assert f"<td>{text}</td>" in read


def test_a_winner_is_named_only_with_support(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(example())
    shown = " ".join(capsys.readouterr().out.split())
    assert "student is better than free baseline (+6.4 points" in shown
    alarm = "On retrieval, student cannot be told apart from free baseline (+1.2 points, 95 % interval −0.4 to +2.9)"
    assert f"Alarm: {alarm}" in shown and shown.count(alarm) == 1


def test_the_head_says_what_is_kept_and_at_what_size_and_speed() -> None:
    head = "\n".join(blocks_markdown(summary(example())))
    assert head.startswith("The student keeps 95.") and "average over 9 tasks" in head
    for line in (
        "- 5.46 M parameters, 24 % of the teacher's 22.71 M",
        "- 21.9 MB on disk, 24 % of the teacher's 91.0 MB",
        "- 2,098 texts per second, 3.4 × the teacher · one text: 2.3 ms",
    ):
        assert line in head
    assert head.count("95.6 %") == 1 and head.count("cannot be told apart") == 1, "nothing is said twice"


def test_a_small_share_of_a_large_teacher_is_not_nothing() -> None:
    teacher = ModelRow(name="t", role="teacher", parameters=7_000_000_000, size_bytes=14_000_000_000)
    student = ModelRow(name="s", role="student", parameters=22_000_000, size_bytes=88_000_000)
    head = "\n".join(blocks_markdown(summary(judged(teacher, student))))
    assert "22.00 M parameters, 0.31 % of the teacher's 7,000 M" in head
    assert "88.0 MB on disk, 0.63 % of the teacher's 14.0 GB" in head


def test_verdict_says_what_the_students_own_head_answers() -> None:
    scores = {"student": {"accuracy": 0.387, "f1": 0.2}, "all-MiniLM-L6-v2": {"accuracy": 0.62}}
    own = verdict(example(supervised={"scores": scores}))
    assert "On the task's test file its own head has an accuracy of 38.7, the teacher's 62.0." in own
    assert "without that head" in own and "own head" not in verdict(example())


def test_verdict_without_scores_or_student() -> None:
    assert verdict(Record(title="x")) == "No student was judged in this run."
    bare = judged(ModelRow(name="s", role="student", parameters=2_000_000))
    assert blocks_markdown(summary(bare)) == ["The student was not scored.", "- 2.00 M parameters"]
    alone = judged(ModelRow(name="s", role="student", scores={"t": ScoreEntry(value=0.5)}))
    assert verdict(alone) == "The student reaches a score of 50.0."


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (points(0.78125), "78.1"), (points(-0.0001), "0.0"), (points(float("nan")), "—"), (signed(-0.03), "−3.0"),
        (share(0.0031), "0.31 %"), (size(21_900_000), "21.9 MB"), (size(12), "12 B"), (number(1234.6), "1,235"),
        (millions(4_120), "4,120"), (number(0.4567), "0.457"), (duration(3.21), "3.2 s"), (duration(59.7), "1 min 0 s"),
        (duration(12_000), "3 h 20 min"), (duration(4.5 * 86400), "4 d 12 h"),
    ],
)  # fmt: skip
def test_numbers(shown: str, wanted: str) -> None:
    assert shown == wanted


def test_log_curves_keep_terms_and_held_out_measures_only() -> None:
    log = [
        {"step": 1, "loss": 2.0, "term/tamd": 1.0, "learning_rate": 0.1, "grad_norm": 3.0, "epoch": 0.1},
        {"step": 2, "loss": float("nan"), "term/tamd": 0.5, "eval_agreement_cosine": 0.7},
        {"step": 2, "train_runtime": 9.0, "train_loss": 1.0, "skipped_steps": 1},
    ]
    panels, gates = log_curves(log)
    assert gates == {} and panels == {
        "loss": ([1.0], [2.0]),
        "term tamd": ([1.0, 2.0], [1.0, 0.5]),
        "held-out agreement cosine": ([2.0], [0.7]),
    }


def test_curves_are_thinned_without_losing_the_mean() -> None:
    steps, values = thinned([float(i) for i in range(10_000)], [float(i % 10) for i in range(10_000)])
    assert len(steps) <= 400
    assert values.mean() == pytest.approx(4.5)
    assert smoothed(np.ones(50)).tolist() == [1.0] * 50


def _score(task: str, value: float, kind: str = "similarity", n: int = 400, seed: int = 0) -> Score:
    rng = np.random.default_rng(seed)
    truth = rng.integers(2, size=n).astype(np.int32)
    right = rng.random(n) < value
    outputs = Outputs("accuracy", truth, np.where(right, truth, 1 - truth).astype(np.int32))
    return make_score(task=task, kind=kind, domain=None, outputs=outputs)


def test_show_scores(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"a": _score("a", 0.8), "b": _score("b", 0.6), "r": _score("r", 0.5, "retrieval")}
    show_scores(Judgement({"model": scores}))
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("accuracy", "average", "retrieval"))


def _seeds(value: float, count: int) -> list[dict[str, Score]]:
    """Truth is the same for all seeds and methods, as it is on real test items."""
    truth = np.random.default_rng(5).integers(2, size=500).astype(np.int32)
    found = []
    for seed in range(count):
        right = np.random.default_rng(seed).random(500) < value
        outputs = Outputs("accuracy", truth, np.where(right, truth, 1 - truth).astype(np.int32))
        found.append(
            {task: make_score(task=task, kind="classification", domain=None, outputs=outputs) for task in "ab"}
        )
    return found


def test_compare_gives_means_deviations_and_supported_differences() -> None:
    results = {"cosine": _seeds(0.7, 3), "talas": _seeds(0.85, 3), "same": _seeds(0.7, 3)}
    table = compare_table(results, "cosine")
    values = [found["a"].value for found in results["talas"]]
    entry = table.entries["talas"]["a"]
    assert entry.value == pytest.approx(np.mean(values))
    assert entry.deviation == pytest.approx(np.std(values, ddof=1))
    gap = table.differences["talas"]["all"]
    assert gap.value == pytest.approx(table.entries["talas"]["all"].value - table.entries["cosine"]["all"].value)
    assert gap.verdict == "better" and entry.values == tuple(values)
    assert table.differences["same"]["all"].verdict == "open"
    shown = table.grid().markdown()
    assert "talas is better than cosine" in shown and "same cannot be told apart from cosine" in shown
    assert "±" in shown and "reference" in shown
    assert table.to_dict()["entries"]["talas"]["a"]["seeds"] == 3


def _on_five_tasks() -> dict[str, list[dict[str, Score]]]:
    levels = (("x", 0.7), ("y", 0.9), ("z", 0.5))
    return {name: [dict.fromkeys("abcde", _seeds(level, 1)[0]["a"])] for name, level in levels}


def test_a_disk_that_fills_with_the_picture_of_ranks_is_said(tmp_path: Path) -> None:
    found = Comparison(tmp_path, compare_table(_on_five_tasks(), "x"))
    found.write()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with (
        full_beyond(len(before["ranks.svg"]) - 1),
        pytest.raises(EnvironmentProblem, match=r"ranks\.svg: .*File too large"),
    ):
        found.write()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_compare_ranks_methods_where_there_are_tasks_enough() -> None:
    many = _on_five_tasks()
    table = compare_table(many, "x")
    assert table.ranking is not None and table.ranking.average == {"x": 2.0, "y": 1.0, "z": 3.0}
    assert "| rank |" in table.grid().markdown() and "Nemenyi" in table.grid().markdown()
    assert table.to_dict()["ranking"]["tasks"] == 5
    teacher = {"teacher": many["y"]}
    beside = compare_table({**teacher, **many}, "x", beside=teacher)
    assert beside.ranking == table.ranking, "who is no competitor moves no rank"
    assert "| teacher |" in beside.grid().markdown()
    few = compare_table({name: _seeds(0.7, 1) for name in "xyz"}, "x")
    assert few.ranking is None and "rank" not in few.grid().markdown()


def test_a_task_that_is_called_as_a_group_does_not_replace_it() -> None:
    """Of two retrieval tasks, one has the name that the corpus' own gets."""
    truth = np.random.default_rng(5).integers(2, size=500).astype(np.int32)

    def found(level: float, task: str) -> Score:
        right = np.random.default_rng(7).random(500) < level
        outputs = Outputs("accuracy", truth, np.where(right, truth, 1 - truth).astype(np.int32))
        return make_score(task=task, kind="retrieval", domain=None, outputs=outputs)

    results = {
        name: [{task: found(level, task) for task, level in zip(("retrieval", "faq"), levels, strict=True)}]
        for name, levels in (("x", (0.5, 0.9)), ("y", (0.6, 0.6)))
    }
    table = compare_table(results, "x")
    gap = table.entries["y"]["retrieval"].value - table.entries["x"]["retrieval"].value
    assert gap < 0 and table.differences["y"]["retrieval"].value == pytest.approx(gap)
    own, column = results["y"][0]["retrieval"].value - results["x"][0]["retrieval"].value, "retrieval (task)"
    assert own > 0 and table.differences["y"][column].value == pytest.approx(own), "nor is it lost"
    assert table.entries["y"][column].value == results["y"][0]["retrieval"].value
    assert f"| {column} | faq |" in table.grid().markdown() and f"y,{column}," in table.csv()
    alone = {name: [{"retrieval": seeds[0]["retrieval"]}] for name, seeds in results.items()}
    assert list(compare_table(alone, "x").entries["y"]) == ["retrieval"], "the average of one task is that task"


def test_a_teacher_that_its_own_search_judges_is_compared_with_no_method() -> None:
    def found(value: float) -> list[dict[str, Score]]:
        outputs = Outputs("ndcg@10", np.zeros(50, np.int8), np.full(50, value, np.float32))
        return [{"search": make_score(task="search", kind="neighbours", domain=None, outputs=outputs)}]

    teacher = {"minilm": found(1.0)}
    table = compare_table({**teacher, "x": found(0.278), "y": found(0.3)}, "x", beside=teacher)
    assert table.differences["minilm"] == {} and table.differences["y"]["retrieval"].verdict == "better"
    assert "minilm is better" not in table.grid().text() and "100.0" in table.grid().text()


def test_compare_with_one_seed_has_no_deviation_and_with_unequal_seeds_still_an_interval() -> None:
    table = compare_table({"x": _seeds(0.7, 1), "y": _seeds(0.8, 2)}, "x")
    assert table.entries["x"]["all"].deviation is None
    gap = table.differences["y"]["all"]
    assert gap.low < gap.value < gap.high
    assert gap.value == pytest.approx(table.entries["y"]["all"].value - table.entries["x"]["all"].value)


def test_intervals_know_of_seeds() -> None:
    """Three seeds that differ by far more than their items scatter."""
    results = {"x": [_seeds(0.7, 1)[0]] * 3, "y": [_seeds(level, 1)[0] for level in (0.71, 0.75, 0.85)]}
    gap = compare_table(results, "x").differences["y"]["all"]
    runs = [y["a"].value - x["a"].value for x, y in zip(results["x"], results["y"], strict=True)]
    error = np.std(runs, ddof=1) / np.sqrt(3)
    assert gap.low < gap.value - 1.5 * error and gap.high > gap.value + 1.5 * error
    assert compare_table({name: seeds[1:2] for name, seeds in results.items()}, "x").differences["y"]["all"].low > 0.02


def test_compare_refuses_what_cannot_be_compared() -> None:
    one = _seeds(0.7, 1)
    with pytest.raises(DistilvecError, match="y .* on a, x on a, b"):
        compare_table({"x": one, "y": [{"a": one[0]["a"]}]}, "x")


def test_card_warns_of_a_licence_that_forbids_commercial_use() -> None:
    bound = example(lineage={"teachers": [teacher("t", licence="cc-by-nc-4.0")]})
    assert "forbids commercial use" in model_card(bound)
    assert "forbids commercial use" not in model_card(example())
    assert "is not known" in model_card(example(lineage={"teachers": [teacher("t")]}))


def test_a_weighted_loss_shows_the_likelihood_itself() -> None:
    held_out = {"explained": 0.5, "calibration": 1.1, "nll": 0.7, "plain_nll": 1.2}

    def shown() -> str:
        (table,) = example(reproduced={"terms": held_out, "teachers": ["t"]})["reproduced"].blocks()
        return dict(zip(table.grid.header, table.grid.rows[0], strict=True))["nll per coordinate"].text

    assert shown() == "1.2"
    del held_out["plain_nll"]
    assert shown() == "0.7"


def test_interval_with_unequal_numbers_of_seeds() -> None:
    """By hand: each mean scatters by Student's t around its own, beside the items."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 4000)

    def score(right: float) -> Any:
        told = np.where(rng.random(4000) < right, truth, 1 - truth)
        return make_score(task="t", kind="classification", domain=None, outputs=Outputs("accuracy", truth, told))

    own = [score(value) for value in (0.60, 0.70, 0.80, 0.90, 0.95)]
    other = [score(value) for value in (0.55, 0.75, 0.85)]
    table = compare_table({"own": [{"t": each} for each in own], "other": [{"t": each} for each in other]}, "other")
    found = table.differences["own"]["t"]
    sides = [np.array([each.value for each in side]) for side in (own, other)]
    items = paired_bootstrap(own[:3], other).interval
    drawn = rng.normal(0, (items[1] - items[0]) / 3.92, 100_000)
    for side in sides:
        drawn += rng.standard_t(len(side) - 1, 100_000) * np.sqrt(side.var(ddof=1) / len(side))
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(high - low, rel=0.15)
    assert found.value == pytest.approx(float(sides[0].mean() - sides[1].mean()))


def test_wide_terminal_table_shows_every_column() -> None:
    names = [f"TaskNumber{number}Classification" for number in range(40)]
    grid = Grid(["model", *names], [[Cell("mine"), *(Cell(f"{number}.25") for number in range(40))]], [])
    text = grid.text()
    assert all(name in text for name in names) and all(f" {number}.25" in text for number in range(40))


@pytest.mark.parametrize("teacher", ["all-MiniLM-L6-v2", "a-very-long-name-of-a-teacher-" * 3])
def test_a_narrow_terminal_shows_every_number_whole(
    teacher: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("distilvec.report.render.terminal._console", lambda: Console(width=80))
    record = example()
    record["scores"].models[0].name = teacher
    show_table(record)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    for row in record["scores"].main_grid().rows:
        assert all(cell.text in shown and cell.interval in shown for cell in row[1:])
    score = _score("task", 0.8)
    show_scores(Judgement({name * 12: {"task": score} for name in ("teacher", "student", "another")}))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and shown.count(f" {points(score.value)} ") == 3


def test_compare_with_a_score_that_is_no_number() -> None:
    """As a benchmark may give for one seed."""
    broken = [{"t": Score("t", "mteb", "spearman", value, None, 0)} for value in (float("nan"), 0.5)]
    whole = [{"t": Score("t", "mteb", "spearman", value, None, 0)} for value in (0.4, 0.5)]
    table = compare_table({"a": broken, "b": whole}, "b")
    assert table.entries["a"]["t"].deviation is None and "| a | — |" in table.grid().markdown()
