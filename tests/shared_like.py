"""A folder like the shared one, with a few invented rows of every set: enough for a small row of each experiment."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from tests.english import sentences

ROWS = 48
LONGEST = 12  # words: whatever is trained or judged on these texts is quick then
SPLITS = ("train", "validation", "test")


def write_shared(folder: Path) -> Path:
    """Texts, two tokenizers and a small student with a byte-level vocabulary of its own; returns the folder."""
    data = folder / "data"
    data.mkdir(parents=True)
    draw, texts = random.Random(0), list(dict.fromkeys(" ".join(text.split()[:LONGEST]) for text in sentences(700)))
    texts, trained = texts[::2], texts[1::2]

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        with gzip.open(data / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def pair(alike: float = 0.5) -> dict[str, Any]:
        """Two texts that have about this share of their words in common."""
        one, other = draw.choice(texts).split(), draw.choice(texts).split()
        kept = round(alike * len(one))
        return {"text1": " ".join(one), "text2": " ".join([*one[:kept], *other[kept:]]) or "None."}

    for split in SPLITS:
        for name in ("ag_news", "banking77", "emotion", "tweeteval_sentiment", "sst2"):
            chosen = draw.sample(texts, ROWS)
            write(f"{name}.{split}", [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(chosen)])
        for name, labels in (("wic", (0, 1)), ("mrpc", (0, 1)), ("scitail", ("entails", "neutral"))):
            write(f"{name}.{split}", [{**pair(i % 2), "label": labels[i % 2]} for i in range(ROWS)])
        for name in ("stsb", "sts12", "sick"):
            scored = [{**pair(i % 6 / 5), "score": float(i % 6), "label": "ab"[i % 2]} for i in range(ROWS)]
            write(f"{name}.{split}", scored)
    write("talas_corpus", [{"text": text, "domain": "emotion"} for text in trained[:240]])
    write("sentences", [{"text": text, "source": "docs"} for text in trained])
    positives = [{"anchor": text, "positive": text.upper(), "source": "docs"} for text in trained[:128]]
    write("pairs", [*positives, *({**row, "negative": draw.choice(trained)} for row in positives)])
    _tokenizers(data / "tokenizers")
    _student(folder / "models" / "student-bpe")
    return folder


def _tokenizers(folder: Path) -> None:
    from tests.tiny_models import _mistral_tokenizer, _wordpiece

    for name, tokenizer in (("bert-base-uncased", _wordpiece()), ("mistral-7b-v0.1", _mistral_tokenizer())):
        (folder / name).mkdir(parents=True)
        tokenizer.backend_tokenizer.save(str(folder / name / "tokenizer.json"))


def _student(folder: Path) -> None:
    """Four layers of 32, random."""
    import torch
    from tests.tiny_models import _modernbert_tokenizer
    from transformers import BertConfig, BertModel

    tokenizer = _modernbert_tokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=130,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
