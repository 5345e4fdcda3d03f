"""The sections of a recipe but those on student, training and method, as typed models of its YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_serializer, field_validator, model_validator

from distilvec.corpus.sources import Part
from distilvec.errors import DistilvecError
from distilvec.kinds.base import find_kind
from distilvec.teachers.sections import NAME, Asked, ModelSource, Place, TeacherSection, name_of_function
from distilvec.teachers.table import sections
from distilvec.validation import Section, union_of

T = TypeVar("T")


def given(section: T | None, key: str) -> T:
    """A section that a command needs; a recipe without it is refused, with the key."""
    if section is None:
        raise DistilvecError("this key is missing", where=key, remedy="Add it to the recipe.")
    return section


_SOURCE = "file, folder of files or of images, address such as s3://bucket/folder, hub:NAME, or (from Python) rows"
_REVISION = "of hub:NAME: commit, branch or tag; the saved recipe names the commit that was read"


def _listed(source: Any) -> Any:
    """The rows of a frame or table, of which a list would be the names of its columns."""
    if isinstance(source, str | list):
        return source
    from distilvec.corpus.tables import is_table, table_rows

    return list(table_rows(source)) if is_table(source) else source


Rows = Annotated[str | list[Any], BeforeValidator(_listed)]


class PartSection(Section):
    """One of several sources of a corpus; each is a domain of its own."""

    path: Rows = Field(description=_SOURCE)
    name: str | None = Field(None, description="of its domain and of its prompt; null = the file's, without suffixes")
    text: str | list[str] | None = Field(
        None, description="text column, or the columns of a pair or triplet; null = as corpus.text has them"
    )
    weight: float = Field(1.0, gt=0, description="how often an epoch reads each of its items")
    prompt: str | list[str] = Field(
        "",
        description="put before its texts, which teachers and student read with it; of pairs also one for each column. "
        "The student is shipped with it, under the part's name; of pairs those are query and document",
    )
    limit: int | None = Field(None, gt=0, description="stop after so many rows")
    revision: str | None = Field(None, description=_REVISION)


class CorpusSection(Section):
    """The source of the training items: texts, images or molecules."""

    path: Rows | None = Field(None, description=_SOURCE)
    parts: list[PartSection] = Field(
        default_factory=list,
        description="several sources instead of `path`, each with a weight and a prompt; a list as the whole section "
        "means the same",
    )
    modality: str | None = Field(
        None,
        description="text, image, molecule or one of your own; null: image for a folder of images and .npz, molecule "
        "for .smi, else text",
    )
    text: str | list[str] = Field(
        "text",
        description="text column, or the columns of a pair or triplet; "
        "left at text, it is the column image of images (.npz: the only such array) and smiles of molecules",
    )
    label: str | None = Field(None, description="label column")
    domain: str | None = Field(
        None,
        description="column naming each item's domain or language: reports show each, reduced "
        "vocabularies cover all alike, and DISAM compares them",
    )
    role: str | None = Field(
        None,
        description="column telling queries (query, question, anchor or 0) from documents (document, passage, positive "
        "or 1) and negatives (negative or 2), which teachers read alike; with one text column only",
    )
    teacher_text: str | None = Field(
        None, description="column the teacher reads instead, for all text columns (translation)"
    )
    holdout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share kept out of training, by content hash; null = 2 %, of a small corpus about 120 items, at "
        "most a fifth; of millions of texts a smaller one is enough: some thousands are looked at",
    )
    limit: int | None = Field(None, gt=0, description="stop after so many rows")
    revision: str | None = Field(None, description=_REVISION)
    max_characters: int = Field(20_000, gt=0, description="longer texts are rejected")
    repeated: bool = Field(
        False, description="keep a text each time that it occurs, with the label it has there; pairs are kept anyway"
    )
    made: float = Field(
        0.0,
        ge=0,
        description="for each text about so many more, made of parts of texts and of the beginning of one with the end "
        "of another; single texts without labels",
    )
    components: Literal["largest", "keep", "reject"] = Field(
        "largest", description="of molecules made of several (salts): keep the largest, keep all, or reject the row"
    )
    strict: bool = Field(False, description="fail on the first bad row instead of counting it")

    @property
    def source(self) -> Any:
        """Return what `read_corpus` takes: the path, or the parts."""
        return [Part(**part.model_dump()) for part in self.parts] or self.path

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return {"parts": given} if isinstance(given, list) else given

    @model_validator(mode="after")
    def _one_source(self) -> CorpusSection:
        if (self.path is None) == (not self.parts):
            raise ValueError("give a path, or several parts" if self.parts else "path is missing")
        return self

    @field_validator("modality")
    @classmethod
    def _known(cls, modality: str | None) -> str | None:
        if find_kind(modality).name != (modality or "text"):
            raise ValueError("that students are to write is said by task.kind: generation")
        return modality


if TYPE_CHECKING:
    AnyTeacher = TeacherSection
else:
    AnyTeacher = union_of(sections())


class SharpnessSection(Section):
    """Sharpness-aware steps around the base optimiser."""

    kind: Literal["sam", "asam", "disam"] = "asam"
    rho: float | None = Field(None, ge=0, description="null: asam 0.5, sam 0.05, disam 0.01")
    eta: float = Field(0.01, ge=0, description="asam: added to |w| in T")
    every: int = Field(1, gt=0)
    scale: Literal["elementwise", "filter", "layer"] = Field(
        "elementwise",
        description="asam: what |w| is in T: each weight, the norm of its output row (filter), or of its tensor "
        "(layer)",
    )
    bias: Literal["one", "abs", "exclude"] = Field(
        "exclude", description="asam: T of vectors: one, as of weights (abs), or they stay (exclude)"
    )
    heads: bool = Field(True, description="perturb the heads too")
    fresh_dropout: bool = Field(False, description="new dropout masks in the second pass, as TALAS's code does")
    per: Literal["micro", "batch"] = Field("micro", description="perturb per micro-batch or per accumulated batch")
    ascent: Literal["global", "local"] = Field("global", description="local: leave out the all-reduce of the ascent")
    domains: float | None = Field(None, ge=0, description="disam: weight of the variance between domains (0.1)")

    @model_validator(mode="after")
    def _compares_domains(self) -> SharpnessSection:
        if self.domains is not None and self.kind != "disam":
            raise ValueError(f"{self.kind} does not compare domains; leave `domains` out, or take kind: disam")
        return self


class OptimizerSection(Section):
    lr: float | None = Field(None, gt=0, description="learning rate; null = by the kind of student")
    heads_lr: float | None = Field(None, gt=0, description="learning rate of the heads; null = lr")
    weight_decay: float = Field(0.01, ge=0)
    muon: bool = Field(
        False, description="orthogonal steps for the matrices of the student's linear layers; AdamW for all else"
    )
    sharpness: SharpnessSection | None = None


#: numpy's generators take 32 bits.
MOST_SEEDS = 2**32


class JudgingSection(Section):
    tasks: list[Any] = Field(default_factory=list, description="names, files or task descriptions")
    agreement: bool = Field(True, description="agreement with the teacher on held-out texts, its neighbours among it")
    speed: bool = Field(True, description="latency at batch 1 and throughput")
    compression: bool = Field(
        False, description="also score shorter, int8 and binary vectors, float16 weights and ONNX, on held-out texts"
    )

    @field_validator("tasks")
    @classmethod
    def _kinds(cls, tasks: list[Any]) -> list[Any]:
        for task in tasks:
            if isinstance(task, bool | int | float):
                raise ValueError(f"a task is a name, a file or a description, not {task!r}")
            if not isinstance(task, str | Path | Mapping):
                raise ValueError(
                    f"a {type(task).__name__} object cannot be saved in a recipe; judge what the run leaves with it: "
                    'distilvec.evaluate("out/student", task)'
                )
            if isinstance(task, Mapping):
                _refuse_tables(task)
        return tasks


def _refuse_tables(task: Mapping[str, Any]) -> None:
    from distilvec.corpus.tables import is_dataset, is_table

    for key, value in task.items():
        if is_dataset(value) or is_table(value):
            raise ValueError(
                f"a {type(value).__name__} ({key}) cannot be saved in a recipe; give its file, or call "
                "distilvec.distill or compare, which write one"
            )


class ScorerSection(Section):
    """Keys of every kind of scorer, which judges a query and a document."""

    name: str = Field("scorer", pattern=NAME.pattern)


class ModelScorerSection(ModelSource, ScorerSection):
    """A model that reads query and document together."""

    model: Place = Field(
        description="folder or hub id of a cross-encoder, or of what `distilvec finetune` made on pairs"
    )
    label: str | None = Field(
        None, description="of a model with classes: the class whose log-odds are the score; null = the last of two"
    )
    max_length: int | None = Field(None, gt=0, description="tokens of a pair; null = the model's own")
    batch_size: int = Field(64, gt=0, description="pairs per forward pass")


class CallScorerSection(Asked, ScorerSection):
    """A function; it may ask a paid service."""

    call: str | Callable[[list[tuple[str, str]]], Any] = Field(
        description="module:function from a list of (query, document) to as many numbers"
    )

    @field_serializer("call", when_used="json")
    def _name_the_function(self, call: Any) -> str | None:
        return name_of_function(call)


class TableScorerSection(ScorerSection):
    """Scores that were made elsewhere."""

    scores: Place = Field(description="table with the columns query, document and score")


#: The key that names a kind of scorer in a recipe -> its section; `scorers.load` opens it.
SCORERS: dict[str, type[ScorerSection]] = {
    "model": ModelScorerSection,
    "call": CallScorerSection,
    "scores": TableScorerSection,
}
if TYPE_CHECKING:
    AnyScorer = ScorerSection
else:
    AnyScorer = union_of(SCORERS)


class MiningSection(Section):
    """Hard negatives from the first teacher's vectors; similarity is the cosine."""

    documents: CorpusSection | None = Field(
        None, description="further documents beside the corpus' own: a file, or a corpus section"
    )
    negatives: int = Field(5, gt=0, le=100, description="how many a pair gets at most")
    ranks: tuple[int, int] = Field(
        (1, 100), description="first and last rank of the nearest documents that may be negatives; the nearest is 1"
    )
    absolute_margin: float | None = Field(
        None, ge=0, le=2, description="a negative's similarity is at most the positive's less this"
    )
    relative_margin: float | None = Field(
        0.05, ge=0, le=1, description="a negative's similarity is at most the positive's less this share of it"
    )
    max_score: float | None = Field(None, ge=-1, le=1, description="a negative's similarity is at most this")
    duplicates: float | None = Field(
        0.97,
        ge=-1,
        le=1,
        description="what resembles a positive more than this is no negative; null = only equal texts",
    )
    random: float = Field(0.0, ge=0, le=1, description="share of the negatives drawn from all documents")

    @field_validator("documents", mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str) else given

    @field_validator("ranks")
    @classmethod
    def _in_order(cls, ranks: tuple[int, int]) -> tuple[int, int]:
        first, last = ranks
        if not 1 <= first <= last <= 10_000:
            raise ValueError("ranks are a first and a last, from 1 to 10,000")
        return ranks
