"""Kinds of hostile inputs: each makes one in a folder, and returns what a user would do with it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attacking import damage, endless, jobs, tables, typed
from attacking.children import call
from attacking.mutate import TEXTS, spoil_bytes, spoil_folder, spoil_tree, wild

Act = Callable[[], int | None]
#: YAML that is more than values.
YAML = (
    "a: &a [*a]\n",
    "x: &a {b: *a}\n",
    "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
    "g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
    "x: !!python/object/apply:os.mkdir [burst]\n",
    "x: !!binary abc\n",
    "x: !unknown 1\n",
    "<<: {output: out2}\n",
    "<<: *nothing\n",
    "? [a, b]\n: c\n",
    "? {a: b}\n: c\n",
    "output: a\noutput: b\n",
    "---\na: 1\n---\nb: 2\n",
    "%YAML 9.9\n---\na: 1\n",
    "\tx: 1\n",
    "x: " + "[" * 2000 + "\n",
    "x: " + "{a: " * 500 + "1" + "}" * 500 + "\n",
    "x: " + "9" * 5000 + "\n",
    "x: 0x" + "f" * 5000 + "\n",
    "x: 1:59:59:59:59\n",
    "x: 2026-13-45\n",
    "x: 2026-01-01T99:99:99\n",
    "x: .nan\n",
    "x: 1_000_\n",
    "x: \x00\n",
)


def recipe(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """A spoilt recipe, loaded; some of those that load are looked at dry, or trained with."""
    base = jobs.recipes(inputs)[rng.choice(("plain", "sharp", "tokens", "judged"))]
    base["training"] = base["training"] | {"max_steps": 2}
    data = spoil_tree(base, rng)
    if isinstance(data, dict):  # those two say where to write, as they may
        data = {key: value for key, value in data.items() if key not in ("cache", "remote")}
    text = _dumped(data)
    kind = rng.random()
    if kind < 0.2:
        text = spoil_bytes(text.encode(), rng).decode("utf-8", "surrogateescape")
    elif kind < 0.3:
        text = rng.choice((text + rng.choice(YAML), rng.choice(YAML) + text, rng.choice(YAML)))
    (folder / "recipe.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    then = rng.random()
    if b"cache" in text.encode("utf-8", "surrogateescape") or b"remote" in text.encode("utf-8", "surrogateescape"):
        then = 1.0

    def act() -> int | None:
        from distilvec import Recipe

        loaded = Recipe.load("recipe.yaml")
        Recipe.build(yaml.safe_load(loaded.to_yaml()))
        if then < 0.3:
            return call(["teach", "recipe.yaml", "--dry-run", "-o", "out"])
        if then < 0.4:
            return call(["run", "recipe.yaml", "--dry-run", "-o", "out"])
        if then < 0.6:
            return call(["train", "recipe.yaml", "-o", "out"])
        return None

    return act


def _dumped(data: Any) -> str:
    try:
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, TypeError, ValueError, RecursionError):
        return repr(data)


def options(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """Odd words on the command line."""
    shutil.copyfile(inputs / "plain.yaml", folder / "recipe.yaml")
    (folder / "file").write_text("a file\n")
    (folder / "empty").mkdir()
    (folder / "loop").symlink_to("loop")
    names = [
        f"{section}.{key}"
        for section, values in jobs.recipes(inputs)["plain"].items()
        if isinstance(values, dict)
        for key in values
    ]
    names += [
        "teachers.0.name",
        "teachers.9.name",
        "teachers",
        "student",
        "student.shrink.of",
        "x",
        "",
        "a.b.c",
        "..",
        "training.seed",
        "student.fresh.layers",
        "method.0.name",
        "method.weight",
        "corpus.text",
    ]
    bert = str(inputs / "bert")
    places: Sequence[str] = (
        "file",
        "empty",
        "loop",
        "nowhere",
        "file/inside",
        "recipe.yaml",
        "x" * 300,
        "",
        ".",
        "a\nb",
    )

    def odd() -> str:
        kind = rng.random()
        text = rng.choice(places) if kind < 0.4 else str(wild(rng))[:6000] if kind < 0.8 else rng.choice(TEXTS)
        return text.replace("\x00", "0")

    def setting() -> list[str]:
        value = odd() if rng.random() < 0.6 else rng.choice(YAML).replace("\x00", "0")
        return ["--set", rng.choice((f"{rng.choice(names)}={value}", odd(), f"{rng.choice(names)}", f"={value}"))]

    words = rng.choice((
        ["teach", "recipe.yaml", "--dry-run", *setting(), *(setting() if rng.random() < 0.3 else [])],
        ["teach", "recipe.yaml", "--dry-run", *setting()],
        ["teach", "recipe.yaml", *rng.choice((["--shard", odd()], ["--workers", odd()], ["--engine", odd()]))],
        ["teach", odd(), "--dry-run"],
        ["plan", "recipe.yaml", "--rows", odd(), "--devices", odd()],
        ["plan", "--teacher", odd(), "--corpus", odd()],
        ["plan", "recipe.yaml", "--layers", odd()],
        ["compare", "recipe.yaml", "-m", odd(), "-o", "out"],
        ["evaluate", rng.choice((bert, odd())), "-t", odd()],
        ["shrink", rng.choice((bert, odd())), "-o", "out", "--layers", odd()],
        ["shrink", bert, "-o", rng.choice(("file", "loop", "file/inside", "out")), "--layers", "1"],
        ["export", odd(), "-o", "out"],
        ["geometry", rng.choice((bert, odd())), "--data", odd()],
        ["compress", rng.choice((bert, odd())), "--data", odd(), "-o", "out"],
        ["drift", odd(), odd(), "--model", odd()],
        ["finetune", rng.choice((bert, odd())), "--data", odd(), "-o", "out"],
        ["finetune", bert, "--data", str(inputs / "train.jsonl"), "-o", "out", "--label", odd(), "--text", odd()],
        ["align", odd(), "--student", rng.choice((bert, odd())), "--teacher", rng.choice((bert, odd()))],
        ["align", "some words", "--student", bert, "--teacher", bert, "--mode", odd(), "--picture", "out/picture.png"],
        ["size", odd()],
        ["clean", rng.choice(("empty", "file", "loop", "nowhere")), "--what", odd(), "--yes"],
        ["methods", odd()],
        ["recipes", odd(), "--data", odd()],
        ["demo", "-o", "file"],
        ["demo", "-o", "file/inside", "--student", odd()],
    ))  # fmt: skip
    return lambda: call(words)


def corpus(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """A file or a folder of texts."""
    source, wanted = tables.make(rng, folder)

    def act() -> None:
        from distilvec.corpus import Corpus, read_corpus

        read = read_corpus(str(source), folder / "out", **wanted)
        if Corpus.open(folder / "out").texts() != read.texts():
            raise AssertionError("read and opened texts differ")
        len(read.train_rows), len(read.holdout_rows), read.audit

    return act


def prepared(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """A prepared corpus that was damaged: it is refused or made again, never taken for something else."""
    from distilvec.corpus import Corpus, read_corpus

    options: dict[str, Any] = {"holdout": 0.2} | ({"label": "label"} if rng.random() < 0.5 else {})
    source = inputs / ("train.jsonl" if "label" in options else "texts.jsonl")
    read_corpus(str(source), folder / "out", **options)
    expected = _content(Corpus.open(folder / "out"))
    again = rng.random() < 0.5
    spoil_folder(folder / "out", rng, _spoil)

    def act() -> None:
        found = read_corpus(str(source), folder / "out", **options) if again else Corpus.open(folder / "out")
        if _content(found) != expected:
            raise AssertionError("a damaged corpus was taken for a whole one")

    return act


def _content(found: Any) -> list[Any]:
    """What training takes from a corpus."""
    rows = [np.asarray(rows).tolist() for rows in (found.train_rows, found.holdout_rows, found.keys)]
    return [found.texts(), *rows, None if found.labels is None else np.asarray(found.labels).tolist()]


def vectors(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """Vectors from elsewhere, with their texts or keys."""
    given, texts = tables.make_vectors(rng, folder, mark)

    def act() -> None:
        from distilvec.teachers import load_teacher

        teacher = load_teacher(**given)
        found = np.asarray(teacher.encode(texts))
        if found.shape != (len(texts), teacher.card.width):
            raise AssertionError(f"vectors of shape {found.shape}")

    return act


def model(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """A model's folder, damaged or hostile, opened as a student or a teacher or by a command."""
    shutil.copytree(inputs / rng.choice(("bert", "bert", "qwen3")), folder / "model")
    if rng.random() < 0.45:
        tables.plant(rng, folder / "model", mark)
    if rng.random() < 0.8:
        spoil_folder(folder / "model", rng, _spoil)
    door = rng.random()
    (folder / "texts.txt").write_text("".join(f"a text, number {number}\n" for number in range(40)))

    def act() -> int | None:
        from distilvec.students import load_student
        from distilvec.teachers import load_teacher

        if door < 0.4:
            load_student(folder / "model", device="cpu").encode(["a text"])
        elif door < 0.75:
            load_teacher(model=folder / "model", device="cpu").encode(["a text"])
        elif door < 0.8:
            return call(["shrink", "model", "-o", "out", "--layers", "1"])
        elif door < 0.85:
            return call(["geometry", "model", "--data", "texts.txt"])
        elif door < 0.9:
            return call(["align", "some words", "--student", "model", "--teacher", str(inputs / "bert")])
        elif door < 0.95:
            return call(["evaluate", "model", "-t", str(inputs / "task.yaml")])
        else:
            return call(["finetune", "model", "--data", str(inputs / "train.jsonl"), "-o", "out", "--epochs", "0.1"])
        return None

    return act


