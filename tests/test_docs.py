"""The documentation says what is so: it builds, its recipes are recipes, its code runs, its commands exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from distilvec.corpus import content_keys, docstrings
from distilvec.errors import DistilvecError
from distilvec.flow import demo
from distilvec.flow.defaults import with_defaults
from distilvec.judging.spec import TaskSpec
from distilvec.kinds.base import find_kind
from distilvec.recipe import Recipe
from distilvec.recipe.defaults import Default
from distilvec.store import SignalStore
from distilvec.teachers import load_teacher
from distilvec.training.optimizers import make_schedule

ROOT = Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "src/distilvec/recipe/packaged").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES += sorted({*ROOT.glob("docs/**/*.md")} - {*ROOT.glob("docs/figures/*.md")})
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- generated: [^>]+? -->\n.*?<!-- /generated -->", re.DOTALL)
MACHINE = re.compile(r"(?<![\w.])/(work|root|home|tmp|mnt|Users)/")
#: Hub ids in blocks that are run; a tiny model stands in for them.
HUB_IDS = (
    "BAAI/bge-base-en-v1.5",
    "sentence-transformers/all-mpnet-base-v2",
    "sentence-transformers/all-MiniLM-L6-v2",
)


def blocks(language: str) -> Iterator[Any]:
    """All fenced blocks of a language, as parameters (page, code) named by page and number."""
    for page in PAGES:
        found = [m for m in FENCE.finditer(page.read_text(encoding="utf-8")) if m[2] == language]
        for number, match in enumerate(found, start=1):
            yield pytest.param(page, textwrap.dedent(match[3]), id=f"{page.name}-{number}")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


# the site


def test_the_site_builds_strictly_and_asks_no_other_server(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index", "methods", "recipes", "troubleshooting"):
        html = (tmp_path / "site" / f"{page}.html").read_text(encoding="utf-8")
        fetched = re.findall(
            r"<(?:script|img|link rel=\"(?:stylesheet|preconnect|icon)\")[^>]+(?:src|href)=\"(http[^\"]+)", html
        )
        assert not fetched, f"{page}: {fetched}"


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """docs/generate.py as a module, with docs/figures.py beside it."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_what_the_code_and_the_results_say(generate: Any) -> None:
    for page in generate.pages():
        text = page.read_text(encoding="utf-8")
        assert generate.rewritten(text, page) == text, f"{page.name} is out of date: run python docs/generate.py"
    assert "<!-- generated: methods -->" in (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    chart = (ROOT / "docs/assets/chart.svg").read_text(encoding="utf-8")
    assert generate.chart() == chart, "the chart is out of date: run python docs/generate.py"


@pytest.mark.parametrize("experiment", sorted(page.parent.name for page in ROOT.glob("experiments/*/table.py")))
def test_result_pages_are_what_the_committed_records_give(experiment: str, tmp_path: Path) -> None:
    rows = importlib.import_module("experiments.harness.records").committed(experiment)
    importlib.import_module(f"experiments.{experiment}.table").write_page(rows, tmp_path)
    pages = list(tmp_path.glob("*.md"))
    assert pages
    for page in pages:
        there = ROOT / "experiments/results" / experiment / page.name
        assert there.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), f"{there}: run --table"


def test_every_template_of_figures_stands_on_a_page() -> None:
    templates = sorted((ROOT / "docs/figures").glob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in [*PAGES, *templates])
    for template in templates:
        marks = f"<!-- generated: figures {template.stem} -->", f'{{% include "{template.name}" %}}'
        assert any(mark in text for mark in marks), f"no page shows {template.name}"


@pytest.fixture
def changed(generate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Any]:
    """A function that changes a text in one result page and gives the figures that follow from it."""
    figures = sys.modules["figures"]
    figures.rows.cache_clear()
    real = figures.page

    def change(file: str, old: str, new: str) -> Any:
        text = real(file).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / "changed.md").write_text(text.replace(old, new), encoding="utf-8")
        monkeypatch.setattr(figures, "page", lambda name: tmp_path / "changed.md" if name == file else real(name))
        return figures

    yield change
    figures.rows.cache_clear()


