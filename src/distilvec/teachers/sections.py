"""The recipe's sections on teachers, a class per kind; reading a recipe takes no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_serializer, field_validator, model_validator

from distilvec.corpus.keys import Components
from distilvec.kinds.base import Kind, find_kind
from distilvec.modules.pipeline import Load, PoolingChoice
from distilvec.teachers.databases.address import database_address
from distilvec.validation import Section

#: Of a teacher or scorer: it becomes the name of a folder.
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
#: A path as a recipe holds it.
Place = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, Path) else given)]


@dataclass(frozen=True)
class Reading:
    """The items and the purpose that a teacher is opened for.

    Attributes:
        modality: of the items, as the corpus has it.
        components: of molecules, as the corpus has it.
        separator: of a task that is to write: what stands between prompt and answer. None = vectors are wanted.
        device: of a model, None = the best there is.
    """

    modality: str = "text"
    components: Components = "largest"
    separator: str | None = None
    device: str | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the items: prompts and answers if the student is to write."""
        return find_kind(self.modality if self.separator is None else "writing")


class TeacherSection(Section):
    """Keys of every kind of teacher.

    Attributes:
        has_tokens: whether such a teacher can have token states.
        knows_all: whether it can be asked about any item.
        sold: whether somebody else's machines, and prices, decide how fast it is.
        paths: keys that name files, which a recipe names from its own folder.
    """

    has_tokens: ClassVar[bool] = False
    knows_all: ClassVar[bool] = True
    sold: ClassVar[bool] = False
    paths: ClassVar[tuple[str, ...]] = ()

    name: str = Field("teacher", pattern=NAME.pattern)
    storage: Literal["float16", "float32", "int8"] = Field("float16", description="how the store keeps its vectors")
    weight: float = Field(1.0, gt=0, description="how much it counts beside the other teachers")
    token_axes: int | None = Field(
        None,
        gt=0,
        description="of a model: keep token states on so many principal axes in the store, which then is smaller; "
        "null = whole",
    )
    live: bool = Field(
        False,
        description="of a model: token states, attention and logits come from the teacher while training, not from "
        "the store",
    )

    @field_validator("name")
    @classmethod
    def _not_the_student(cls, name: str) -> str:
        if name == "student":
            raise ValueError('"student" is what the report calls the student; give the teacher another name')
        return name

    @model_validator(mode="after")
    def _live_fits(self) -> TeacherSection:
        if self.live and not self.has_tokens:
            raise ValueError("live is about a model's token states; leave it out, and every text is asked for once")
        if self.live and self.token_axes:
            raise ValueError("token_axes is about the store, which a live teacher's token states never see")
        return self

    @property
    def reads_pairs(self) -> bool:
        """Tell whether it knows a pair of texts as one item."""
        return self.has_tokens


class ModelSource(Section):
    """A model in a folder or on the hub."""

    model: Place = Field(description="sentence-transformers or transformers folder or hub id")
    revision: str | None = Field(
        None, description="of a hub id: commit, branch or tag; the saved recipe names the commit that was read"
    )
    trust_remote_code: bool = Field(False, description="whether code that comes with the model may run")

    @property
    def address(self) -> str:
        """The model with its revision, as whatever opens models takes it."""
        return at_revision(self.model, self.revision)


