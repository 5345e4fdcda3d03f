"""One door to every kind of scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distilvec.errors import DistilvecError
from distilvec.scorers.base import Scorer


def load_scorer(
    *,
    name: str = "scorer",
    model: str | Path | None = None,
    call: str | Callable[[list[tuple[str, str]]], Any] | None = None,
    scores: str | Path | Sequence[Any] | None = None,
    label: str | None = None,
    max_length: int | None = None,
    batch_size: int = 64,
    rate_limit: float | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> Scorer:
    """Open a scorer: exactly one of `model`, `call` and `scores`.

    Args:
        name: what recipes, messages and stores call it.
        model: folder or hub id of a cross-encoder (sentence-transformers), or of a model that `distilvec finetune` made
            on pairs. Safetensors only.
        call: "module:function" or a function from a list of (query, document) to as many numbers; None for a pair that
            it has none for. May be a paid service.
        scores: table (.parquet, .jsonl, .csv ...) with the columns query, document and score, or such rows.
        label: class whose log-odds are the score, where a model knows several classes; None = the last of two.
        max_length: tokens per pair, default the model's own. Only for `model`.
        batch_size: pairs per forward pass or call.
        rate_limit: calls per second, None = no limit. Only for `call`.
        device: default is the best there is.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        DistilvecError: not exactly one source, an option that it has no use for, no such model or function.
        DataError: damaged weights, a table without these columns or with numbers that are not finite.
        EnvironmentProblem: the hub cannot be reached, or a function fails again and again.
    """
    sources = {"model": model, "call": call, "scores": scores}
    given = [word for word, value in sources.items() if value is not None]
    if len(given) != 1:
        raise DistilvecError(
            f"a scorer is one of model, call and scores; found {', '.join(given) or 'none'}", where=name
        )
    options = {"label": (label, "model"), "max_length": (max_length, "model"), "rate_limit": (rate_limit, "call")}
    for word, (value, owner) in options.items():
        if value is not None and given[0] != owner:
            raise DistilvecError(f"{word} has no effect on {given[0]}", where=name, remedy="Leave it out.")
    if model is not None:
        from distilvec.scorers.model import ModelScorer

        return ModelScorer(
            model,
            name=name,
            label=label,
            max_length=max_length,
            batch_size=batch_size,
            device=device,
            trust_remote_code=trust_remote_code,
        )
    if call is not None:
        from distilvec.scorers.callable import CallScorer

        return CallScorer(call, name=name, batch_size=batch_size, rate_limit=rate_limit)
    from distilvec.scorers.score_file import TableScorer

    assert scores is not None
    return TableScorer(scores, name=name)
