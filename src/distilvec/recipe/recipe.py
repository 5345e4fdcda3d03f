"""The recipe: what a run is made of, as typed models of its YAML file.

Unknown keys are errors that name the nearest known key and, for a file, the line. A method's options are
resolved through the table of methods, so that this file does not know any method.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from distilvec import plain_yaml
from distilvec.errors import DistilvecError
from distilvec.files import home, read_small
from distilvec.kinds.base import Kind, find_kind
from distilvec.recipe.method_section import MethodEntry, MethodSection
from distilvec.recipe.places import find_files, is_url
from distilvec.recipe.sections import (
    AnyScorer,
    AnyTeacher,
    CorpusSection,
    JudgingSection,
    MiningSection,
    OptimizerSection,
    given,
)
from distilvec.recipe.student_sections import StudentSection
from distilvec.recipe.training_section import TrainingSection, check_together
from distilvec.tasks.section import TaskSection, check_writing
from distilvec.teachers.sections import models_of
from distilvec.validation import Section, refusal

__all__ = ["YOUNGER", "Recipe", "given"]

#: Keys that saved recipes lack, where they say nothing: a run that was begun without them can be resumed.
YOUNGER = (
    ("optimizer", "muon"),
    ("corpus", "made"),
    ("corpus", "parts"),
    ("student", "cross_encoder"),
    ("student", "interpolate"),
)


class Recipe(Section):  # noqa: PLW1641 - it has no hash, as all models have none
    """All that a command may be told. `Recipe.load(path)` reads YAML; `Recipe.build(dict)` takes Python values.

    Every section is optional here; each command says what it must find (`distilvec.flow.prepare.REQUIRED`).
    """

    corpus: CorpusSection | None = None
    teachers: list[AnyTeacher] = Field(default_factory=list)
    combine: Literal["separate", "concatenate", "average"] = Field(
        "separate",
        description="several teachers: each with terms and heads of its own, or as one whose vectors are theirs "
        "side by side, or averaged",
    )
    scorers: list[AnyScorer] = Field(
        default_factory=list,
        description="what says a number for a query and a document, for methods that learn from scores; of several the "
        "mean of their standardised scores",
    )
    mining: MiningSection = Field(default_factory=MiningSection, description="of `distilvec mine`")
    student: StudentSection | None = None
    method: MethodSection = Field(default_factory=lambda: MethodSection([MethodEntry()]))
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    task: TaskSection | None = Field(None, description="a supervised task beside the distillation")
    judging: JudgingSection = Field(default_factory=JudgingSection)
    output: str = "out"
    cache: str | None = Field(None, description="where the prepared corpus and the stores are kept; null = output")
    remote: str | None = Field(
        None, description="address on object storage (s3://bucket/folder) where a copy of the stores is kept"
    )

    _source: Path | None = PrivateAttr(None)
    _chosen: tuple[str, ...] = PrivateAttr(())

    def __eq__(self, other: object) -> bool:
        """Tell whether all keys are equal, wherever the two were read from."""
        return isinstance(other, Recipe) and self.model_dump() == other.model_dump()

    @property
    def source(self) -> Path | None:
        """The file that it was read from; None for one made of values."""
        return self._source

    @property
    def chosen(self) -> tuple[str, ...]:
        """The values filled in from the table of defaults, and why, a line each (`flow.defaults.with_defaults`)."""
        return self._chosen

    @property
    def place(self) -> Path:
        """The folder of the prepared corpus, token ids and stores."""
        return Path(self.cache or self.output)

    @field_validator("output", "cache")
    @classmethod
    def _home(cls, place: str | None) -> str | None:
        return place if place is None else home(place)

    @model_validator(mode="after")
    def _folders_are_local(self) -> Recipe:
        for name in ("output", "cache"):
            if is_url(getattr(self, name) or ""):
                raise ValueError(f"{name} is a folder of this machine; a copy of the stores elsewhere is remote: URL")
        if self.remote is not None:
            from distilvec.storage import unfit

            if (told := unfit(self.remote)) is not None:
                raise ValueError(f"remote {told}")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Recipe:
        names = [each.name for each in self.teachers] + [each.name for each in self.scorers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            kind = "scorers" if twice in [each.name for each in self.scorers] else "teachers"
            raise ValueError(f'two {kind} have the same name, "{twice}": give each a name of its own')
        return self

    @model_validator(mode="after")
    def _task_fits(self) -> Recipe:
        if self.task is None:
            return self
        if self.corpus is not None:
            if self.task.paired != (isinstance(self.corpus.text, list) and len(self.corpus.text) == 2):
                needed = "two text columns in corpus.text" if self.task.paired else "one text column in corpus.text"
                raise ValueError(f"a task of kind {self.task.kind} needs {needed}")
            if self.student is not None and self.student.space == "teacher":
                raise ValueError("a task's head reads the student's own space: leave student.space out")
        if self.task.writes:
            check_writing(self)
        return self

    @model_validator(mode="after")
    def _fits_the_head(self) -> Recipe:
        if self.student is None:
            return self
        fold, between = self.student.fold, self.student.interpolate is not None
        headed = any(each.name == "distillmoe" and each.options.get("head") is not False for each in self.method.root)
        entries = [each.options for each in self.method.root]
        entries += [of for each in entries if isinstance(of := each.get("of"), dict)]  # matryoshka's method
        kernels = any(each.get("keep_kernels") for each in entries)
        for refused, what in (
            (between and headed, "interpolate: the head of distillmoe has no weights from before the training"),
            (between and kernels, "interpolate: the kernels of gaussian read the student as it was trained"),
            (between and self.task, "interpolate: the task's head reads the student as it was trained"),
            (fold and not headed, "fold: only distillmoe has a head that can be folded"),
            (fold and self.task, "fold: the task's head reads what the expert head gives; it cannot be folded"),
        ):
            if refused:
                raise ValueError(f"student.{what}")
        return self

    @property
    def items(self) -> str | None:
        """The kind that task or student make of a corpus' pairs of texts; None = what they are."""
        sections = (self.task, self.student)
        return next((each.items for each in sections if each is not None and each.items is not None), None)

    @property
    def kind(self) -> Kind:
        """The kind of items, as far as the recipe says it; what a corpus holds is known when it is read."""
        named = None if self.corpus is None else self.corpus.modality
        return find_kind(self.items or named)

    @classmethod
    def load(cls, path: str | Path, changes: list[str] | None = None, *, output: str | Path | None = None) -> Recipe:
        """Read a YAML file, apply `key.key=value` changes, validate. An `output` replaces the file's, as it is.

        Relative paths of corpora, models, vectors and task files are looked for in the recipe's folder, then in
        the working folder, and become absolute where something is there; `output` is in the working folder.

        Raises:
            DistilvecError: a missing or broken file, an unknown key (with line and nearest key), a bad value.
        """
        file = Path(home(str(path)))
        try:
            source = read_small(file)
        except (OSError, UnicodeDecodeError) as error:
            raise DistilvecError(
                f"the recipe cannot be read ({error})", where=str(path), remedy="Check the path: is it the recipe?"
            ) from error
        try:
            data, lines = plain_yaml.read(source), plain_yaml.lines(source)
        except yaml.YAMLError as error:
            raise DistilvecError(f"this is not valid YAML: {error}", where=str(path)) from error
        if not isinstance(data, dict):
            raise DistilvecError("a recipe is a mapping with corpus, teachers, student, method ...", where=str(path))
        for change in changes or []:
            _apply(data, change)
        if output is not None:
            data["output"] = str(output)
        find_files(data, file.parent)
        try:
            recipe = cls.build(data, where=str(path), lines=lines)
        except DistilvecError as error:
            _blame(error, changes or [])
            raise
        recipe._source = file.absolute()
        return recipe

    @classmethod
    def build(
        cls, data: dict[str, Any], where: str | None = None, lines: dict[tuple[Any, ...], int] | None = None
    ) -> Recipe:
        """Validate Python values; errors are `DistilvecError`s that name the key.

        Raises:
            DistilvecError: naming line, key and, for a misspelt one, the nearest.
        """
        try:
            recipe = cls.model_validate(data)
        except ValidationError as error:
            raise refusal(error, cls, where, lines, whole="recipe") from error
        try:
            method = None if recipe.method.is_open else recipe.method.build()
            check_together(recipe.training, recipe.optimizer)  # now, not after hours of teaching
            if method is not None:
                recipe._check_items(method)
                recipe._settle_space(method)
        except DistilvecError as error:
            raise _located(error, where, lines or {}) from error
        return recipe

    def _check_items(self, method: Any) -> None:
        """Refuse single texts for a method that trains on pairs."""
        if self.corpus is None or not method.trains_on_pairs:
            return
        if isinstance(self.corpus.text, list) and not self.task:
            return
        raise DistilvecError(
            f'method "{self.method.name}" trains on pairs or triplets of texts, without a task',
            where="corpus.text",
            remedy="Name the columns of anchor and positive (and negatives): text: [anchor, positive].",
        )

    def _settle_space(self, method: Any) -> None:
        """Fill in the space that the method implies; refuse the teacher's where no map leads there."""
        if self.student is None:
            return
        several = len(self.teachers) > 1 and self.combine == "separate"
        if self.student.space is None:
            # A task's head reads the student's own space, and prefixes are those of its own vector.
            own = several or not self.teachers or self.task is not None or method.prefixes
            self.student.space = "own" if own else method.implied_space
        if self.student.space != "teacher":
            return
        self._check_router()
        mixed = "trains prefixes of the student's own vector, and space: teacher puts a map behind it, which mixes them"
        for wrong, what, instead in (
            (not self.teachers, "there is no teacher whose space it could live in", "add one"),
            (several, f"each of {len(self.teachers)} teachers has a space", "one teacher, or combine: concatenate"),
            (method.prefixes, f'method "{self.method.name}" {mixed}', "leave matryoshka out"),
            (
                not method.has_map,
                f'method "{self.method.name}" has no linear map into its teacher\'s space',
                "a method with a map (leaf, cosine, mse, talas, distilcse)",
            ),
        ):
            if wrong:
                raise DistilvecError(what, where="student.space", remedy=f"Use space: own, or {instead}.")

    def _check_router(self) -> None:
        """Refuse a router whose side of the documents could not be saved."""
        if self.student is None or not self.student.router:
            return
        models = list(models_of(self.teachers).values())
        if len(self.teachers) == 1 and models and models[0].causal is not False:
            return
        raise DistilvecError(
            "a router holds the student and its one teacher, a model that plain sentence-transformers opens",
            where="student.router",
            remedy="Leave it out: documents go to the teacher as they do now, queries to the student.",
        )

    def to_yaml(self) -> str:
        """The resolved recipe; loading it again gives the same recipe.

        Raises:
            DistilvecError: values in it are nested too deeply to be written.
        """
        try:
            content = self.model_dump(mode="json")
        except ValueError as error:  # pydantic's limit
            raise DistilvecError(f"values are nested too deeply ({error})", where="recipe") from error
        if self.remote is None:  # a run that an earlier version began, which did not know the key, can be resumed
            del content["remote"]
        for key, nothing in (("scorers", []), ("mining", MiningSection().model_dump(mode="json"))):
            if content[key] == nothing:
                del content[key]
        for section, key in YOUNGER:
            if content[section] and not content[section][key]:
                del content[section][key]
        for teacher in content["teachers"]:
            if teacher.get("token_budget", "") is None:
                del teacher["token_budget"]
        return plain_yaml.write(content)


