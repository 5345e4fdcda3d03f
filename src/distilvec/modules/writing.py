"""Opening a causal language model as a pipeline that writes, alike for teachers, students and anybody's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.modules.guarded import open_writing
from distilvec.modules.opening import check_table, explained, locate
from distilvec.modules.pipeline import PoolingChoice
from distilvec.modules.promised_tokens import put_into
from distilvec.modules.spelling import SEPARATOR

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def open_writer(
    model: str | Path,
    *,
    device: str | None = None,
    dtype: Any = None,
    max_length: int | None = None,
    separator: str = SEPARATOR,
    pooling: PoolingChoice | None = None,
    trust_remote_code: bool = False,
) -> SentenceTransformer:
    """A transformers folder or hub id of a causal language model, as the pipeline of `modules.causal`.

    Args:
        device: where it is put; None = the best device there is.
        dtype: torch dtype in which the weights are held; None = float32.
        max_length: tokens of prompt and answer together; None = what its positions allow.
        separator: between prompt and answer.
        pooling: "last" (None) or "mean" of the answer's tokens.

    Raises:
        DistilvecError: it is not safe to open, demands code of its own, is no causal model, has no end token,
            `max_length` is more than its positions, or it makes its logits otherwise than by a linear map of its last
            states.
        DataError: the weights are damaged, or tokenizer and weights do not belong together.
        EnvironmentProblem: the hub cannot be reached.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.causal import AnswerPooling, Writer, check_predictions

    name = str(model)
    if pooling == "cls":
        raise DistilvecError(
            "the vector of a model that writes is the state at its answer's end, or their mean",
            where="pooling",
            remedy="Choose last or mean.",
        )
    folder = locate(model, trust_remote_code)
    with explained(name, "Does it load as an AutoModelForCausalLM of transformers?"):
        causal, tokenizer = open_writing(folder, dtype or torch.float32, trust_remote_code)
    put_into(tokenizer, folder, name)
    if dtype is None:
        causal.float()
    writer = Writer(causal, tokenizer, _length(causal, tokenizer, max_length, name), separator, name)
    _ = writer.answers
    width = writer.get_embedding_dimension()
    pool = AnswerPooling(width, pooling_mode="mean" if pooling == "mean" else "lasttoken")
    opened = SentenceTransformer(modules=[writer, pool], device=device)
    check_table(opened, name)
    check_predictions(writer, name)
    return opened


def _length(causal: Any, tokenizer: Any, wanted: int | None, name: str) -> int | None:
    """Tokens of prompt and answer together that a causal model reads."""
    positions = getattr(causal.config, "max_position_embeddings", None)
    own = getattr(tokenizer, "model_max_length", None)
    limits = [int(each) for each in (positions, own) if isinstance(each, int) and 0 < each < 10**9]
    if wanted is not None and positions is not None and wanted > positions:
        raise DistilvecError(
            f"max_length is {wanted}, its positions allow {positions}", where=name, remedy="Choose a smaller number."
        )
    return wanted or min(limits, default=None)
