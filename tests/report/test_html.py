"""The page: self-contained, small, safe with hostile texts, and alive in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from tests.report.example import example, teacher

import distilvec
from distilvec.report import Record, write_report
from distilvec.report.blocks import Bullets, Cards, Heading, Table, Text
from distilvec.report.grid import escape_markdown
from distilvec.report.render.page import LIMIT, render_html

HOSTILE = (
    '</script><script>document.documentElement.dataset.pwned=1</script><img src=x onerror="a()"> \' & \u2028 $\\frac{'
)


@pytest.fixture(scope="module")
def page() -> str:
    return render_html(example())


def hostile_record() -> Record:
    """A record whose every text from outside tries to become markup."""
    score = {HOSTILE: {"value": 0.5, "low": 0.4, "high": 0.6, "metric": HOSTILE, "kind": HOSTILE, "domain": HOSTILE}}
    known = {"name": HOSTILE, "source": HOSTILE, "licence": HOSTILE, "prompt": HOSTILE, "pooling": HOSTILE}
    card = {**teacher(**known), "examples": [HOSTILE], "warnings": [HOSTILE]}
    sections: dict[str, dict[str, Any]] = {
        "scores": {
            "models": [{"name": HOSTILE, "role": "student", "scores": score}, {"name": "t", "role": "teacher"}],
            "comparisons": [{"a": HOSTILE, "b": "t", "group": HOSTILE, "value": 0, "low": -1, "high": 1}],
        },
        "hardest": {"texts": [{"text": HOSTILE, "overlap": 0.1, "teacher": HOSTILE, "student": HOSTILE}]},
        "collapse": {"signs": {HOSTILE: {"mean_cosine": 0.5}}},
        "spaces": {"teacher": [(0, 0), (1, 1)], "student": [(0, 1), (1, 0)], "texts": [HOSTILE, "b"],
                   "groups": [HOSTILE, "b"], "projection": HOSTILE},
        "training": {"log": [{"step": 1, HOSTILE: 1.0}, {"step": 2, HOSTILE: 2.0}]},
        "mixtures": {"texts": 2, "layers": [
            {"model": HOSTILE, "layer": 1, "load": [1.0], "entropy": 0, "norm_ratio": 1, "angle": 0}]},
        "corpus": {"source": HOSTILE, "rejected": {HOSTILE: 1}, "overlap": {HOSTILE: 1}, "fingerprint": HOSTILE},
        "lineage": {"teachers": [card], "student": {"provenance": HOSTILE}},
        "rerun": {"versions": {HOSTILE: HOSTILE}, "git": HOSTILE, "recipe": {HOSTILE: HOSTILE},
                  "machine": {"name": HOSTILE, "device": HOSTILE}},
        "notes": {"lines": [HOSTILE]},
    }  # fmt: skip
    return Record(title=HOSTILE, alarms=[HOSTILE], sections=sections)


def test_everything_of_the_record_is_there(page: str) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    parts = (
        "keeps 95.; cannot be told apart; in-domain; What the intervals support; banking77; order of similarities; "
        "effective rank; tamd; held-out agreement cosine; 6 min 52 s; encoding error; STS-B; apache-2.0; "
        "layers 1 and 6; anchored_layers: 2; 95 % interval; Where they differ most; What the student finds nearest.; "
        "Inside the mixtures of experts; student, layer 2; 30 70; 0.50 of 0.69; 1.25; 42°; 200 texts"
    )
    for part in parts.split("; "):
        assert part in text, part


def test_page_and_markdown_say_the_same(page: str, tmp_path: Path) -> None:
    record = example()
    write_report(record, tmp_path)
    written = (tmp_path / "report.md").read_text(encoding="utf-8")
    shown = html.unescape(page)
    said: list[str] = []
    for chapter in record.chapters():
        said.append(chapter.title)
        cards = [each for block in chapter.blocks if isinstance(block, Cards) for card in block.cards for each in card]
        blocks = [*chapter.blocks, *cards]
        for block in blocks:
            if isinstance(block, Heading | Text):
                said.append(block.text)
            elif isinstance(block, Bullets):
                said += block.items
            elif isinstance(block, Table):
                said += [text for row in block.grid.rows for cell in row for text in (cell.text, cell.interval)]
    assert len(said) > 200
    for text in said:
        assert text in shown and escape_markdown(text) in written, text


def test_it_asks_no_other_machine_for_anything(page: str) -> None:
    assert re.findall(r"\b(?:src|href|action)\s*=\s*[\"'](?!#|data:image/png)[^\"']*", page) == []
    assert "@import" not in page and "url(http" not in page
    outside = set(re.findall(r"https?://[^\"'\s<)]+", page))
    assert outside <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page


def test_ids_are_unique_and_drawings_refer_to_their_own(page: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
    assert wanted <= set(ids)


def test_it_stays_under_three_megabytes_whatever_the_record() -> None:
    points = [(float(i), float(-i)) for i in range(400)]
    record = example(
        spaces={"teacher": points, "student": points, "texts": ["語" * 200] * 400, "groups": None},
        training={"log": [{"step": i, **{f"term/{k}": float(i % 7) for k in range(20)}} for i in range(20_000)]},
        rerun={"recipe": {"corpus": {"path": ["a text of the corpus " * 50] * 50_000}}},
        layers={"after": [0.5] * 80, "before": [0.5] * 80},
    )
    page = render_html(record)
    assert len(page.encode()) < LIMIT
    assert 'id="map"' in page and "<svg" in page
    record["spaces"].texts = ["語" * 20_000] * 400
    page = render_html(record)
    assert len(page.encode()) < LIMIT and 'id="map"' not in page and "<svg" in page


def test_hostile_texts_stay_texts() -> None:
    page = render_html(hostile_record())
    assert "<script>document" not in page and "<img" not in page
    assert page.count("<script") == 2
    assert str(escape(HOSTILE)) in page
    data = page.split('id="map-data">')[1].split("</script>")[0]
    assert not set("<>&") & set(data) and json.loads(data)["texts"] == [HOSTILE, "b"]


def test_a_bare_record_gives_a_page() -> None:
    page = render_html(Record(title="bare"))
    assert "No student was judged" in page and "<section" not in page


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def opened(file: Path, place: Path, width: int = 1280) -> str:
    """The document after its scripts have run."""
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --dump-dom --virtual-time-budget=2000"
    )
    command = [
        str(chromium()),
        *flags.split(),
        f"--user-data-dir={place / 'profile'}",
        f"--window-size={width},900",
        file.as_uri(),
    ]
    environment = {"HOME": str(place), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    if "<html" not in done.stdout:
        pytest.fail(f"chromium gave no document (exit code {done.returncode}): {done.stderr[-500:]}")
    return done.stdout


def facts(document: str) -> dict[str, str]:
    """The data attributes of the opened page's root element."""
    root = re.search(r"<html[^>]*>", document)
    assert root is not None
    return {name: html.unescape(value) for name, value in re.findall(r'data-([a-z-]+)="([^"]*)"', root.group())}


