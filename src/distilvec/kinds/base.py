"""The kinds of items, and their table. The spine asks a kind, and never tests which one it has.

This file lies at the bottom and imports only leaves; the packages beside it lie above the flow. What they and
the flow do for a kind is named here, as module:function, and imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from distilvec.errors import DistilvecError, nearest
from distilvec.late import Late

GROUP = "distilvec.kinds"
#: Name -> module:class.
TABLE = {
    "text": "distilvec.kinds.text:Text",
    "image": "distilvec.kinds.image:Image",
    "molecule": "distilvec.kinds.molecule:Molecule",
    "writing": "distilvec.kinds.writing:Writing",
    "ranking": "distilvec.kinds.ranking:Ranking",
}
#: Section of the student -> what makes a network with random weights of it.
NETWORKS = {
    "resnet": Late("distilvec.kinds.networks:fresh_resnet"),
    "molecule": Late("distilvec.kinds.networks:fresh_molecule"),
}
#: The kind of a file's items by its suffix, where the recipe does not say; all others hold texts.
BY_SUFFIX = {".npz": "image", ".smi": "molecule"}


class ReadItem(NamedTuple):
    """An item: the string that is kept, what equal items share, and whether it was given with several components."""

    item: str
    identity: str
    several: bool = False


class Kind:
    """A kind of item. What a subclass leaves out holds for strings, and for students that turn them into vectors.

    Attributes:
        name: `corpus.modality`. It is a part of the keys of all stores.
        column: where the items are if the recipe names no column; `columns` are other names for it.
        article: stands before the name in messages.
        example: code of the model card that encodes two items.
        probe: an item that a teacher is asked for to learn the width of its vectors.
        task: what hubs call an embedder of these items; None if they have no word for it.

        suffixes: of files that only this kind can read, with `rows`.
        members: suffixes of the files in a folder that is a corpus, which `folder` reads.
        binary: items come as bytes or as names of files, which can change without the table that names them.
        at_once: rows that are in memory together.
        lengths: the number of characters says how long an item is.
        folded: items that differ in case and surrounding white space only count as equal where a corpus overlaps.
        foreign: keys of the recipe's corpus section that mean nothing here.
        unsaid: options of reading that cannot matter, and are not recorded with a prepared corpus.

        tokenized: a tokenizer cuts the items into pieces.
        also_texts: a model of texts can read the items, too.
        sample: items that a method's heads are built from; None = as many as `training.sample` says.
        fresh: the section of a student with random weights.
        cut: a student can be cut out of a teacher.
        row: of the table of defaults; None = by the student's section.
        sizes: what to do where `plan` has no candidates to measure; None = it has some.

        embeds: students are judged by their vectors, and compared with the teacher by them.
        writes, ranks: what students are that do not embed: causal language models, or cross-encoders.
        neighbours: methods may be compared by the teacher's nearest neighbours of held-out items.
        tuned_by: what a comparison chooses learning rates by.
    """

    name: ClassVar[str]
    column: ClassVar[str] = "text"
    columns: ClassVar[tuple[str, ...]] = ()
    article: ClassVar[str] = "a"
    example: ClassVar[str] = 'vectors = model.encode(["a text", "another one"])'
    probe: ClassVar[str] = "A probe."
    task: ClassVar[str | None] = None

    suffixes: ClassVar[tuple[str, ...]] = ()
    members: ClassVar[tuple[str, ...]] = ()
    binary: ClassVar[bool] = False
    at_once: ClassVar[int] = 1000
    lengths: ClassVar[bool] = True
    folded: ClassVar[bool] = False
    foreign: ClassVar[tuple[str, ...]] = ("joint", "teacher_text", "made")
    unsaid: ClassVar[tuple[str, ...]] = ()

    tokenized: ClassVar[bool] = False
    also_texts: ClassVar[bool] = False
    sample: ClassVar[int | None] = None
    fresh: ClassVar[str] = "fresh"
    cut: ClassVar[bool] = False
    row: ClassVar[str | None] = None
    sizes: ClassVar[str | None] = None

    embeds: ClassVar[bool] = True
    writes: ClassVar[bool] = False
    ranks: ClassVar[bool] = False
    neighbours: ClassVar[bool] = False
    tuned_by: ClassVar[str] = "held-out agreement"

    teacher = Late("distilvec.teachers.models:item_teacher")  # (section of a model, Reading)
    # What the flow does, module:function. `kinds.writing` has its own of each.
    start = Late("distilvec.flow.start:student_start")  # (recipe, corpus)
    check_files = Late("distilvec.flow.checks:check_task_files")  # (recipe, corpus)
    task_metrics = Late("distilvec.tasks.scores:metric_names")  # (kind of the task)
    tasks = Late("distilvec.judging.automatic:named_or_automatic")  # (recipe, corpus, named)
    student_items = Late("distilvec.training.items:student_items")  # (student, corpus, cache)
    metrics = Late("distilvec.flow.judge:held_out_metrics")  # (recipe, held_out, task)
    quality = Late("distilvec.flow.bench:quality")  # (corpus, lessons)
    ship = Late("distilvec.flow.fit:ship_student")  # (prepared, lessons, trained, folder)
    open_shipped = Late("distilvec.flow.fit:open_shipped")  # (recipe, folder)
    judge = Late("distilvec.flow.judge:judge_all")  # (recipe, corpus, lessons, tasks, held_out, students, fitted)

    def check_recipe(self, recipe: Any, command: str) -> None:
        """Refuse what a recipe asks for and students of this kind cannot do, before anything is read.

        Raises:
            DistilvecError: naming the key.
        """

    @property
    def noun(self) -> str:
        """The plural of the kind's name."""
        return f"{self.name}s"

    def longest(self, most: int) -> int:
        """Return how many characters of an item a reader has to hold, if `corpus.max_characters` is `most`."""
        return most

    def read(self, cell: Any, wanted: Any, file: str) -> ReadItem:
        """Read the item in a cell of a row.

        Args:
            wanted: `ColumnNames`, which has the options of reading.
            file: the file that the row is from.

        Raises:
            Problem: why it cannot be used, in two or three words; rows are counted by them.
        """
        raise NotImplementedError

    def canonical(self, item: str, components: Any = "keep") -> str:
        """Return what equal items share, from which keys are made.

        Raises:
            Problem: it cannot be read.
        """
        raise NotImplementedError

    def forms(self, item: str) -> list[str]:
        """All that an equal item in a corpus may have as its `canonical`."""
        return [self.canonical(item)]

    def recognises(self, cell: Any) -> bool:
        """Tell whether a cell that was read as text plainly holds an item of this kind."""
        return False

    def check_rows(self, rows: Sequence[Any], column: str, where: str) -> None:
        """Refuse rows that plainly hold items of another kind in `column`."""

    def rows(self, path: Path, columns: Sequence[str]) -> Iterator[Any]:
        """The rows of a file with one of `suffixes`."""
        raise NotImplementedError

    def holds(self, folder: Path) -> bool:
        """Tell whether a folder holds files with `members`."""
        return False

    def folder(self, path: Path) -> tuple[str, Callable[..., Iterator[Any]]]:
        """The fingerprint of a folder that `holds` such files, and its rows: (columns, longest) -> rows."""
        raise NotImplementedError

    def dataset(self, dataset: Any) -> Any:
        """A data set of the library `datasets`, as it is to be read."""
        return dataset

    def portable(self, cell: Any) -> Any:
        """A cell that was given in Python, as a file of JSON can hold it."""
        return cell

    def shown(self, items: Sequence[str], held_out: Sequence[str]) -> list[str]:
        """Return what people read of items; `held_out` are all that are measured, in their order."""
        return list(items)


@cache
def find_kind(name: str | None) -> Kind:
    """The kind of this name, also one that an installed package announces; None = texts.

    Raises:
        DistilvecError: there is none, with the nearest name.
    """
    place = TABLE.get(name or "text")
    if place is None:
        others = {point.name: point.value for point in entry_points(group=GROUP)}
        if name not in others:
            raise DistilvecError(
                f'there is no modality "{name}"', where="corpus.modality", remedy=nearest(str(name), [*TABLE, *others])
            )
        place = others[name]
    kind: Kind = Late(place).found()
    return kind