def test_a_result_that_changes_makes_the_pages_stale(generate: Any, changed: Callable[[str, str, str], Any]) -> None:
    (line,) = re.findall(
        r"\| quarter, more texts \| [\d.]+ M \| \d+ \| .*",
        (ROOT / "experiments/results/quarter/table.md").read_text(encoding="utf-8"),
    )
    cells = line.split(" | ")
    first = cells[3].partition(" ")[0]
    changed("quarter/table.md", line, " | ".join([*cells[:3], cells[3].replace(first, "12.3", 1), *cells[4:]]))
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert first in text
    new = generate.rewritten(text, readme)
    assert "**It keeps** 12.3 %" in new and "more texts | 12.3 |" in new
    assert new.replace("12.3", first) == text


def test_words_about_an_order_stop_the_build_when_it_turns(changed: Callable[[str, str, str], Any]) -> None:
    figures = changed("talas/table.md", "70.58 ± 0.04", "60.58 ± 0.04")
    with pytest.raises(SystemExit, match=r"docs/figures/talas\.md: .*60\.58 .*70\.40"):
        figures.filled("talas")


def test_a_figure_that_is_not_there_stops_the_build(changed: Callable[[str, str, str], Any]) -> None:
    figures = changed("images/table.md", "| all eight |", "| all nine |")
    with pytest.raises(SystemExit, match=r"docs/figures/many-teachers\.md: .*'all eight'"):
        figures.filled("many-teachers")


RESULT_PAGES = [ROOT / "README.md", ROOT / "docs/experiments.md", *sorted(ROOT.glob("docs/results-*.md"))]


@pytest.mark.parametrize("page", RESULT_PAGES, ids=lambda page: page.name)
def test_figures_of_results_stand_in_generated_parts(page: Path) -> None:
    by_hand = GENERATED.sub("", prose(page)).partition("## Corrected figures")[0]
    found = re.findall(r"[^\n]*\d (?:%|points|times)[^\n]*", by_hand)
    assert not found, f"{page.name}: written by hand: {found}"


def test_every_method_has_a_page_with_its_docstring_options_and_results() -> None:
    from distilvec.methods.table import TABLE

    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in TABLE:
        text = (ROOT / f"docs/methods/{name}.md").read_text(encoding="utf-8")
        for kind in ("method", "options", "measured"):
            assert f"<!-- generated: {kind} {name} -->" in text
        assert f"methods/{name}.md" in site
    assert {page.stem for page in (ROOT / "docs/methods").glob("*.md")} == set(TABLE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("file", [*PAGES, *RECIPES, *EXAMPLES, ROOT / "mkdocs.yml"], ids=lambda file: file.name)
def test_no_path_of_one_machine(file: Path) -> None:
    found = MACHINE.search(file.read_text(encoding="utf-8"))
    assert found is None, f"{file.name}: {found}"


# recipes


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_packaged_recipes_are_recipes(file: Path) -> None:
    recipe = Recipe.load(file)
    make_schedule(recipe.training, torch.optim.SGD([torch.zeros(1)]), 1000)
    for task in recipe.judging.tasks:
        if isinstance(task, dict):
            TaskSpec.model_validate(task)


def test_every_method_has_a_recipe_with_the_papers_settings() -> None:
    from distilvec.methods.table import TABLE, resolve

    recipes = {Recipe.load(file).method.name for file in RECIPES if file.name.startswith("paper-")}
    beside = {"token_states", "matryoshka"}  # go with other methods, whose recipes have them
    published = {name for name in TABLE if "arXiv" in resolve(name).paper} - beside
    assert published <= recipes, "a method with a paper has a recipe src/distilvec/recipe/packaged/paper-*.yaml"
    assert recipes <= set(TABLE)


def test_starters_are_listed_in_the_quick_start() -> None:
    text = (ROOT / "docs/quick-start.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(start-[\w-]+)`", text))
    assert named == {file.stem for file in RECIPES if file.name.startswith("start-")}


