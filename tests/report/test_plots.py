"""What the pictures show is what the record holds."""

from __future__ import annotations

import warnings

import pytest
from tests.report.example import example

from distilvec.report.plots import style
from distilvec.report.render.page import draw_figures, render_html
from distilvec.report.sections.training import PANELS, gate_figure, log_curves, training_figure

GATES = [
    {
        "step": step,
        "loss": 1.0,
        "term/gate_cosine": share,
        "term/gate_margin": 1 - share,
        "term/gate_entropy": 0.6,
        "term/gate_floor": 0.0,
        "term/gate_kl": 0.1,
    }
    for step, share in [(10, 0.5), (20, 0.6), (30, 0.75)]
]


def test_the_gate_is_drawn_by_expert_over_the_steps() -> None:
    with style():
        figure = gate_figure(log_curves(GATES)[1])
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines.keys() == {"cosine", "margin"}
    assert list(lines["cosine"].get_xdata()) == [10, 20, 30]
    assert list(lines["cosine"].get_ydata()) == [0.5, 0.6, 0.75]
    assert list(lines["margin"].get_ydata()) == [0.5, 0.4, 0.25]


def test_a_method_without_a_gate_has_no_picture_of_one() -> None:
    assert "gate" not in draw_figures(example())
    assert "gate" in draw_figures(example(training={"log": GATES}))


def test_every_term_and_held_out_measure_has_a_panel_but_the_gate_s_weights() -> None:
    terms = {f"term/part_{number}": 1.0 for number in range(14)}
    log = [{**row, **terms, "eval_agreement_cosine": 0.5} for row in GATES]
    with style():
        figure = training_figure(log_curves(log)[0])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0] == "loss" and titles[-1].startswith("held-out")
    assert {f"part {number}" for number in range(14)} <= set(titles)
    assert {"gate entropy", "gate floor", "gate kl"} <= set(titles)
    assert not {"gate cosine", "gate margin"} & set(titles)
    many = [{"step": 1, **{f"term/part_{number}": 1.0 for number in range(PANELS + 4)}}]
    assert " 4 more are in run.jsonl." in render_html(example(training={"log": many}))


@pytest.mark.parametrize(("names", "teachers", "lines"), [(34, 5, 5), (10, 10, 4), (3, 1, 1)])
def test_legend_of_many_teachers_fits_the_figure(names: int, teachers: int, lines: int) -> None:
    record = example()
    scores = record["scores"]
    rows = {row.name: row for row in scores.models}
    first = rows["student"]
    more = [first.model_copy(update={"name": f"{n:0{names}d}", "role": "teacher"}) for n in range(teachers)]
    scores.models = [*more, *scores.models]
    with style(), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = scores.figure()
        figure.draw_without_rendering()
        axes = figure.axes[0]
        legend = axes.get_legend()
        assert legend is not None
        box, whole = legend.get_window_extent(), figure.bbox
    assert axes.get_position().width > 0.6
    assert len({round(text.get_window_extent().y0) for text in legend.get_texts()}) == lines
    assert box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1, "all names are on the figure"
