"""The sections of a recipe, as typed models of its YAML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_serializer, field_validator, model_validator

from distilvec.modules.pipeline import PoolingChoice
from distilvec.recipe.places import at_revision
from distilvec.words import amount

#: Of a teacher: it becomes the name of a folder.
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


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
    domain: str | None = Field(None, description="column naming each item's domain (for DISAM and reports)")
    role: str | None = Field(None, description="column telling queries from documents")
    teacher_text: str | None = Field(
        None, description="column the teacher reads instead, for all text columns (translation)"
    )
    holdout: float = Field(0.02, ge=0, lt=0.5, description="share kept out of training, by content hash")
    limit: int | None = Field(None, gt=0, description="stop after so many rows")
    revision: str | None = Field(
        None, description="of hub:NAME: commit, branch or tag; the saved recipe names the commit that was read"
    )
    max_characters: int = Field(20_000, gt=0, description="longer texts are rejected")
    repeated: bool = Field(
        False, description="keep a text each time that it occurs, with the label it has there; pairs are kept anyway"
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
    timeout: float = Field(60.0, gt=0, le=3600, description="seconds for one answer")
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
    vectors: str | None = Field(None, description=".npy file or parquet file with a vector column")
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
        None, description="computation of a model; null = bfloat16 on CUDA, float32 elsewhere"
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
        if self.live and self.token_axes:
            raise ValueError("token_axes is about the store, which a live teacher's token states never see")
        return self

    @property
    def address(self) -> str | None:
        """The model with its revision, as whatever opens models takes it."""
        return None if self.model is None else at_revision(self.model, self.revision)

    @field_serializer("call", when_used="json")
    def _name_the_function(self, call: str | Callable[[list[str]], Any] | None) -> str | None:
        return name_of_function(call)


def name_of_function(call: Any) -> str | None:
    """A saved recipe names a function as module:function; it runs again where that can be imported."""
    if call is None or isinstance(call, str):
        return call
    owner = call if hasattr(call, "__qualname__") else type(call)
    return f"{owner.__module__}:{owner.__qualname__}"


class ShrinkSection(Section):
    """A student cut out of another model."""

    of: str = Field(description="name of a teacher of this recipe, a folder or a hub id")
    layers: int | list[int] | None = Field(None, description="how many blocks (evenly spaced), or which (1-based)")
    vocabulary: int | None = Field(None, gt=0, description="keep at most so many pieces, those the corpus uses")
    embedding: int | None = Field(
        None, gt=1, description="rank of the table of word pieces: a narrow table and a linear map to the blocks"
    )
    inner: int | None = Field(None, gt=0, description="units of each block's feed-forward network")
    heads: int | None = Field(None, gt=0, description="attention heads of each block")
    positions: int | None = Field(None, gt=0, description="keep the first n positions: texts of at most n tokens")


#: More blocks, or a wider vector, has no model that is meant; and memory ends with a kill, not with a message.
MOST_LAYERS, MOST_WIDTH, MOST_PIECES = 1000, 65_536, 10_000_000
MOST_WEIGHTS = 20_000_000_000


def _refuse_giants(weights: int) -> None:
    if weights > MOST_WEIGHTS:
        raise ValueError(f"a student of about {weights:,} weights is refused; {MOST_WEIGHTS:,} are the most")


class FreshSection(Section):
    """A student with random weights."""

    layers: int = Field(4, gt=0, le=MOST_LAYERS)
    width: int = Field(256, gt=0, le=MOST_WIDTH)
    heads: int | None = Field(None, gt=0, le=MOST_WIDTH)
    tokenizer: str | None = Field(None, description="folder or id; null = byte-level BPE trained on the corpus")
    vocabulary: int = Field(8192, gt=300, le=MOST_PIECES)
    embeddings_from: str | None = Field(None, description="teacher or folder whose token embeddings are averaged")

    @model_validator(mode="after")
    def _fits(self) -> FreshSection:
        _refuse_giants(12 * self.layers * self.width**2 + self.vocabulary * self.width)
        return self


class ResnetSection(Section):
    """A residual network of CIFAR style with random weights, for images."""

    depth: int = Field(20, ge=8, le=6 * MOST_LAYERS + 2, description="6 n + 2: 20, 32, 44, 56")
    width: int = Field(
        16, gt=0, le=MOST_WIDTH, description="channels of the first stage; the vector has four times as many numbers"
    )
    image_size: int = Field(32, ge=4, le=4096, description="images are resized to this height and width")

    @model_validator(mode="after")
    def _fits(self) -> ResnetSection:
        _refuse_giants(63 * self.depth * self.width**2)  # three stages, of 1, 2 and 4 times the width
        return self


class MoleculeSection(Section):
    """A graph network with random weights, for molecules (extra `molecules`)."""

    kind: Literal["gine", "gin", "gcn", "sage", "gat", "tag"] = "gine"
    layers: int = Field(10, gt=0, le=MOST_LAYERS)
    width: int = Field(512, gt=0, le=MOST_WIDTH)
    dropout: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _fits(self) -> MoleculeSection:
        _refuse_giants(4 * self.layers * self.width**2)
        return self


class StaticSection(Section):
    """A student without blocks: a table of the teacher's vectors of its word pieces, and their weighted mean."""

    of: str = Field(description="name of a teacher of this recipe, a folder or a hub id")
    dimensions: int | None = Field(256, gt=0, description="at most so many principal axes; null = all")
    vocabulary: int | None = Field(None, gt=0, description="keep at most so many pieces, those the corpus uses")


