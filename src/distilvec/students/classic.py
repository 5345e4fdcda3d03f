"""Writing a model's settings as all versions of sentence-transformers read them.

sentence-transformers 6 and transformers 5 have new names for modules, settings and the tokenizer's class. They read the
old ones too, but nothing older reads theirs: not sentence-transformers 3 to 5, infinity or text-embeddings-inference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Modules that older versions have; a table of word vectors is opened from version 5 on.
_MODULES = {"Transformer", "Pooling", "Dense", "Normalize", "StaticEmbedding"}
#: How a Transformer reads plain texts, as version 6 states it; with a chat template there would be more.
_PLAIN = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_STATED = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": _PLAIN,
}
_NAMES = {"model_kwargs": "model_args", "processor_kwargs": "tokenizer_args", "config_kwargs": "config_args"}
#: In the order in which older versions join several.
_POOLINGS = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
    "lasttoken": "lasttoken",
}
#: From here on transformers means that there is no limit, and older tokenizers overflow.
_ENDLESS = 10**9
#: Settings of Dense that older versions do not know, with the values that they take for granted.
_DENSE = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}


def write_classic(folder: Path) -> None:
    """Rewrite the settings of a saved model of texts in the old form, in which they say the same; weights are left.

    A model that no older version can open keeps its files as they are: one with modules of its own or of version 6,
    with a chat template, or that reads more than texts.
    """
    modules = _read(folder / "modules.json")
    written: dict[Path, Any] = {folder / "modules.json": modules}
    for module in modules:
        package, _, name = module["type"].rpartition(".")
        file = folder / module["path"] / "config.json"
        if not package.startswith("sentence_transformers.") or name not in _MODULES:
            return
        if name == "Transformer":
            found = _transformer(folder / module["path"])
            if found is None:
                return
            written |= found
        elif name in ("Pooling", "Dense"):
            settings = (_pooling if name == "Pooling" else _dense)(_read(file))
            if settings is None:
                return
            written[file] = settings
        module["type"] = f"sentence_transformers.models.{name}"
    for file, content in written.items():
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _transformer(folder: Path) -> dict[Path, Any] | None:
    """The settings of a Transformer and of its tokenizer, by file; None where they have no old form."""
    files = folder / "sentence_bert_config.json", folder / "tokenizer_config.json"
    needed = (*files, folder / "tokenizer.json")
    if not all(file.is_file() for file in needed) or (folder / "chat_template.jinja").exists():
        return None
    settings, tokenizer = map(_read, files)
    if any(settings.pop(name, value) != value for name, value in _STATED.items()) or "chat_template" in tokenizer:
        return None
    settings = {_NAMES.get(name, name): value for name, value in settings.items()}
    if not settings.keys() <= {*_NAMES.values(), "max_seq_length", "do_lower_case"}:
        return None
    length = tokenizer.get("model_max_length")
    settings.setdefault("max_seq_length", length if isinstance(length, int) and length < _ENDLESS else None)
    settings.setdefault("do_lower_case", False)
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    tokenizer.pop("backend", None)
    cut = _read(folder / "tokenizer.json").get("pre_tokenizer") or {}
    if "add_prefix_space" in cut:  # which older versions take from here, not from tokenizer.json
        tokenizer.setdefault("add_prefix_space", cut["add_prefix_space"])
    if isinstance(tokenizer.get("extra_special_tokens"), list):
        tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
    return dict(zip(files, (settings, tokenizer), strict=True))


def _pooling(settings: dict[str, Any]) -> dict[str, Any] | None:
    chosen = settings.pop("pooling_mode")
    modes = [chosen] if isinstance(chosen, str) else list(chosen)
    if modes != [mode for mode in _POOLINGS if mode in modes]:
        return None
    named = {f"pooling_mode_{old}": mode in modes for mode, old in _POOLINGS.items()}
    return {"word_embedding_dimension": settings.pop("embedding_dimension"), **named, **settings}


def _dense(settings: dict[str, Any]) -> dict[str, Any] | None:
    changed = any(settings.pop(name, value) != value for name, value in _DENSE.items())
    return None if changed else settings


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