class ModelSection(ModelSource, TeacherSection):
    """A model that runs here; safetensors only."""

    has_tokens = True
    paths = ("model",)
    moved: ClassVar[dict[str, str]] = {"batch_size": "Leave it out; what a model reads at once is token_budget."}

    prompt: str | None = Field(
        None,
        description='put before every text; null = the model\'s own default, "" = nothing, the name of one of its own '
        "prompts = that one",
    )
    max_length: int | None = Field(None, gt=0, description="tokens per text; null = the model's own")
    pooling: PoolingChoice | None = Field(
        None, description="of a transformers folder that says nothing about it; null = mean, or last if it is causal"
    )
    adapters: list[Place] = Field(
        default_factory=list,
        description="folders or hub ids of LoRA adapters, added to the model's weights in this order (LLM2Vec)",
    )
    causal: Literal[False] | None = Field(
        None, description="false: read without the causal mask, padded on the left (LLM2Vec); null = as it is"
    )
    load: Load | None = Field(
        None,
        description="of a model that is too large as it is: int8: the weights of linear layers in 8 bits (extra "
        "`torchao`); split: layers on all GPUs, then in memory, then on disk; null = as in its files, on one device",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None,
        description="computation of the model, whose weights stay in the precision of its files; null = bfloat16 "
        "where the device is faster in it and the vectors stay the same, else float32",
    )
    token_budget: int | None = Field(
        None,
        gt=0,
        description="padded tokens that the model reads at once: fewer take less memory; null = by the device",
    )

    @model_validator(mode="after")
    def _whole_weights(self) -> ModelSection:
        if self.load and self.adapters:
            raise ValueError("adapters are added to whole weights: merge them into the model first, or leave load out")
        return self

    @field_validator("model")
    @classmethod
    def _no_vectors(cls, model: str) -> str:
        if model.endswith((".npy", ".npz")):
            raise ValueError(f'vectors alone do not say whose they are: give {{"vectors": "{model}", "texts": ...}}')
        return model


class Asked(Section):
    """Somebody who answers calls or requests, and may have to be paid."""

    batch_size: int = Field(64, gt=0, description="items per call of a function or request to a service")
    rate_limit: float | None = Field(None, gt=0, description="calls or requests per second")


class CallSection(Asked, TeacherSection):
    """A function; it may ask a paid service."""

    call: str | Callable[[list[str]], Any] = Field(
        description="module:function from a list of texts to vectors; from Python also the function itself"
    )
    prompt: str | None = Field(None, description="put before every text")

    @field_serializer("call", when_used="json")
    def _name_the_function(self, call: Any) -> str | None:
        return name_of_function(call)


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
    batch: bool = Field(
        False, description="ask through the service's batch API (/files and /batches): cheaper, within a day"
    )
    price: float | None = Field(None, ge=0, description="of a million tokens, for --dry-run")


class ServiceSection(Asked, TeacherSection):
    """A service that sells or serves embeddings."""

    sold = True

    api: ApiSection = Field(description="a service that answers as OpenAI's /embeddings does")
    prompt: str | None = Field(None, description="put before every text")


class VectorsSection(TeacherSection):
    """Vectors that were made elsewhere."""

    knows_all = False
    paths = ("vectors", "texts", "keys")
    moved: ClassVar[dict[str, str]] = {
        "prompt": "Leave it out; put the prompt before the texts when you make the vectors."
    }

    vectors: Place = Field(
        description=".npy or .npz file, a table with a column of vectors (.parquet, .jsonl, .csv, .tsv ...), or one "
        "in a database: postgresql://USER@HOST/DB#TABLE, qdrant:FOLDER_OR_URL#COLLECTION, "
        "chroma:FOLDER_OR_URL#COLLECTION, lancedb:FOLDER#TABLE, sqlite:FILE#TABLE; with :COLUMN behind it if there are "
        "several"
    )
    texts: Place | None = Field(
        None,
        description="texts of the vectors, one per row: .txt, or .jsonl (file.jsonl:KEY where the key is not text); of "
        "a table the name of their column, of a database also a file with the columns id and text; null = the column "
        "text",
    )
    keys: Place | None = Field(None, description="content keys of the vectors instead of texts: .npy, uint8 [n, 16]")

    @field_validator("vectors")
    @classmethod
    def _no_password(cls, vectors: str) -> str:
        database_address(vectors)  # its error is none of pydantic's, which would show the address
        return vectors

    @property
    def reads_pairs(self) -> bool:
        """Tell whether it is asked by keys, which pairs have too."""
        return self.keys is not None


def models_of(teachers: Iterable[TeacherSection]) -> dict[str, ModelSection]:
    """Those of a recipe's teachers that are models, by name: what students can be cut out of."""
    return {each.name: each for each in teachers if isinstance(each, ModelSection)}


def at_revision(model: str, revision: str | None) -> str:
    """A hub id with the revision behind it, as everything that opens models takes it; without one, as it is."""
    return model if revision is None else f"{model}@{revision}"


def name_of_function(call: Any) -> str | None:
    """The name by which a saved recipe calls a function, module:function; it runs again where that can be imported.

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