@pytest.mark.parametrize(("page", "code"), blocks("yaml"))
def test_yaml_blocks_are_recipes_or_tasks(page: Path, code: str) -> None:
    data = yaml.safe_load(code)
    if "kind" in data:
        TaskSpec.model_validate(data)
        return
    rest = {
        "corpus": {"path": "texts.txt"},
        "teachers": [{"model": "some/teacher"}],
        "student": {"model": "some/student"},
    }
    recipe = Recipe.build({**rest, **data}, where=page.name)
    for task in recipe.judging.tasks:
        if isinstance(task, dict):
            TaskSpec.model_validate(task)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_students_in_a_sentence_are_sections(page: Path) -> None:
    for code in re.findall(r"`(student: \{[^`]*\})`", prose(page)):
        Recipe.build({"corpus": {"path": "texts.txt"}, "teachers": [{"model": "some/teacher"}], **yaml.safe_load(code)})


def test_the_quick_start_shows_what_is_chosen(real_teacher_folder: Path) -> None:
    """The lines on student, method and training, for the number of texts that they name."""
    page = (ROOT / "docs/quick-start.md").read_text(encoding="utf-8")
    shown = re.findall(r"^chosen +(.+)$", page, re.MULTILINE)
    (texts,) = re.findall(r"as there are ([\d,]+) texts", shown[-1])
    corpus: Any = SimpleNamespace(train_rows=range(int(texts.replace(",", ""))), kind=find_kind(None))
    teacher = {"name": "minilm", "model": str(real_teacher_folder)}
    recipe = Recipe.build({"corpus": {"path": "texts.txt"}, "teachers": [teacher]})
    assert shown == list(with_defaults(recipe, corpus).chosen)


# Python


