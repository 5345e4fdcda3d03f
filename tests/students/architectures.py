"""Students of less common architectures with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, OPTConfig, OPTModel

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def saved(model: Any, tokenizer: Path, folder: Path) -> SentenceTransformer:
    model.save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(tokenizer)).save_pretrained(str(folder))
    transformer = Transformer(str(folder))
    return SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="mean")], device="cpu")


def opt(tokenizer: Path, folder: Path, **options: Any) -> SentenceTransformer:
    """A student whose dropout is a function, and whose blocks may be passed over."""
    config = OPTConfig(
        **SMALL,
        vocab_size=len(AutoTokenizer.from_pretrained(str(tokenizer))),
        ffn_dim=64,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        **options,
    )
    return saved(OPTModel(config), tokenizer, folder / "opt")