PROBE = """<script>
const root = document.documentElement;
const wide = [...document.querySelectorAll(".scroll")].map(b => b.scrollWidth - b.clientWidth);
root.dataset.page = root.scrollWidth - root.clientWidth;
root.dataset.tables = Math.max(0, ...wide);
const svg = document.querySelectorAll("#map svg")[1], box = svg.getBoundingClientRect();
const before = document.getElementById("map-text").textContent;
const dot = svg.querySelectorAll("circle")[7], x = +dot.getAttribute("cx"), y = +dot.getAttribute("cy");
const place = {clientX: box.left + x * box.width / 500, clientY: box.top + y * box.height / 500};
svg.dispatchEvent(new PointerEvent("pointermove", place));
root.dataset.chosen = document.querySelectorAll("circle.chosen").length;
root.dataset.changed = before !== document.getElementById("map-text").textContent;
root.dataset.dots = document.querySelectorAll("#map circle").length;
</script>"""


@pytest.mark.skipif(chromium() is None, reason="no chromium on this machine: the page was not opened in a browser")
def test_in_a_browser(page: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for width in (1280, 500):
        with subtests.test("nothing overflows and the map answers", width=width):
            check_layout(page, tmp_path, width)
    with subtests.test("hostile texts do nothing"):
        check_hostile(tmp_path)


def check_layout(page: str, tmp_path: Path, width: int) -> None:
    file = tmp_path / "report.html"
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)  # else the probe may not run
    file.write_text(free.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    found = facts(opened(file, tmp_path, width))
    assert found["report"] == "ready"
    assert "error" not in found
    assert found["page"] == "0"
    assert found["dots"] == "800" and found["chosen"] == "2" and found["changed"] == "true"
    if width >= 1280:
        assert found["tables"] == "0"


def check_hostile(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render_html(hostile_record()), encoding="utf-8")
    document = opened(file, tmp_path)
    found: dict[str, Any] = facts(document)
    assert found["report"] == "ready"
    assert "pwned" not in found and "error" not in found
    caption = re.search(r'<p id="map-text">(.*?)</p>', document, re.DOTALL)
    assert caption is not None
    assert html.unescape(caption.group(1)).endswith(HOSTILE)


def test_written_answers_wrap(tmp_path: Path) -> None:
    css = (Path(distilvec.__file__).parent / "report" / "render" / "page.css").read_text()
    assert "table.texts td:nth-child(2) { white-space: nowrap" not in css
    assert "table.hardest td:nth-child(2) { white-space: nowrap" in css
