"""Take the pictures of README and the docs from a run of the demo, which is the current default.

    distilvec demo && python docs/pictures.py distilvec-demo     # pictures of a new run
    python docs/pictures.py                                      # the report of the same run again

The first keeps the run's record, without its texts, as docs/pictures/report.json. Each picture carries the hash of the
record that it shows; tests/test_pictures.py compares both with what the demo would be today. It needs chromium
and npm.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD, ASSETS = ROOT / "docs/pictures/report.json", ROOT / "docs/assets"
#: Sections of the record that the top of a report is made of; others hold texts of this machine.
KEPT = ("scores", "agreement", "cost", "corpus", "lineage", "rerun")
QUERY, TEXTS = "save an object to a file", 5_000
PLAYWRIGHT = "playwright-core@1.65.1"
TAKE = """
import { chromium } from "playwright-core";
const [executablePath, address, height, query] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 1120, height: Number(height) } });
await page.goto(address);
if (query) {
  await page.waitForFunction(() => document.body.dataset.ready, null, { timeout: 120000 });
  for (const text of ["a", query]) {  // the first answer takes longer
    await page.evaluate(() => delete document.body.dataset.took);
    await page.fill("#query", text);
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.body.dataset.took, null, { timeout: 120000 });
  }
}
await page.screenshot({ path: "shot.png" });
await browser.close();
"""


def stamp() -> str:
    """What a picture carries of the run that it shows."""
    return hashlib.sha256(RECORD.read_bytes()).hexdigest()


def keep(run: Path) -> None:
    """Write the record of a run without texts and paths."""
    record = json.loads((run / "report.json").read_text(encoding="utf-8"))
    record["sections"] = {name: data for name, data in record["sections"].items() if name in KEPT}
    for facts in record["sections"]["lineage"]["teachers"]:
        facts["examples"] = []
    for teacher in record["sections"]["rerun"]["recipe"]["teachers"]:
        teacher["model"] = Path(teacher["model"]).parent.name
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def photograph(address: str, target: Path, height: int, query: str = "") -> None:
    """What chromium shows of a page, after a query is typed into it, stamped."""
    from PIL import Image, PngImagePlugin

    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for found in map(shutil.which, names) if found), None)
    if browser is None:
        raise SystemExit("no chromium on this machine")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "take.mjs").write_text(TAKE, encoding="utf-8")
        subprocess.run(["npm", "install", "--silent", "--ignore-scripts", PLAYWRIGHT], cwd=folder, check=True)
        subprocess.run(["node", "take.mjs", browser, address, str(height), query], cwd=folder, check=True)
        said = PngImagePlugin.PngInfo()
        said.add_text("run", stamp())
        Image.open(folder / "shot.png").convert("RGB").save(target, pnginfo=said, optimize=True)


def report() -> None:
    """README's picture of the report."""
    from distilvec.report.record import Record
    from distilvec.report.render.page import draw_figures, render_html

    record = Record.load(RECORD)
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "report.html"
        page.write_text(render_html(record, draw_figures(record)), encoding="utf-8")
        photograph(page.as_uri(), ASSETS / "report.png", 1180)


def search_page(run: Path) -> None:
    """The search page of the run's student over docstrings."""
    from distilvec.corpus.docstrings import docstring_pairs
    from distilvec.export import export_web

    texts = [" ".join(pair["summary"].split()) for pair in docstring_pairs(limit=TEXTS)]
    with tempfile.TemporaryDirectory() as place:
        export_web(run / "student", Path(place) / "web", search=texts, title="Search in docstrings")
        handler = functools.partial(SimpleHTTPRequestHandler, directory=f"{place}/web/page")
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = f"http://127.0.0.1:{server.server_port}/index.html"
            photograph(address, ASSETS / "search-page.png", 800, QUERY)
            server.shutdown()


def main(arguments: list[str]) -> None:
    """Take them."""
    if arguments:
        keep(Path(arguments[0]))
        search_page(Path(arguments[0]))
    report()


if __name__ == "__main__":
    main(sys.argv[1:])