@pytest.mark.parametrize(
    ("page", "code"), [*blocks("python"), *(pytest.param(file, file.read_text(), id=file.name) for file in EXAMPLES)]
)
def test_names_of_distilvec_in_python_exist(page: Path, code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "distilvec":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "distilvec":
            assert hasattr(importlib.import_module("distilvec"), node.attr), f"{page.name}: distilvec.{node.attr}"


@pytest.fixture(scope="module")
def one_epoch() -> Iterator[None]:
    """Recipes that leave the epochs open would read the few texts here 20 times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Default, "epochs", lambda self, texts: 1)
        yield


@pytest.fixture(scope="module")
def finished(one_epoch: None, tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, sentences: list[str]) -> Path:
    """A folder in which the README's Python block was run, with a router beside the student."""
    from sentence_transformers import SentenceTransformer

    from distilvec.students import router

    folder = tmp_path_factory.mktemp("docs")
    (folder / "texts.txt").write_text(
        "\n".join(" ".join(text.split()[:40]) for text in sentences[:80]), encoding="utf-8"
    )
    readme = next(code for page, code in (each.values for each in blocks("python")) if page.name == "README.md")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _execute(readme, tiny_bert)
    student = SentenceTransformer(str(folder / "out/student"))
    router(student, SentenceTransformer(str(tiny_bert))).save(str(folder / "out/router"))
    student.save(str(folder / "out-old/student"))
    rows = [{"query": f"question {number}", "document": f"answer {number}"} for number in range(20)]
    (folder / "search-task.yaml").write_text(yaml.safe_dump({"name": "search", "kind": "retrieval", "test": rows}))
    return folder


def blocks_to_run() -> list[Any]:
    """Python blocks, but for those run elsewhere: what `finished` starts with, test_export's and test_adapters', and
    those of the page that is followed as a whole.
    """
    return [
        each
        for each in blocks("python")
        if each.values[0].name != "scores.md"
        and not any(call in each.values[1] for call in ("distilvec.distill(", "load_onnx(", "adapters=["))
    ]


@pytest.mark.parametrize(("page", "code"), blocks_to_run())
def test_python_blocks_run(
    page: Path, code: str, finished: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    if page.name == "use-with.md":  # packages of others, which the environment for development does not have
        modules = re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)
        if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
            pytest.skip(f"{missing[0]} is not installed")
    if "out/gguf/" in code:
        from distilvec.export import export_gguf

        export_gguf("out/student", "out/gguf")
    if "127.0.0.1:8080" in code:
        from tests.serving.test_serve import running

        from distilvec.serving import application

        with running(application(SentenceTransformer("out/student"), "my-student")) as address:
            _execute(code.replace("http://127.0.0.1:8080", address), tiny_bert)
        return
    if page.name == "old-index.md":  # an index of 600 texts of the demo's teacher: few of a tiny one do here
        read = docstrings.docstring_pairs
        monkeypatch.setattr(demo, "demo_teacher", lambda: str(tiny_bert))
        monkeypatch.setattr(docstrings, "docstring_pairs", lambda limit: read(limit=60))
    _execute(code, tiny_bert)


def test_the_page_on_scores_can_be_followed(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block after block in an empty folder, with a tiny teacher and few pairs: files, Python and commands."""
    from distilvec.cli.main import main

    read = docstrings.docstring_pairs
    monkeypatch.setattr(demo, "demo_teacher", lambda: str(tiny_bert))

    def few_and_short(limit: int) -> list[dict[str, str]]:
        return [{key: value[:60] for key, value in pair.items()} for pair in read(limit=limit // 20)]

    monkeypatch.setattr(docstrings, "docstring_pairs", few_and_short)
    monkeypatch.chdir(tmp_path)
    for match in FENCE.finditer((ROOT / "docs/scores.md").read_text(encoding="utf-8")):
        if match[2] == "python":
            _execute(match[3], tiny_bert)
        elif match[2] == "yaml":
            (name,) = re.findall(r"\A# (\S+\.yaml)\n", match[3])
            # A teacher of random numbers finds everything alike.
            text = match[3].replace("relative_margin: 0.05", "relative_margin: null, duplicates: null")
            Path(name).write_text(text, encoding="utf-8")
        elif match[2] == "bash":
            for line in match[3].splitlines():
                with pytest.raises(SystemExit) as ended:
                    main(shlex.split(line)[1:])
                assert not ended.value.code, line
    mined = [json.loads(line) for line in Path("mined/mined.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(mined) > 25 and all(row["negative_1"] != row["document"] for row in mined)
    assert json.loads(Path("out-scores/report.json").read_text(encoding="utf-8"))
    assert len(list(Path("out-scores/stores").iterdir())) == 2, "a teacher's vectors and a scorer's scores"


def test_the_readmes_student_opens_and_its_report_is_there(finished: Path) -> None:
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(finished / "out/student")).encode(["a cat"]).shape == (1, 32)
    assert (finished / "out/report.html").is_file()


def test_the_picture_of_the_house_is_that_of_the_imports() -> None:
    spec = importlib.util.spec_from_file_location("docs_house", ROOT / "docs/house.py")
    assert spec is not None and spec.loader is not None
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    assert house.TARGET.read_text(encoding="utf-8") == house.draw(), "run python docs/house.py"


def test_the_methods_skeleton_trains(finished: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    import distilvec
    from distilvec.methods import table

    code = next(code for page, code in (each.values for each in blocks("python")) if page.name == "extending.md")
    module = types.ModuleType("docs_skeleton")
    monkeypatch.setitem(sys.modules, "docs_skeleton", module)
    exec(compile(code, "extending.md", "exec", dont_inherit=True), module.__dict__)
    monkeypatch.setitem(table.TABLE, "squared_cosine", "docs_skeleton:SquaredCosine")
    monkeypatch.chdir(finished)
    student = distilvec.train(
        str(tiny_bert),
        student=str(tiny_bert),
        corpus="texts.txt",
        method={"name": "squared_cosine", "init": "random"},
        output="out-skeleton",
        cache="out",
        training={"max_steps": 3, "batch_size": 8},
    )
    assert student.encode(["a cat"]).shape == (1, 32)
    assert '"term/squared_cosine"' in (finished / "out-skeleton/run.jsonl").read_text()


def test_the_token_loss_of_the_page_trains_from_its_own_file(
    finished: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distilvec

    codes = [code for page, code in (each.values for each in blocks("python")) if page.name == "extending.md"]
    (code,) = [each for each in codes if "class LastTokens" in each]
    (tmp_path / "docs_last_tokens.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    training = {"max_steps": 6, "batch_size": 8, "logging_steps": 1}
    distilvec.train(
        str(tiny_bert),
        student={"shrink": {"of": "teacher", "layers": 1}},
        corpus=str(finished / "texts.txt"),
        method="docs_last_tokens:LastTokens",
        output="out",
        training=training,
        optimizer={"lr": 1e-3, "heads_lr": 1e-2},
    )
    log = [json.loads(line) for line in Path("out/run.jsonl").read_text().splitlines()]
    terms = [line["term/last_tokens"] for line in log if "term/last_tokens" in line]
    assert 0 < terms[-1] < terms[0] < 2


def test_the_kind_of_teacher_of_the_page_teaches(finished: Path, tmp_path: Path) -> None:
    codes = [code for page, code in (each.values for each in blocks("python")) if page.name == "extending.md"]
    (code,) = [each for each in codes if "class LettersTeacher" in each]
    (tmp_path / "letters.py").write_text(code, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(
        f"corpus: {{path: {finished / 'texts.txt'}}}\nteachers: [{{name: mine, letters: aeiou}}]\noutput: out\n"
    )
    (tmp_path / "main.py").write_text(
        "import sys\n"
        "from distilvec.teachers.table import KINDS, TeacherKind\n"
        "from letters import LettersSection\n"
        'KINDS["letters"] = TeacherKind(LettersSection, "letters:LettersTeacher")\n'
        "from distilvec.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def teach(*changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "main.py", "teach", "recipe.yaml", *changes]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    refused = teach("--set", "teachers.0.max_length=3")
    assert refused.returncode and 'unknown key "max_length"' in refused.stderr and "goes with model" in refused.stderr
    done = teach()
    assert done.returncode == 0, done.stderr
    store = SignalStore.open(tmp_path / "out/stores/mine")
    text = (finished / "texts.txt").read_text(encoding="utf-8").split("\n")[0].strip()
    found = store.read(store.rows(content_keys([text])))
    assert found.tolist() == [[text.count(each) for each in "aeiou"]]


def test_pickled_weights_are_converted_as_the_page_says(tiny_bert: Path, tmp_path: Path) -> None:
    """The whole model, with its pooling; what was refused before is opened then."""
    pickled = tmp_path / "pickled"
    SentenceTransformer(str(tiny_bert), device="cpu").save_pretrained(str(pickled))
    weights = next(pickled.rglob("model.safetensors"))
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(DistilvecError, match="pickled"):
        load_teacher(model=str(pickled))
    code = next(code for page, code in (each.values for each in blocks("python")) if "def convert" in code)
    place: dict[str, Any] = {}
    exec(compile(code, "troubleshooting.md", "exec", dont_inherit=True), place)
    place["convert"](str(pickled), str(tmp_path / "safe"))
    vectors = [load_teacher(model=str(folder)).encode(["a cat"]) for folder in (tmp_path / "safe", tiny_bert)]
    assert np.allclose(*vectors, atol=1e-5)
    assert (tmp_path / "safe/modules.json").read_text() == (pickled / "modules.json").read_text()


def _execute(code: str, model: Path) -> None:
    for name in HUB_IDS:
        code = code.replace(name, str(model))
    exec(compile(code, "a block of the documentation", "exec", dont_inherit=True), {"__name__": "docs_block"})


# commands


def _commands(page: Path) -> Iterator[list[str]]:
    """Words of every `distilvec ...` line in shell blocks and in inline code."""
    text = page.read_text(encoding="utf-8")
    lines = [line.strip() for match in FENCE.finditer(text) if match[2] == "bash" for line in match[3].splitlines()]
    lines += re.findall(r"`(distilvec[^`]*)`", prose(page))
    for line in lines:
        words = shlex.split(line.rstrip("&"), comments=True)
        if words and words[0] == "distilvec" and len(words) > 1:
            yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    from typer.main import get_command

    from distilvec.cli.main import every_command

    group: Any = get_command(every_command())

    def options(command: Any) -> set[str]:
        return {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}

    for words in _commands(page):
        while words and words[0].startswith("-"):
            assert words.pop(0) in options(group), f"{page.name}: distilvec {words}"
        if not words:
            continue
        assert words[0] in group.commands, f"{page.name}: there is no command {words[0]}"
        known = options(group.commands[words[0]])
        for word in words[1:]:
            if word.startswith("-"):
                assert word.partition("=")[0] in known, f"{page.name}: {words[0]} has no option {word}"


def test_every_exit_code_of_an_error_is_explained() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert {each.exit_code for each in (DistilvecError, *DistilvecError.__subclasses__())} <= listed


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shell = "\n".join(match[3] for match in FENCE.finditer(text) if match[2] == "bash")
        named = re.findall(r"^make (\w+)", shell, re.MULTILINE) + re.findall(r"`make (\w+)`", prose(page))
        assert set(named) <= targets, f"{page.name}: {set(named) - targets}"
