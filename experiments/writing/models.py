"""A teacher and a student that write, from nothing: no pretrained causal model is among the shared data.

    python -m experiments.writing.models teacher    # Qwen3, 10.6 M, byte-level BPE of 8,192 pieces: half an hour
    python -m experiments.writing.models student    # GPT-2, 2.6 M, byte-level BPE of 4,096 pieces: 5 minutes of a core

Both read the shared sentences and the training pairs, of which both sides stand one after the other, in rows of 128
tokens: the teacher 5.3 million tokens, which is nearly all, the student 2.0 million, a third. They become plain
transformers folders in the work folder. A training that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.harness.records import WORK
from experiments.writing.data import documents

from distilvec.training import bfloat16_pays

FOLDER = WORK / "writing" / "models"
END = "<|endoftext|>"
LENGTH, BATCH, WARM_UP, SAVE = 128, 16, 100, 250
POSITIONS = 256
#: Steps of 2,048 tokens.
STEPS = {"teacher": 2600, "student": 1000}
RATES = {"teacher": 2e-3, "student": 3e-3}
PIECES = {"teacher": 8192, "student": 4096}


def tokenizer(name: str) -> Any:
    """Byte-level BPE learnt from the texts; the student's from every third of them, so that it is another one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES[name], special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    seen = documents()[:: 1 if name == "teacher" else 3]
    backend.train_from_iterator(itertools.chain.from_iterable(seen), trainer)
    side = "left" if name == "teacher" else "right"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=END, model_max_length=POSITIONS, padding_side=side
    )


def model(name: str, words: Any) -> Any:
    """A fresh one."""
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    ends = {"bos_token_id": words.eos_token_id, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    if name == "teacher":
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(words),
                hidden_size=320,
                num_hidden_layers=6,
                num_attention_heads=5,
                num_key_value_heads=5,
                head_dim=64,
                intermediate_size=960,
                max_position_embeddings=POSITIONS,
                tie_word_embeddings=True,
                **ends,
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=len(words), n_embd=192, n_layer=4, n_head=4, n_positions=POSITIONS, **ends)
    )


def rows(words: Any, place: Path) -> np.ndarray:
    """[n, LENGTH + 1] ids of all texts, each with its end, documents in a seeded order; kept in a file."""
    if not place.exists():
        order = np.random.default_rng(0).permutation(len(every := documents()))
        encoded = words.backend_tokenizer.encode_batch_fast([text for row in order for text in every[row]])
        flat = np.concatenate([[*each.ids, words.eos_token_id] for each in encoded]).astype(np.uint16)
        count = (len(flat) - 1) // LENGTH
        table = np.stack([flat[LENGTH * row : LENGTH * row + LENGTH + 1] for row in range(count)])
        np.save(place, table)
    return np.load(place)


def rate(step: int, name: str) -> float:
    """Warm-up, then a cosine down to a tenth."""
    done = step / STEPS[name]
    return RATES[name] * min(1, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * done))


def pretrain(name: str) -> Path:
    """The folder of a pretrained model; made where it is not there."""
    folder, work = FOLDER / name, FOLDER / f"{name}.work"
    if (folder / "config.json").exists():
        return folder
    work.mkdir(parents=True, exist_ok=True)
    words = tokenizer(name)
    trained, table = model(name, words), rows(words, work / "rows.npy")
    trained.set_attn_implementation("eager")
    plain = [each for each in trained.parameters() if each.dim() < 2]
    others = [each for each in trained.parameters() if each.dim() >= 2]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    checkpoint, step = work / "checkpoint.pt", 0
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        trained.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    held, low, log = table[:64], bfloat16_pays(), open(work / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115
    order = np.random.default_rng(1).permutation(np.arange(64, len(table)))
    order = np.tile(order, -(-STEPS[name] * BATCH // len(order)))
    began, seen = time.time(), 0.0
    for step in range(step, STEPS[name]):  # noqa: B020
        for group in optimizer.param_groups:
            group["lr"] = rate(step, name)
        value = loss(trained, table[order[BATCH * step : BATCH * (step + 1)]], low)
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += value.item()
        if (step + 1) % 50 == 0:
            entry = {"step": step + 1, "loss": seen / 50, "seconds": round(time.time() - began)}
            seen = 0.0
            if (step + 1) % SAVE == 0:
                entry["held_out"] = held_out(trained, held, low)
                state = {"model": trained.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(state, checkpoint.with_suffix(".partial"))
                checkpoint.with_suffix(".partial").replace(checkpoint)
            log.write(json.dumps(entry) + "\n")
            log.flush()
    trained.set_attn_implementation("sdpa")
    partial = FOLDER / f"{name}.partial"
    trained.eval().save_pretrained(partial)
    words.save_pretrained(partial)
    partial.replace(folder)
    return folder


def loss(trained: Any, ids: np.ndarray, low: bool) -> torch.Tensor:
    """Mean cross-entropy of the next token, in nats."""
    given = torch.from_numpy(ids.astype(np.int64))
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        logits = trained(input_ids=given[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), given[:, 1:].flatten())


@torch.no_grad()
def held_out(trained: Any, held: np.ndarray, low: bool) -> float:
    trained.eval()
    found = float(np.mean([float(loss(trained, part, low)) for part in np.array_split(held, 4)]))
    trained.train()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(STEPS))
    print(pretrain(parser.parse_args().name))


if __name__ == "__main__":
    main()
