"""The student's section of a recipe, and the ways to make one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from distilvec.modules.pipeline import PoolingChoice
from distilvec.validation import Section
from distilvec.words import amount


class ShrinkSection(Section):
    """A student cut out of another model."""

    of: str | None = Field(
        None,
        description="name of a teacher of this recipe, a folder or a hub id; null = the first teacher that is a model",
    )
    parameters: float | None = Field(
        None,
        gt=0,
        description="at most so many, e.g. 5.67M, where no other size is given; null = a quarter of the model's",
    )
    layers: int | list[int] | None = Field(None, description="how many blocks (evenly spaced), or which (1-based)")
    vocabulary: int | None = Field(
        None, gt=0, description="keep so many pieces: those the corpus uses, then the tokenizer's most frequent others"
    )
    embedding: int | None = Field(
        None, gt=1, description="rank of the table of word pieces: a narrow table and a linear map to the blocks"
    )
    inner: int | None = Field(None, gt=0, description="units of each block's feed-forward network")
    heads: int | None = Field(None, gt=0, description="attention heads of each block")
    positions: int | None = Field(None, gt=0, description="keep the first n positions: texts of at most n tokens")
    width: int | None = Field(None, gt=0, description="numbers of the blocks' states: whole heads of them")

    @property
    def is_open(self) -> bool:
        """Tell whether it names no model, or no size."""
        return self.of is None or not self.is_sized

    @property
    def is_sized(self) -> bool:
        """Tell whether it names a size, so that the others stay as the model has them."""
        sizes = (self.layers, self.vocabulary, self.embedding, self.inner, self.heads, self.positions, self.width)
        return any(size is not None for size in sizes)

    @field_validator("parameters", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return amount(value, "") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_size(self) -> ShrinkSection:
        if self.parameters is not None and self.is_sized:
            raise ValueError("parameters chooses the other sizes: give it alone")
        return self


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
    vocabulary: int | None = Field(
        None, gt=0, description="keep so many pieces: those the corpus uses, then the tokenizer's most frequent others"
    )


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
        0,
        ge=0,
        description="train every candidate for so many steps first; within a budget of the first round, 0 = 200",
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
    cross_encoder: bool = Field(
        False,
        description="of model or shrink: a student that reads query and document together and learns from scorers",
    )
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
    interpolate: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="ship weights between those before and those after training, this share of the way: of a student "
        "that was trained before, and should not forget what this corpus lacks",
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
        if self.model is None and (key := "remember" if self.remember else "interpolate" if self.interpolate else ""):
            raise ValueError(f"{key} is for a student that has been trained before: give model")
        if self.extend_length and (self.model is None or self.max_length is None):
            raise ValueError("extend_length goes with model and max_length")
        if self.revision is not None and self.fresh is not None and self.fresh.embeddings_from is None:
            raise ValueError("revision is of a model, and a fresh student without embeddings_from is made of none")
        if self.normalize_weights is not None and self.aggregation is None:
            raise ValueError("normalize_weights goes with aggregation")
        if self.fresh is not None and self.pooling not in (None, "mean"):
            raise ValueError("a fresh student has mean pooling")
        of_texts = ("revision", "max_length", "dropout", "pooling", "router_balance", "aggregation")
        idle = [name for name in of_texts if getattr(self, name)]
        if idle and (self.resnet is not None or self.molecule is not None):
            raise ValueError(f"{idle[0]} says nothing to a network of images or molecules: leave it out")
        if self.router and self.space == "own":
            raise ValueError("router needs space: teacher")
        if self.router:
            self.__dict__["space"] = "teacher"
        return self

    @model_validator(mode="after")
    def _can_rank(self) -> StudentSection:
        if not self.cross_encoder:
            return self
        cut = self.shrink
        if self.model is None and cut is None:
            raise ValueError("cross_encoder is for model or shrink")
        if cut is not None and (cut.of is None or (cut.layers is None and cut.vocabulary is None)):
            raise ValueError("a cross-encoder is cut by shrink.of with shrink.layers or shrink.vocabulary")
        idle = (
            "upcycle",
            "aggregation",
            "router_balance",
            "remember",
            "interpolate",
            "lora",
            "pooling",
            "fold",
            "router",
        )
        sizes = ("parameters", "embedding", "inner", "heads", "positions", "width")
        named = [name for name in idle if getattr(self, name)]
        named += [f"shrink.{name}" for name in sizes if cut is not None and getattr(cut, name)]
        if named or self.space == "teacher":
            raise ValueError(f"{(*named, 'space: teacher')[0]} is not for a cross-encoder: leave it out")
        return self

    @property
    def items(self) -> str | None:
        """The kind that this student makes of a corpus' pairs of texts; None = what they are."""
        return "ranking" if self.cross_encoder else None
