"""Models to damage: a folder with every file of settings that models are saved with, and adapters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: File -> settings that models on the hub have, and the tiny ones do not.
MORE: dict[str, dict[str, Any]] = {
    "config.json": {
        "torch_dtype": "float32",
        "_name_or_path": "somebody/something",
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "pruned_heads": {},
        "position_embedding_type": "absolute",
        "output_hidden_states": False,
        "output_attentions": False,
        "problem_type": None,
        "return_dict": True,
        "chunk_size_feed_forward": 0,
        "tokenizer_class": None,
        "gradient_checkpointing": False,
        "sep_token_id": 3,
        "rope_scaling": None,
        "rope_parameters": None,
        "task_specific_params": None,
    },
    "tokenizer_config.json": {
        "added_tokens_decoder": {
            "0": {"content": "[PAD]", "lstrip": False, "normalized": False, "rstrip": False, "special": True}
        },
        "add_bos_token": False,
        "add_eos_token": False,
        "additional_special_tokens": [],
        "extra_special_tokens": {},
        "clean_up_tokenization_spaces": False,
        "do_lower_case": True,
        "do_basic_tokenize": True,
        "max_length": 128,
        "model_input_names": ["input_ids", "attention_mask"],
        "name_or_path": "somebody/something",
        "never_split": None,
        "pad_to_multiple_of": None,
        "pad_token_type_id": 0,
        "padding_side": "right",
        "stride": 0,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "truncation_side": "right",
        "truncation_strategy": "longest_first",
        "split_special_tokens": False,
        "use_fast": True,
    },
    "special_tokens_map.json": {
        "cls_token": {
            "content": "[CLS]",
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        },
        "pad_token": "[PAD]",
        "additional_special_tokens": [],
    },
    "added_tokens.json": {},
    "sentence_bert_config.json": {
        "max_seq_length": 128,
        "do_lower_case": False,
        "model_args": {},
        "tokenizer_args": {},
        "config_args": {},
    },
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
    "config_sentence_transformers.json": {
        "prompts": {"query": "query: ", "document": ""},
        "default_prompt_name": "query",
        "truncate_dim": None,
    },
}


def make_full(bert: Path, folder: Path) -> None:
    """Write the tiny bert with a map of its vectors behind it, and the settings above."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    model = SentenceTransformer(str(bert), device="cpu")
    torch.manual_seed(3)
    modules = [model[0], model[1], Dense(32, 16, bias=True), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    for name, more in MORE.items():
        file = folder / name
        have = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(have | more, indent=1))


def make_adapters(bert: Path, folder: Path) -> None:
    """Write low-rank adapters to the tiny bert."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    torch.manual_seed(4)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False)
    get_peft_model(AutoModel.from_pretrained(str(bert)), config).save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)


def make_table(bert: Path, folder: Path) -> None:
    """Write a table of word pieces as the package model2vec does, with the pieces of the tiny bert."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    pieces = json.loads((bert / "config.json").read_text())["vocab_size"]
    rows = np.random.default_rng(5).standard_normal((pieces, 16)).astype(np.float32)
    save_file({"embeddings": rows}, folder / "model.safetensors")
    settings = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": 16, "max_length": 20}
    settings |= {"normalize": True, "seq_length": 1_000_000, "embedding_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    (folder / "tokenizer.json").write_bytes((bert / "tokenizer.json").read_bytes())


def encode(folder: Path, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """float32 [n, D], the vectors of a model."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return np.asarray(model.encode(list(texts), show_progress_bar=False), np.float32)
