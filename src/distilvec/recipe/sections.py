"""The sections of a recipe, as typed models of its YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from distilvec.corpus.tables import is_dataset, is_table
from distilvec.errors import DistilvecError
from distilvec.modules.pipeline import PoolingChoice
from distilvec.recipe.places import at_revision

#: Of a teacher: it becomes the name of a folder.
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


T = TypeVar("T")


def given(section: T | None, key: str) -> T:
    """A section that a command needs.

    Raises:
        DistilvecError: the recipe lacks it.
    """
    if section is None:
        raise DistilvecError("this key is missing", where=key, remedy="Add it to the recipe.")
    return section


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


class CorpusSection(Section):
    """Where the training items come from: texts, images or molecules."""

    path: str | list[Any] = Field(
        description="file, folder of files or of images, hub:NAME, or (from Python) a list or dataset"
    )
    modality: Literal["text", "image", "molecule"] | None = Field(
        None, description="null: image for a folder of images and .npz, molecule for .smi, else text"
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
        lt=0.5,
        description="share kept out of training, by content hash; null = 2 %, of a small corpus about 120 items, at "
        "most a fifth; of millions of texts a smaller one is enough: some thousands are looked at",
    )
    limit: int | None = Field(None, gt=0, description="stop after so many rows")
    revision: str | None = Field(
        None, description="of hub:NAME: commit, branch or tag; the saved recipe names the commit that was read"
    )
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


class ApiSection(Section):
    """A service that answers as OpenAI's /embeddings does: hosted ones, TEI, infinity, vLLM, Ollama."""

    url: str = Field(description="of the service, such as http://localhost:8080/v1")
    model: str = Field(description="the service's name of the model")
    key_env: str | None = Field(None, description="environment variable with the key; null = no key is sent")
    dimensions: int | None = Field(None, gt=0, description="asked for; null = the model's own")
    extra: dict[str, Any] = Field(default_factory=dict, description="further fields of every request")
    encoding: Literal["float", "base64"] | None = Field(
        None, description="of the numbers in the answer; base64 is a quarter as long, where the service knows it"
    )
    concurrency: int = Field(4, gt=0, le=256, description="requests under way at once")
    tokens_per_request: int | None = Field(None, gt=0, description="at most, by estimate; batch_size bounds it too")
    tokens_per_minute: float | None = Field(None, gt=0, description="limit; teachers.rate_limit is that of requests")
    timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="seconds for which the service may say nothing; a whole answer may take five times as long",
    )
    attempts: int = Field(8, gt=0, le=100, description="how often a request is tried")
    price: float | None = Field(None, ge=0, description="of a million tokens, for --dry-run")


class TeacherSection(Section):
    """One frozen teacher: a model, a callable, a service, or vectors from elsewhere."""

    name: str = Field("teacher", pattern=NAME.pattern)
    model: str | None = Field(None, description="sentence-transformers or transformers folder or hub id")
    revision: str | None = Field(
        None, description="of a hub id: commit, branch or tag; the saved recipe names the commit that was read"
    )
    call: str | Callable[[list[str]], Any] | None = Field(
        None, description="module:function from a list of texts to vectors; from Python also the function itself"
    )
    api: ApiSection | None = Field(None, description="a service that answers as OpenAI's /embeddings does")
    vectors: str | None = Field(
        None, description=".npy or .npz file, or a table with a column of vectors (.parquet, .jsonl, .csv, .tsv ...)"
    )
    texts: str | None = Field(None, description="texts of the vectors, one per row")
    prompt: str | None = Field(None, description="put before every text; null = the teacher's own default")
    max_length: int | None = Field(None, gt=0)
    pooling: PoolingChoice | None = Field(
        None, description="of a transformers folder that says nothing about it; null = mean, or last if it is causal"
    )
    adapters: list[str] = Field(
        default_factory=list,
        description="folders or hub ids of LoRA adapters, added to the model's weights in this order (LLM2Vec)",
    )
    causal: Literal[False] | None = Field(
        None, description="false: read without the causal mask, padded on the left (LLM2Vec); null = as it is"
    )
    trust_remote_code: bool = False
    batch_size: int = Field(64, gt=0, description="texts per call of a function or request to a service")
    rate_limit: float | None = Field(None, gt=0, description="calls or requests per second")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None,
        description="computation of a model, whose weights stay in the precision of its files; null = bfloat16 on "
        "CUDA, float32 elsewhere",
    )
    token_budget: int | None = Field(
        None, gt=0, description="padded tokens that a model reads at once: fewer take less memory; null = by the device"
    )
    keys: str | None = Field(None, description="content keys of the vectors instead of texts: .npy, uint8 [n, 16]")
    storage: Literal["float16", "float32", "int8"] = Field("float16", description="how the store keeps its vectors")
    weight: float = Field(1.0, gt=0, description="how much it counts beside the other teachers")
    token_axes: int | None = Field(
        None,
        gt=0,
        description="keep token states on so many principal axes in the store, which then is smaller; null = whole",
    )
    live: bool = Field(
        False, description="token states, attention and logits come from the teacher while training, not from the store"
    )

    @model_validator(mode="after")
    def _one_source(self) -> TeacherSection:
        if sum(source is not None for source in (self.model, self.call, self.api, self.vectors)) != 1:
            raise ValueError("give exactly one of model, call, api and vectors")
        if (self.model or "").endswith((".npy", ".npz")):
            raise ValueError(
                f'vectors alone do not say whose they are: give {{"vectors": "{self.model}", "texts": ...}}'
            )
        if self.live and self.model is None:
            raise ValueError("live is about a model's token states; leave it out, and every text is asked for once")
        if self.live and self.token_axes:
            raise ValueError("token_axes is about the store, which a live teacher's token states never see")
        if self.name == "student":
            raise ValueError('"student" is what the report calls the student; give the teacher another name')
        return self

    @property
    def address(self) -> str | None:
        """The model with its revision, as whatever opens models takes it."""
        return None if self.model is None else at_revision(self.model, self.revision)

    @field_serializer("call", when_used="json")
    def _name_the_function(self, call: str | Callable[[list[str]], Any] | None) -> str | None:
        return name_of_function(call)