class AutoSection(Section):
    """A student that is chosen before training, as `distilvec plan` does: the smallest that keeps enough, or the best
    within a budget."""

    keep: float | None = Field(
        None, gt=0, le=1, description="share of the teacher that it is predicted to keep; null = 0.95, or a budget"
    )
    parameters: float | None = Field(None, gt=0, description="budget: at most so many, e.g. 5.67M")
    megabytes: float | None = Field(None, gt=0, description="budget: float32 weights of at most so many")
    latency: float | None = Field(
        None, gt=0, description="budget: milliseconds for the median text, one at a time, on this machine"
    )
    of: str | None = Field(None, description="what students are cut from; null = the first teacher that is a model")
    probe_steps: int = Field(
        0, ge=0, description="train every candidate for so many steps first; within a budget of the first round, 0 = 50"
    )

    @field_validator("parameters", "megabytes", "latency", mode="before")
    @classmethod
    def _read(cls, value: Any, about: ValidationInfo) -> Any:
        unit = {"megabytes": "MB", "latency": "ms"}.get(str(about.field_name), "")
        return amount(value, unit) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_goal(self) -> AutoSection:
        if self.keep is not None and any((self.parameters, self.megabytes, self.latency)):
            raise ValueError("keep asks for the smallest that keeps enough, a budget for the best that fits: give one")
        return self


class UpcycleSection(Section):
    """Turn a dense encoder into a mixture of experts, each a copy of its feed-forward block."""

    experts: int = Field(8, ge=1, le=1024)
    top_k: int = Field(2, ge=1, description="experts that a token goes to")
    every: int = Field(2, ge=1, description="a mixture in every so many blocks")
    noise: float = Field(0.01, ge=0, description="of the copies, relative to the weights")


class LoraSection(Section):
    """Low-rank adapters beside every linear map; the defaults are those of EMO and DistillMoE."""

    rank: int = Field(256, gt=0)
    alpha: float = Field(32, gt=0, description="adapters count alpha / rank")
    dropout: float = Field(0.1, ge=0, lt=1, description="on what the adapters read")


class StudentSection(Section):
    """The student: exactly one of model, shrink, fresh, static, resnet, molecule and auto."""

    model: str | None = Field(
        None,
        description="sentence-transformers or transformers folder or hub id; or the .safetensors file of a pretrained "
        "network of images or molecules",
    )
    revision: str | None = Field(
        None, description="of the hub id that it is, or is made of: commit, branch or tag, as of a teacher"
    )
    shrink: ShrinkSection | None = None
    fresh: FreshSection | None = None
    static: StaticSection | None = None
    resnet: ResnetSection | None = None
    molecule: MoleculeSection | None = None
    auto: AutoSection | None = Field(None, description="chosen before training; `student: auto` for short")
    upcycle: UpcycleSection | None = Field(None, description="of model or shrink: make its blocks mixtures of experts")
    aggregation: Literal["linear", "sba", "norm_free", "unit", "nlerp"] | None = Field(
        None, description="how a mixture-of-experts encoder adds its experts up; null = as it was saved"
    )
    router_balance: float = Field(
        0.0, ge=0, description="of a mixture-of-experts encoder: weight of the loss that keeps its routers' load even"
    )
    remember: float = Field(
        0.0,
        ge=0,
        description="weight of a term that holds the student's vectors where they were before training: for one that "
        "goes on learning on new texts and should not forget the old ones",
    )
    normalize_weights: bool | None = Field(
        None, description="with aggregation: divide a token's router weights by their sum; null = as it was saved"
    )
    max_length: int | None = Field(None, gt=0)
    extend_length: bool = Field(
        False, description="of model: max_length may be more than it reads by itself, as far as its positions reach"
    )
    lora: LoraSection | None = Field(
        None,
        description="train low-rank adapters and merge them at the end, instead of all weights (extra `lora`)",
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="of its blocks while it is trained; null = as the model has it, often 0.1"
    )
    pooling: PoolingChoice | None = Field(
        None,
        description="of a transformers folder (model, shrink.of) that says nothing about it; "
        "null = the teacher's where it is cut from one, else mean, or last if it is causal",
    )
    space: Literal["own", "teacher"] | None = Field(
        None, description="teacher: fold the projection in, share its index; null = own, or what the method implies"
    )
    fold: bool = Field(False, description="replace DistillMoE's head by a linear map, which loads plainly")
    router: bool = Field(False, description="pack student queries with teacher documents (space: teacher)")
    trust_remote_code: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {"auto": {}} if data == "auto" else data

    @model_validator(mode="after")
    def _one_source(self) -> StudentSection:
        sources = (self.model, self.shrink, self.fresh, self.static, self.resnet, self.molecule, self.auto)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give exactly one of model, shrink, fresh, static, resnet, molecule and auto")
        if self.upcycle is not None and self.model is None and self.shrink is None:
            raise ValueError("upcycle needs a dense text encoder: give model or shrink")
        if self.remember and self.model is None:
            raise ValueError("remember is for a student that has been trained before: give model")
        if self.extend_length and (self.model is None or self.max_length is None):
            raise ValueError("extend_length goes with model and max_length")
        if self.normalize_weights is not None and self.aggregation is None:
            raise ValueError("normalize_weights goes with aggregation")
        if self.fresh is not None and self.pooling not in (None, "mean"):
            raise ValueError("a fresh student has mean pooling")
        if self.router and self.space == "own":
            raise ValueError("router needs space: teacher")
        if self.router:
            self.__dict__["space"] = "teacher"
        return self


