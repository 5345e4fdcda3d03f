"""The guarded way to open a cross-encoder: a model that reads two texts together and says a number, or classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilvec.errors import DistilvecError
from distilvec.modules.guarded import open_judge
from distilvec.modules.opening import explained
from distilvec.modules.promised_tokens import put_into
from distilvec.modules.settings import read_json
from distilvec.modules.text_ids import check_unknown

#: Kinds of models that judge a pair; others would get a head of random numbers.
_JUDGES = ("ForSequenceClassification", "ForCausalLM")


def open_cross_encoder(
    folder: str | Path,
    *,
    name: str,
    device: str | None,
    max_length: int | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """A folder that `opening.locate` has checked as a `CrossEncoder` of sentence-transformers; it predicts logits."""
    config = read_json(Path(folder) / "config.json")
    kinds = config.get("architectures") if isinstance(config, dict) else None
    if not any(str(kind).endswith(_JUDGES) for kind in (kinds if isinstance(kinds, list) else [])):
        raise DistilvecError(
            f"this model has no head that judges a pair: its config.json names {kinds}",
            where=name,
            remedy="Give a cross-encoder, or make one with distilvec finetune --task pairs.",
        )
    with explained(name):
        opened = open_judge(
            str(folder),
            device=device,
            max_length=max_length,
            trust_remote_code=trust_remote_code,
            local_files_only=not trust_remote_code,
            model_kwargs={"use_safetensors": True},
        )
        put_into(opened.tokenizer, Path(folder), name)
        check_unknown(opened.tokenizer, name)
        opened.predict([("a query", "a document")], show_progress_bar=False)
    return opened.eval()