def _located(error: DistilvecError, where: str | None, lines: dict[tuple[Any, ...], int]) -> DistilvecError:
    """An error about a key with the file and the line before it: the key's own, or that of the section around it."""
    path = tuple(int(part) if part.isdecimal() else part for part in (error.where or "").split("."))
    line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)
    place = ", ".join(part for part in (where, f"line {line}" if line else None, error.where) if part)
    return type(error)(error.what, where=place or None, remedy=error.remedy)


def _blame(error: DistilvecError, changes: list[str]) -> None:
    """Raise an error that is about a changed key, or a section that a change made, as one of `--set`.

    A key of the file has its line in the error.
    """
    place = (error.where or "").split(", ")
    key, of_file = place[-1], any(part.startswith("line ") for part in place)
    names = [change.partition("=")[0] for change in changes]
    made = [name for name in names if name.startswith(f"{key}.")] if not of_file else []
    if made or any(key == name or key.startswith(f"{name}.") for name in names):
        raise type(error)(error.what, where=f"--set {key}", remedy=error.remedy) from error


def _apply(data: dict[str, Any], change: str) -> None:
    """Apply one `a.b.0.c=value`; the value is YAML."""
    name, equals, value = change.partition("=")
    if not equals or not name:
        raise DistilvecError(f'"{change}" is not of the form key.key=value', where="--set")
    target: Any = data
    *parents, last = name.split(".")
    for key in parents:
        place = _place(key, target, name)
        if isinstance(target, dict) and target.get(key) is None:
            target[key] = {}
        elif target is data and key == "student" and target[key] == "auto":  # the one section with a short form
            target[key] = {"auto": {}}
        target = target[place]
        if not isinstance(target, dict | list):
            raise DistilvecError(f'"{key}" in "{name}" holds a value, not a section', where="--set")
    target[_place(last, target, name)] = _value(name, value)


def _value(name: str, text: str) -> Any:
    """The value of a change, which is YAML; a folder, and a text that is not quoted, are taken as they stand."""
    if name == "output":
        return text
    try:
        parsed = plain_yaml.read(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise DistilvecError(
            f'"{text[:80]}" is not valid YAML ({problem[:200]})',
            where=f"--set {name}",
            remedy="Put a text with special characters into quotation marks of its own: 'key=\"@home\"'.",
        ) from error
    # In "my run #3" a file's reader would take the end for a comment.
    return text.strip() if isinstance(parsed, str) and text.strip().startswith(parsed) else parsed


def _place(key: str, target: Any, name: str) -> str | int:
    """The key of a section, or the number of an entry of a list."""
    if not isinstance(target, list):
        return key
    if not key.isdecimal() or len(key) > 9 or int(key) >= len(target):
        raise DistilvecError(f'"{name}": {key} is not an index below {len(target)}', where="--set")
    return int(key)