class MethodSection(BaseModel):
    """The method and its options; the options belong to the method's own schema."""

    model_config = ConfigDict(extra="allow")
    name: str = "talas"
    matryoshka: list[int] | None = Field(None, description="also train these prefixes of the student's vector")
    token_states: float = Field(
        0.0,
        ge=0,
        description="weight of a term that holds the student's last token states to the teacher's, where both cut a "
        "text alike; for a student as wide as its teacher (shrink)",
    )
    beside: dict[str, Any] | None = Field(
        None, description="a second method on pairs or scores at the same time: its name, weight (1) and options"
    )

    @property
    def options(self) -> dict[str, Any]:
        held = {"token_states": self.token_states, "beside": self.beside}
        return {**(self.__pydantic_extra__ or {}), **{name: value for name, value in held.items() if value}}


class SharpnessSection(Section):
    """Sharpness-aware steps around the base optimiser."""

    kind: Literal["sam", "asam", "disam"] = "asam"
    rho: float | None = Field(None, ge=0, description="null: asam 0.5, sam 0.05, disam 0.01")
    eta: float = Field(0.01, ge=0)
    every: int = Field(1, gt=0)
    scale: Literal["elementwise", "filter", "layer"] = "elementwise"
    bias: Literal["one", "abs", "exclude"] = "exclude"
    heads: bool = Field(True, description="perturb the heads too")
    fresh_dropout: bool = Field(False, description="new dropout masks in the second pass, as TALAS's code does")
    per: Literal["micro", "batch"] = Field("micro", description="perturb per micro-batch or per accumulated batch")
    ascent: Literal["global", "local"] = Field("global", description="local: leave out the all-reduce of the ascent")
    domains: float | None = Field(None, ge=0, description="disam: weight of the variance between domains (0.1)")


class OptimizerSection(Section):
    lr: float = Field(2e-5, gt=0)
    heads_lr: float | None = Field(1e-4, gt=0, description="learning rate of the heads; null = lr")
    weight_decay: float = Field(0.01, ge=0)
    sharpness: SharpnessSection | None = None


#: numpy's generators take 32 bits.
MOST_SEEDS = 2**32


class TrainingSection(BaseModel):
    """Length, batches and checkpoints; further keys go to transformers.TrainingArguments."""

    model_config = ConfigDict(extra="allow", validate_default=True, allow_inf_nan=False)
    epochs: float = Field(2, gt=0, le=1_000_000)
    batch_size: int = Field(
        32, gt=0, description="items per step, over all processes; gradient_accumulation_steps multiplies it"
    )
    mini_batch_size: int | None = Field(
        None,
        gt=0,
        description="gradient caching: the student reads so many texts at a time, while the loss sees the whole batch; "
        "memory for few, at the price of a second forward pass",
    )
    gather: bool = Field(
        True,
        description="losses that compare the rows of a batch see those of all processes; false: each its own alone, "
        "which saves the exchange",
    )
    seed: int = Field(0, ge=0, lt=MOST_SEEDS)
    evaluate_every: int | None = Field(None, gt=0, description="held-out agreement every so many steps")
    save_every: int | None = Field(None, gt=0, description="checkpoint every so many steps")
    patience: int | None = Field(None, gt=0, description="stop after so many evaluations without a better metric")
    best: str | None = Field(None, description="metric of the best checkpoint, e.g. agreement_cosine")

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class JudgingSection(Section):
    tasks: list[Any] = Field(default_factory=list, description="names, files or task descriptions")
    agreement: bool = Field(True, description="agreement with the teacher on held-out texts")
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
        return tasks
