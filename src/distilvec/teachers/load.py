"""One door to every kind of teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from distilvec.corpus.keys import Components
from distilvec.errors import DistilvecError
from distilvec.kinds.base import find_kind
from distilvec.modules.pipeline import PoolingChoice
from distilvec.teachers.base import Teacher

#: Texts per call of a function or request to a service, where nobody says otherwise.
BATCH = 64


def load_teacher(
    *,
    name: str = "teacher",
    model: str | Path | None = None,
    call: str | Callable[[list[str]], Any] | None = None,
    api: Mapping[str, Any] | None = None,
    vectors: str | Path | np.ndarray | None = None,
    texts: str | Path | Sequence[str] | None = None,
    keys: str | Path | np.ndarray | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    pooling: PoolingChoice | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    dtype: str | None = None,
    token_budget: int | None = None,
    batch_size: int = BATCH,
    rate_limit: float | None = None,
    modality: str = "text",
    components: Components = "largest",
    adapters: Sequence[str | Path] = (),
    causal: Literal[False] | None = None,
    separator: str | None = None,
) -> Teacher:
    """Open a teacher: exactly one of `model`, `call`, `api` and `vectors`.

    Args:
        name: what recipes, messages and stores call it.
        model: sentence-transformers or transformers folder, or hub id. Safetensors only.
        call: "module:function" or a function from a list of texts to vectors [n, D]; may be a paid service.
        api: a service that answers as OpenAI's `/embeddings` does: options of `ServiceTeacher`.
        vectors: .npy file [n, D], parquet file with a vector column, or array.
        texts: with `vectors`: the texts, one a row (a .txt file of one text a line, a .jsonl file with the field
            "text", a list, or the name of a parquet file's text column).
        keys: with `vectors`, instead of `texts`: content keys uint8 [n, 16] (.npy file or array).
        prompt: put before every text. None = the model's own default; "" = nothing, whatever the model's default;
            the name of one of the model's own prompts = that prompt.
        max_length: tokens per text, default the model's own. Only for `model`.
        pooling: "mean", "cls" (first token) or "last", of a transformers folder that says nothing about it. None =
            mean, or last where its attention is causal. Only for `model`.
        device: default is the best there is. Only for `model`.
        trust_remote_code: whether code that comes with the model may run.
        dtype: "float32", "bfloat16" or "float16", of the computation; vectors are always float32. None = bfloat16
            (else float16) on CUDA and float32 elsewhere; a run then chooses by a probe of the texts
            (`teachers.precision`). Only for `model`.
        token_budget: padded tokens per forward pass: fewer take less memory; None = by the device. Only for `model`.
        batch_size: texts per call of `call`, or per request to `api`.
        rate_limit: calls or requests per second, None = no limit.
        modality: of the items that it is to read, as the corpus has it.
        components: with `vectors` of molecules, as the corpus has it.
        adapters: folders or hub ids of LoRA adapters that are added to the weights of `model`, in this order.
        causal: False = `model` reads without its causal mask, padded on the left, and the prompt takes no part in the
            pooling, as in LLM2Vec. None = as the model is.
        separator: `model` is a causal language model that reads prompts and answers with this between them. None = it
            is an embedder.

    Raises:
        DistilvecError: not exactly one source, an option that the source has no use for, no such model, pickled
            weights, code of the model's own without `trust_remote_code`, a length beyond the model's positions, or
            a pooling other than its own.
        DataError: damaged weights, or vectors that do not fit their texts.
        EnvironmentProblem: the hub cannot be reached and the model is not in its cache.
    """
    _refuse_misfits(
        name, model, call, api, vectors, max_length, pooling, prompt, extra=texts is not None or keys is not None
    )
    of_models = {"adapters": adapters, "causal": causal is False, "dtype": dtype, "token_budget": token_budget}
    if model is None and (word := next((word for word, value in of_models.items() if value), None)):
        raise DistilvecError(f"{word} has no effect without a model", where=name, remedy="Leave it out.")
    kind = find_kind(modality)
    if call is None and api is None and (rate_limit is not None or batch_size != BATCH):
        raise DistilvecError(
            f"{'batch_size' if rate_limit is None else 'rate_limit'} is about calls and requests",
            where=name,
            remedy="Leave it out; what a model reads at once is token_budget.",
        )
    if separator is not None:
        return _writing(
            model,
            separator,
            name,
            adapters,
            causal,
            prompt=prompt,
            max_length=max_length,
            pooling=pooling,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            token_budget=token_budget,
        )
    if model is not None and (not kind.tokenized or Path(model).suffix == ".safetensors"):
        teacher = _of_items(model, name, modality, device, trust_remote_code)
        if teacher is not None:
            given: dict[str, object] = {"max_length": max_length, "pooling": pooling, "dtype": dtype}
            given |= {"prompt": prompt or None, "token_budget": token_budget}
            for word, value in (given | {"adapters": adapters or None, "causal": causal}).items():
                if value is not None:
                    raise DistilvecError(
                        f"{word} has no effect on a teacher of {modality}s", where=name, remedy="Leave it out."
                    )
            return teacher
    if model is not None:
        from distilvec.teachers.text import TextTeacher

        return TextTeacher(
            model,
            name=name,
            prompt=prompt,
            max_length=max_length,
            pooling=pooling,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            token_budget=token_budget,
            adapters=adapters,
            causal=causal,
        )
    if call is not None:
        from distilvec.teachers.callable import CallTeacher

        return CallTeacher(
            call, name=name, prompt=prompt, batch_size=batch_size, rate_limit=rate_limit, probe=kind.probe
        )
    if api is not None:
        if not kind.tokenized:
            raise DistilvecError(
                f"a service reads texts, and the corpus holds {kind.noun}",
                where=name,
                remedy="Give a function that asks it (`call`).",
            )
        from distilvec.teachers.service import ServiceTeacher

        return ServiceTeacher(api, name=name, prompt=prompt, batch_size=batch_size, rate_limit=rate_limit)
    from distilvec.teachers.vectors import VectorsTeacher

    assert vectors is not None
    return VectorsTeacher(vectors, name=name, texts=texts, keys=keys, modality=modality, components=components)


def _writing(
    model: str | Path | None, separator: str, name: str, adapters: Any, causal: Any, **options: Any
) -> Teacher:
    """A causal language model.

    Raises:
        DistilvecError: another kind of teacher, or options that it has no use for.
    """
    from distilvec.teachers.writing import WritingTeacher

    word = "no model" if model is None else "adapters" if adapters else "causal: false" if causal is False else None
    if word is not None or model is None:
        raise DistilvecError(
            f"a teacher of a task of kind generation is a causal language model, and here is {word}",
            where=name,
            remedy="Give the folder or hub id of one (model), with adapters merged into it.",
        )
    return WritingTeacher(model, name=name, separator=separator, **options)


def _refuse_misfits(
    name: str,
    model: Any,
    call: Any,
    api: Any,
    vectors: Any,
    max_length: Any,
    pooling: Any,
    prompt: str | None,
    *,
    extra: bool,
) -> None:
    """Refuse none or several sources, and options that the one source has no use for."""
    sources = (("model", model), ("call", call), ("api", api), ("vectors", vectors))
    given = [word for word, value in sources if value is not None]
    if len(given) != 1:
        raise DistilvecError(
            f"a teacher is one of model, call, api and vectors; found {', '.join(given) or 'none'}", where=name
        )
    for word, value in (("max_length", max_length), ("pooling", pooling)):
        if model is None and value is not None:
            raise DistilvecError(f"{word} has no effect on {given[0]}", where=name, remedy="Leave it out.")
    if vectors is None and extra:
        raise DistilvecError("texts and keys belong to vectors", where=name, remedy="Leave them out.")
    if vectors is not None and prompt:
        raise DistilvecError(
            "vectors are made already, a prompt has no effect on them",
            where=name,
            remedy="Leave it out; put the prompt before the texts when you make the vectors.",
        )


def _of_items(
    model: str | Path, name: str, modality: str, device: str | None, trust_remote_code: bool
) -> Teacher | None:
    """The teacher of images or molecules that a file or folder holds; None where a text model is to read SMILES."""
    from distilvec.teachers.items import ItemTeacher, open_network

    if Path(model).suffix == ".safetensors" and not Path(model).exists():
        raise DistilvecError("there is no such file", where=str(model), remedy="Check the path.")
    if Path(model).is_file():
        return open_network(Path(model), name, device)
    import torch

    from distilvec.modules.opening import locate, open_model
    from distilvec.modules.pipeline import item_kinds, reads_texts

    folder = locate(model, trust_remote_code)
    opened = open_model(
        folder, name=str(model), device=device, dtype=torch.float32, trust_remote_code=trust_remote_code
    ).eval()
    if modality not in item_kinds(opened):
        if find_kind(modality).also_texts and reads_texts(opened):
            return None
        raise DistilvecError(
            f"it reads {' and '.join(item_kinds(opened))} items, and the corpus holds {modality}s",
            where=name,
            remedy="Choose another model, or set corpus.modality if the corpus was taken for something else.",
        )
    return ItemTeacher(opened, name=name, source=folder)