def store(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """A store that was damaged: what is bad is named, and nothing else is read in its place."""
    from distilvec.store import SignalStore

    base = inputs / "finished" / "stores" / rng.choice(("given", "mine"))
    shutil.copytree(base, folder / "out")
    spoil_folder(folder / "out", rng, _spoil)
    how = rng.random()

    def act() -> None:
        whole = SignalStore.open(base)
        card = whole.card
        if how < 0.7:
            found = SignalStore.open(folder / "out", verify=True)
        else:
            found = SignalStore.create(folder / "out", card, whole.width, whole.dtype)
            found.verify()
        keys = whole.keys(np.arange(len(whole)))
        rows = found.rows(keys)
        there = rows >= 0
        if there.any() and (found.read(rows[there]) != whole.read(whole.rows(keys[there]))).any():
            raise AssertionError("a damaged store gave other vectors")
        found.statistics()

    return act


def run(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Act:
    """The folder of a run, finished or not, that somebody damaged; files of others in it stay as they are."""
    finished = rng.random() < 0.5
    shutil.copytree(inputs / ("finished" if finished else "unfinished"), folder / "out")
    spoil_folder(folder / "out", rng, _spoil)
    inside = (
        "checkpoints-before/a",
        "notes.txt",
        "data.partial-2023/b",
        "checkpoints/mine.txt",
        "tokens/c",
        "figures/d",
    )
    for name in inside:
        place = folder / "out" / name
        if not any(part.is_symlink() or part.is_file() for part in (place.parent, place)):
            place.parent.mkdir(exist_ok=True)
            place.write_text(name)
    kept = [name for name in inside if (folder / "out" / name).is_file()]
    recipe = str(inputs / "both.yaml")
    words = rng.choice((
        ["train", recipe, "-o", "out", "--resume"],
        ["train", recipe, "-o", "out", "--resume"],
        ["train", recipe, "-o", "out"],
        ["run", recipe, "-o", "out", "--resume"],
        ["teach", recipe, "-o", "out"],
        ["size", "out"],
        ["clean", "out"],
        ["clean", "out", "--yes"],
        ["clean", "out", "--yes", "--what", rng.choice(("derived", "tokens", "corpus", "store", "left over"))],
        ["push", "out", "nobody/nothing"],
    ))  # fmt: skip

    def act() -> int | None:
        code = call(words)
        names = {name: (folder / "out").rglob(Path(name).name) for name in kept}  # a folder may have been set aside
        lost = [name for name, files in names.items() if not any(file.read_text() == name for file in files)]
        if lost:
            raise AssertionError(f"{words[0]} lost files of others: {lost}")
        return code

    return act


def _spoil(file: Path, rng: random.Random) -> None:
    """Damage a file as its kind suggests."""
    if file.suffix == ".json" and rng.random() < 0.7:
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps(spoil_tree(data, rng), default=str))
            return
        except (ValueError, RecursionError):
            pass
    file.write_bytes(spoil_bytes(file.read_bytes(), rng))


KINDS: dict[str, Callable[[random.Random, Path, Path, Path], Act]] = {
    "recipe": recipe,
    "options": options,
    "corpus": corpus,
    "prepared": prepared,
    "vectors": vectors,
    "model": model,
    "store": store,
    "run": run,
    "typed": typed.typed,
    "endless": endless.endless,
    "checkpoint": damage.checkpoint,
}
