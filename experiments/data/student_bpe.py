"""Train `student-bpe`: a text encoder of 4 x 256 with its own byte-level BPE of 8,192 entries, by masked words only.

    python -m experiments.data.student_bpe --to FOLDER            # writes FOLDER/models/student-bpe
    python -m experiments.data.student_bpe --to FOLDER --texts 2000 --steps 40    # a trial of a minute

It plays the part that BERT plays in the papers: a general encoder with another tokenizer and width than the teacher,
which has seen neither labels nor pairs nor a text of an evaluation set. It reads `sentences`, `pairs`, `ag_news.train`
and `imdb.train` of FOLDER/data (long texts in pieces of three sentences). Its state is kept in
FOLDER/models/student-bpe.state, so the same command goes on after an interruption. The weights differ from those of the
committed results: another draw of the same recipe. The held-out loss that it prints at the end was 4.46 there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from experiments.data.formats import read_lines
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, get_cosine_schedule_with_warmup

from distilvec.training import bfloat16_pays

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
START, PAD, END, _, MASK = range(5)
ENTRIES = 8192
LONGEST = 256
BATCH_TOKENS = 4096
PEAK = 1.5e-3
HELD_OUT = 2000
KEEP_EVERY = 200


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    texts = sorted(set(read_texts(options.to / "data")))
    random.Random(options.seed).shuffle(texts)
    texts = texts[: options.texts]
    target = options.to / "models" / "student-bpe"
    tokenizer = train_tokenizer(texts)
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    held = min(HELD_OUT, len(texts) // 10)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = BertForMaskedLM(shape()).to(device)
    plan = [batch for epoch in range(options.epochs) for batch in batches(encoded[held:], options.seed + epoch)]
    plan = plan[: options.steps]
    print(f"{len(texts):,} texts, {sum(map(len, encoded)):,} tokens, {len(plan):,} steps on {device}", flush=True)
    train(model, plan, target.with_name("student-bpe.state"), options.seed)
    torch.manual_seed(options.seed)
    losses = [held_out_loss(model, batch) for batch in batches(encoded[:held], options.seed)]
    print(f"held-out masked-word loss {sum(losses) / len(losses):.2f}")
    save(model, tokenizer, target)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).parents[3] / "shared"
    parser.add_argument("--to", type=Path, default=Path(os.environ.get("DISTILVEC_DATA", beside)), metavar="FOLDER")
    parser.add_argument("--texts", type=int, help="at most this many texts, for a trial")
    parser.add_argument("--steps", type=int, help="at most this many steps, for a trial")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read_texts(data: Path) -> Iterator[str]:
    """Every text of the four files; those of news and reviews in pieces of three sentences."""
    for name in ("sentences", "pairs"):
        for line in read_lines(data / f"{name}.jsonl.gz"):
            row = json.loads(line)
            yield from (row[field] for field in ("text", "anchor", "positive", "negative") if row.get(field))
    for name in ("ag_news", "imdb"):
        for line in read_lines(data / f"{name}.train.jsonl.gz"):
            sentences = re.split(r"(?<=[.!?])\s+", json.loads(line)["text"])
            yield from (" ".join(sentences[first : first + 3]) for first in range(0, len(sentences), 3))


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE, cased, NFKC, a space before the first word; a text becomes `<s> ... </s>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", START), ("</s>", END)]
    )
    tokenizer.enable_truncation(LONGEST)
    return tokenizer


def shape() -> BertConfig:
    return BertConfig(
        vocab_size=ENTRIES,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=LONGEST,
        pad_token_id=PAD,
        attn_implementation="eager",  # on processors the fused kernel's backward pass is slower for short texts
    )


def batches(encoded: list[list[int]], seed: int) -> list[torch.Tensor]:
    """Texts of about one length together, about 4,096 tokens with padding a batch; batches in random order.

    Returns:
        Tensors [texts, tokens] of token numbers, padded.
    """
    rng = random.Random(seed)
    order = sorted(range(len(encoded)), key=lambda row: (len(encoded[row]), rng.random()))
    found, rows = [], []
    for row in order:
        if rows and (len(rows) + 1) * len(encoded[row]) > BATCH_TOKENS:
            found.append(rows)
            rows = []
        rows.append(row)
    found.append(rows)
    rng.shuffle(found)
    longest = [max(len(encoded[row]) for row in rows) for rows in found]
    return [
        torch.tensor([encoded[row] + [PAD] * (width - len(encoded[row])) for row in rows], dtype=torch.int16)
        for rows, width in zip(found, longest)
    ]


def masked(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """BERT's corruption: of 15 % of the tokens 80 % become `<mask>`, 10 % another entry and 10 % stay.

    Returns:
        The corrupted tokens and the tokens to tell, -100 elsewhere; both as `tokens` [texts, tokens].
    """
    chosen = (torch.rand(tokens.shape) < 0.15) & (tokens > MASK)
    told = torch.where(chosen, tokens, -100)
    fate = torch.rand(tokens.shape)
    other = torch.randint(len(SPECIAL), ENTRIES, tokens.shape)
    corrupted = torch.where(chosen & (fate < 0.8), MASK, tokens)
    return torch.where(chosen & (fate >= 0.9), other, corrupted), told


def loss_of(model: BertForMaskedLM, batch: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over the chosen tokens; the output layer is computed for these alone."""
    tokens, told = (part.to(model.device) for part in masked(batch.long()))
    chosen = told != -100
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bfloat16_pays()):
        hidden = model.bert(tokens, attention_mask=(tokens != PAD).long()).last_hidden_state
        logits = model.cls(hidden[chosen])
    return cross_entropy(logits.float(), told[chosen])


def train(model: BertForMaskedLM, plan: list[torch.Tensor], state: Path, seed: int) -> None:
    """AdamW with a cosine schedule. Every step has a seed of its own: an interrupted run ends as a whole one does."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = get_cosine_schedule_with_warmup(optimizer, len(plan) // 20, len(plan))
    first = 0
    if state.exists():
        kept = torch.load(state, weights_only=True)
        if kept["steps"] != len(plan):
            raise SystemExit(
                f"{state} is of a run of {kept['steps']} steps, this one has {len(plan)}: delete it first."
            )
        for part, name in ((model, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
            part.load_state_dict(kept[name])
        first = kept["step"]
    model.train()
    begun = time.monotonic()
    for step in range(first, len(plan)):
        torch.manual_seed(seed * 1_000_003 + step)
        loss = loss_of(model, plan[step])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % KEEP_EVERY == 0 or step + 1 == len(plan):
            left = (time.monotonic() - begun) / (step + 1 - first) * (len(plan) - step - 1)
            print(
                f"step {step + 1:,} of {len(plan):,}, loss {loss.item():.2f}, {left / 60:.0f} minutes left", flush=True
            )
            parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
            kept = {"step": step + 1, "steps": len(plan), **{name: part.state_dict() for name, part in parts.items()}}
            state.parent.mkdir(parents=True, exist_ok=True)
            torch.save(kept, state.with_suffix(".part"))
            state.with_suffix(".part").replace(state)


@torch.no_grad()
def held_out_loss(model: BertForMaskedLM, batch: torch.Tensor) -> float:
    model.eval()
    return loss_of(model, batch).item()


def save(model: BertForMaskedLM, tokenizer: Tokenizer, target: Path) -> None:
    """The encoder without its head, and the tokenizer, as transformers reads them."""
    model.bert.save_pretrained(target)
    tokenizer.no_truncation()
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LONGEST, cls_token="<s>", sep_token="</s>", **names
    )
    fast.save_pretrained(target)
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
