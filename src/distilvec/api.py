"""What people call from Python: `distill`, `choose`, `teach`, `train`, `evaluate`, `load`.

A run from Python leaves the same recipe.yaml as one from the command line, so values that YAML cannot hold become
files: texts, rows, data sets and arrays are written below `output/given/` and the recipe names those files. A
function is named as module:function; such a recipe runs again where that can be imported.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.errors import DistilvecError
from distilvec.files import read_object, refuse_foreign, whole, write_text
from distilvec.marker import claim
from distilvec.recipe import Recipe
from distilvec.sections import NAME

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.choosing import Choice
    from distilvec.export import OnnxEncoder
    from distilvec.judging import Judgement
    from distilvec.run import Run
    from distilvec.store import SignalStore

GIVEN = "given"


def distill(
    teacher: Any,
    student: Any,
    corpus: Any,
    method: str | Mapping[str, Any] = "talas",
    output: str | Path = "out",
    *,
    resume: bool = False,
    **sections: Any,
) -> Run:
    """Distil a student: teach, train, judge, report.

    Args:
        teacher: folder or hub id, a function from a list of texts to vectors [n, D], a dictionary with the keys of
            the recipe's teacher section (`vectors` and `texts` may be values), or a list of these; None for a method
            without a teacher (simcse, mnrl, sft).
        student: folder or hub id, or the recipe's student section, e.g. `{"shrink": {"of": "teacher", "layers": 2}}`;
            `"auto"` chooses one before training, as `choose` does.
        corpus: file, folder or hub:NAME; a list or generator of texts or of dictionaries, a frame of pandas or polars,
            an Arrow table, a `datasets.Dataset`; or the recipe's corpus section, in which `path` may be any of these.
        method: name, or a dictionary with `name` and its options.
        output: folder of the run.
        resume: go on where an interrupted run in that folder stopped.
        **sections: `optimizer`, `training`, `judging` and `task` as dictionaries, and `cache`. The task's `validation`
            and `test` may be values as `corpus` may.

    Returns:
        The run: `student` (a plain SentenceTransformer), `report` (the table a person reads), `folder`, `record`.

    Raises:
        DistilvecError: with what happened, where, and what to do.
    """
    from distilvec.run import run

    return run(recipe_of(teacher, student, corpus, method, output, **sections), resume=resume)


def train(
    teacher: Any,
    student: Any,
    corpus: Any,
    method: str | Mapping[str, Any] = "talas",
    output: str | Path = "out",
    *,
    resume: bool = False,
    **sections: Any,
) -> SentenceTransformer:
    """As `distill`, without judging and report; returns the student as it ships (`output/student`)."""
    from distilvec.run import train as start
    from distilvec.tasks.answering import finished_student

    recipe = recipe_of(teacher, student, corpus, method, output, **sections)
    return finished_student(start(recipe, resume=resume))


def teach(
    teacher: Any, corpus: Any, output: str | Path = "out", *, shard: tuple[int, int] | None = None, **sections: Any
) -> SignalStore:
    """Fill the store of one teacher with what it lacks of a corpus; `distill` into the same folder goes on from it.

    Args:
        teacher, corpus, output: as for `distill`, one teacher.
        shard: (i, n): only this share of the texts, so that n processes can teach at once.
        **sections: `cache`: where the store is kept instead of `output`.

    Raises:
        DistilvecError: several teachers, or whatever teaching raises.
    """
    from distilvec.flow.job import Job

    recipe = recipe_of(teacher, None, corpus, None, output, **sections)
    if len(recipe.teachers) > 1:
        what = f"teach fills one teacher's store, and {len(recipe.teachers)} are given"
        raise DistilvecError(what, where="teacher", remedy="Call it once per teacher.")
    return Job(recipe).teach(shard=shard, vectors_only=True)[0].store


def choose(
    teacher: Any,
    corpus: Any,
    tasks: Sequence[Any] = (),
    *,
    keep: float = 0.95,
    output: str | Path | None = None,
    method: str | Mapping[str, Any] | None = None,
    **options: Any,
) -> Choice:
    """Candidate students before any training, and the smallest that is predicted to keep enough: `distilvec plan`.

    Args:
        teacher, corpus: as for `distill`.
        tasks: what the student has to be good at; without any, agreement with the teacher decides.
        keep: share of the teacher that is to be kept, in (0, 1].
        output: folder in which the teacher's vectors are kept, for a later `distill` into it; None: nowhere.
        method: of the later training; candidates that it cannot train are left out. None: any.
        **options: `sample`, `probe_steps`, `layers` and `vocabularies` of `distilvec.choosing.choose`.

    Returns:
        The choice: `text()` is the table, `best.section` the student section for `distill`.

    Raises:
        DistilvecError: see `distilvec.choosing.choose`.
    """
    from distilvec.choosing import choose as start

    with kept_or_temporary(output) as place:
        recipe = recipe_of(teacher, None, corpus, method, place, judging={"tasks": list(tasks)})
        return start(recipe, keep=keep, **options)


@contextlib.contextmanager
def kept_or_temporary(output: str | Path | None) -> Iterator[str]:
    """A folder that stays, or one that goes when it is left."""
    if output is not None:
        yield str(output)
        return
    with tempfile.TemporaryDirectory(prefix="distilvec-plan-") as place:
        yield place


def evaluate(model: Any, tasks: Any, output: str | Path | None = None, *, name: str | None = None) -> Judgement:
    """Score any model with the evaluators that score teachers and students.

    Args:
        model: folder or hub id, exported ONNX folder, `SentenceTransformer`, teacher, or a function from texts to
            vectors [n, d]; a causal language model's folder where all tasks are of kind generation.
        tasks: one or several of: name of a benchmark, description (dictionary), file with one description or with
            a list of them.
        output: JSON file for the scores, with per-item results.
        name: of the model in the result; default from its folder.

    Raises:
        DistilvecError: no such model, a task that cannot be read, or `output` holds something else than scores.
    """
    from distilvec.judging import judge

    if output is not None:
        refuse_foreign(Path(output).parent, [Path(output).name], lambda _: "scores" in read_object(Path(output)))
    asked = read_tasks(tasks)
    opened: Any = model
    if isinstance(model, str | Path):
        opened = _writer(model) if asked and all(task.kind == "generation" for task in asked) else load(model)
    called = name or (Path(model).name if isinstance(model, str | Path) else "model")
    found = judge({called or "model": opened}, asked)
    if output is not None:
        write_text(Path(output), json.dumps(found.to_dict(outputs=True)) + "\n")
    return found


def _writer(model: str | Path) -> SentenceTransformer:
    """Any causal language model."""
    from distilvec.modules.writing import open_writer

    return open_writer(model).eval()


def load(path: str | Path) -> SentenceTransformer | OnnxEncoder:
    """Open a student: a sentence-transformers folder or hub id, or a folder that `distilvec export` wrote.

    Both have `encode(list of texts)`. A student of `gaussian` that kept its kernels has `explain(items)` too: by
    teacher, how well it reproduces the teacher's vector of an item (`distilvec.students.explain`). A student of a
    supervised run and a fine-tuned model have `predict(inputs)`: label names, or scores (`distilvec.tasks.answering`).

    Raises:
        DistilvecError: there is no such model.
        DataError: files beside the model are damaged.
    """
    if (Path(path) / "distilvec_onnx.json").is_file():
        from distilvec.export import load_onnx

        return load_onnx(path)
    from distilvec.tasks.answering import finished_student

    return finished_student(path)


def shrink_model(
    model: str,
    output: Path,
    *,
    layers: int | list[int] | None = None,
    vocabulary: int | None = None,
    corpus: Path | None = None,
    text: str = "text",
    **sizes: int | None,
) -> str:
    """Shrink a model into a folder and say what was kept: `distilvec shrink`; sizes are further ones of `shrink`."""
    from distilvec.corpus import read_corpus
    from distilvec.students import refuse_model, ship, shrink

    refuse_model(output)
    if layers is None and vocabulary is None and not any(size is not None for size in sizes.values()):
        raise DistilvecError(
            "there is nothing to shrink", where="shrink", remedy="Give --layers, --vocabulary or another size."
        )
    fitted = [name for name in ("embedding", "inner", "heads") if sizes.get(name) is not None]
    if (vocabulary is not None or fitted) and corpus is None:
        part = "pruning the vocabulary" if vocabulary is not None else f"cutting {fitted[0]}"
        raise DistilvecError(
            f"{part} needs the texts that the student will read", where="--corpus", remedy="Give a file."
        )
    texts: list[str] | None = None
    if corpus is not None:
        with tempfile.TemporaryDirectory(prefix="distilvec-shrink-") as place:
            texts = read_corpus(str(corpus), place, text=text, holdout=0.0).texts()
    smaller, report = shrink(model, layers=layers, vocabulary=vocabulary, texts=texts, **sizes)
    ship(smaller, output)
    return f"{report}\nstudent     {output}"


def recipe_of(
    teacher: Any,
    student: Any,
    corpus: Any,
    method: str | Mapping[str, Any] | None,
    output: str | Path,
    **sections: Any,
) -> Recipe:
    """The recipe that these values mean, None for what it does not name; what YAML cannot hold is written below
    `output/given/`.
    """
    given = Path(output) / GIVEN
    if teacher is not None:
        _check_names(teacher)
    teachers = [] if teacher is None else list(teacher) if isinstance(teacher, list | tuple) else [teacher]
    names = ["teacher"] if len(teachers) == 1 else [f"teacher{number}" for number in range(1, len(teachers) + 1)]
    if isinstance(sections.get("task"), Mapping):
        sections["task"] = _task_section(sections["task"], given)
    data = {
        "corpus": _corpus_section(corpus, given),
        "teachers": [_teacher_section(each, name, given) for each, name in zip(teachers, names, strict=True)],
        "student": None if student is None else _student_section(student),
        "method": None if method is None else dict(method) if isinstance(method, Mapping) else {"name": method},
        "output": str(output),
        **{name: str(value) if isinstance(value, Path) else value for name, value in sections.items()},
    }
    return Recipe.build({name: value for name, value in data.items() if value is not None})


def _check_names(teachers: Any) -> None:
    """Names become names of files before the recipe is validated, so that they are looked at first."""
    for each in teachers if isinstance(teachers, list | tuple) else [teachers]:
        if not isinstance(each, Mapping) or "name" not in each:
            continue
        name = each["name"]
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise DistilvecError(
                f"{str(name)[:80]!r} is no name for a teacher",
                where="teachers.name",
                remedy="Use letters, digits, dots, hyphens and underscores, and begin with a letter or digit.",
            )


def read_tasks(tasks: Any) -> list[Any]:
    """Tasks from a name, a description, a file with one or several descriptions, or a list of these."""
    import yaml

    from distilvec import plain_yaml
    from distilvec.judging import load_task
    from distilvec.judging.loading import unique

    found: list[Any] = []
    for spec in tasks if isinstance(tasks, list | tuple) else [tasks]:
        if hasattr(spec, "score") and hasattr(spec, "texts"):
            found.append(spec)
            continue
        file = Path(spec) if isinstance(spec, str | Path) else None
        if file is not None and file.suffix in (".yaml", ".yml", ".json") and file.is_file():
            try:
                listed = plain_yaml.read(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError) as error:
                raise DistilvecError(f"the task file cannot be read ({error})", where=str(file)) from error
            if isinstance(listed, list):
                found += [load_task(each, file.parent) for each in listed]
                continue
        found.append(load_task(spec))
    unique(found)
    return found


def _student_section(student: Any) -> dict[str, Any]:
    if isinstance(student, Mapping):
        return dict(student)
    return {"auto": {}} if str(student) == "auto" else {"model": str(student)}


def _corpus_section(corpus: Any, given: Path) -> dict[str, Any]:
    section = dict(corpus) if isinstance(corpus, Mapping) and "path" in corpus else {"path": corpus}
    source = section["path"]
    if isinstance(source, str | Path):
        section["path"] = str(source)
        return section
    text, limit = section.get("text", "text"), section.get("limit")
    limit = limit if isinstance(limit, int) and limit > 0 else None  # what else it may be, the recipe refuses
    section["path"] = str(_write_rows(given / "corpus.jsonl", source, text if isinstance(text, str) else "text", limit))
    return section


def _task_section(task: Mapping[str, Any], given: Path) -> dict[str, Any]:
    section = dict(task)
    for name in ("validation", "test"):
        source = section.get(name)
        if source is not None:
            is_file = isinstance(source, str | Path)
            section[name] = str(source if is_file else _write_rows(given / f"{name}.jsonl", source, "text"))
    return section


def _teacher_section(teacher: Any, name: str, given: Path) -> dict[str, Any]:
    if isinstance(teacher, str | Path):
        return {"name": name, "model": str(teacher)}
    if hasattr(teacher, "encode") and not isinstance(teacher, Mapping):
        raise DistilvecError(
            f"a {type(teacher).__name__} object cannot be named in a recipe",
            where=name,
            remedy="Give its folder or hub id, or a function that calls its encode.",
        )
    if callable(teacher):
        return {"name": name, "call": teacher}
    if not isinstance(teacher, Mapping):
        raise DistilvecError(f"a {type(teacher).__name__} is no teacher", where=name)
    section = {"name": name, **teacher}
    called = section["name"]
    if isinstance(section.get("vectors"), np.ndarray):
        claim(given.parent)
        file = given / f"{called}-vectors.npy"
        with whole(file) as partial, partial.open("wb") as out:
            np.save(out, section["vectors"], allow_pickle=False)
        section["vectors"] = str(file)
    if isinstance(section.get("texts"), list | tuple):
        section["texts"] = str(_write_rows(given / f"{called}-texts.jsonl", section["texts"], "text"))
    return {key: str(value) if isinstance(value, Path) else value for key, value in section.items()}


def _write_rows(file: Path, source: Any, text: str, limit: int | None = None) -> Path:
    """Texts or dictionaries as JSON lines; equal rows give equal bytes, and an equal file is left alone."""
    from distilvec.corpus.tables import given_rows

    rows = given_rows(source, limit)
    claim(file.parent.parent)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as out:
        for row in rows:
            value = row if isinstance(row, Mapping) else {text: row}
            out.write(json.dumps(dict(value), default=_not_json) + "\n")
    if file.is_file() and file.stat().st_size == partial.stat().st_size and file.read_bytes() == partial.read_bytes():
        partial.unlink()  # its date is part of the prepared corpus' fingerprint
    else:
        partial.replace(file)
    return file


def _not_json(value: Any) -> Any:
    """Numbers of numpy stay numbers; anything else becomes something the corpus' audit rejects as no text."""
    if isinstance(value, np.generic):
        return value.item()
    return {"not a text": type(value).__name__}