def name_of_function(call: Any) -> str | None:
    """A saved recipe names a function as module:function; it runs again where that can be imported.

    An object and a method of one have no such name: theirs, as that of a lambda or of a function within another, has
    "<" in it, and is refused when the recipe is run again.
    """
    if call is None or isinstance(call, str):
        return call
    if not hasattr(call, "__qualname__"):
        return f"{type(call).__module__}:{type(call).__qualname__}.<object>"
    owner = getattr(call, "__self__", None)
    if owner is None or isinstance(owner, type | ModuleType):
        return f"{call.__module__}:{call.__qualname__}"
    return f"{type(owner).__module__}:{type(owner).__qualname__}.<object>.{call.__name__}"


#: A method that is chosen by the kind of student.
AUTO = "auto"


class MethodSection(BaseModel):
    """The method and its options; the options belong to the method's own schema."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(
        AUTO,
        description="of `distilvec methods`, or module:Class; from Python also the class itself; auto = by the student",
    )
    matryoshka: list[int] | None = Field(None, description="also train these prefixes of the student's vector")
    token_states: float | None = Field(
        None,
        ge=0,
        description="weight of a term that holds the student's last token states to the teacher's, where both cut a "
        "text alike; for a student as wide as its teacher (shrink); null = none, or what method auto takes",
    )
    beside: dict[str, Any] | None = Field(
        None, description="a second method on pairs or scores at the same time: its name, weight (1) and options"
    )

    @model_validator(mode="before")
    @classmethod
    def _name_the_class(cls, given: Any) -> Any:
        return _named(given)

    @field_validator("beside", mode="before")
    @classmethod
    def _name_the_class_beside(cls, given: Any) -> Any:
        return _named(given)

    @property
    def is_open(self) -> bool:
        """Whether it is chosen by the kind of student."""
        return self.name == AUTO

    @property
    def options(self) -> dict[str, Any]:
        held = {"token_states": self.token_states, "beside": self.beside}
        return {**(self.__pydantic_extra__ or {}), **{name: value for name, value in held.items() if value}}


def _named(section: Any) -> Any:
    """A method's section with the path of a class in the class's place."""
    name = section.get("name") if isinstance(section, Mapping) else None
    if name is None or isinstance(name, str | int | float | list | dict):  # what YAML has, pydantic looks at
        return section
    from distilvec.methods.own import path_of

    return {**section, "name": path_of(name)}


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
            for key, value in task.items() if isinstance(task, Mapping) else ():
                if is_dataset(value) or is_table(value):
                    raise ValueError(
                        f"a {type(value).__name__} ({key}) cannot be saved in a recipe; give its file, or call "
                        "distilvec.distill or compare, which write one"
                    )
        return tasks
