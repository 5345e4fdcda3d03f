"""Parameters of well-known encoders before and after `shrink`, from their configurations alone (docs/shapes.md).

python -m experiments.quarter.shape_sizes
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ElectraConfig, ElectraModel


@dataclass(frozen=True)
class Family:
    """What a configuration says: pieces, width, blocks, heads, inner units, positions, token types."""

    name: str
    pieces: int
    width: int
    blocks: int
    heads: int
    inner: int
    positions: int = 512
    types: int = 2


FAMILIES = (
    Family("all-MiniLM-L6-v2", 30_522, 384, 6, 12, 1536),
    Family("bge-small-en-v1.5, e5-small-v2", 30_522, 384, 12, 12, 1536),
    Family("bge-base-en-v1.5, e5-base-v2", 30_522, 768, 12, 12, 3072),
    Family("multilingual-e5-small", 250_037, 384, 12, 12, 1536),
    Family("multilingual-e5-base", 250_002, 768, 12, 12, 3072, types=1),
    Family("bge-m3, multilingual-e5-large", 250_002, 1024, 24, 16, 4096, types=1),
)


def parameters(family: Family, **changed: Any) -> int:
    """Of the model without a pooler; nothing is allocated."""
    config: Any = ElectraConfig
    sizes = {
        "vocab_size": family.pieces,
        "embedding_size": family.width,
        "hidden_size": family.width,
        "num_hidden_layers": family.blocks,
        "num_attention_heads": family.heads,
        "intermediate_size": family.inner,
        "max_position_embeddings": family.positions,
        "type_vocab_size": family.types,
    }
    with torch.device("meta"):
        model = ElectraModel(config(**{**sizes, **changed}))
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    print(
        "| model | whole | of it word table | rank width / 4 | and a third of the blocks | and a third of their units |"
    )
    print("|---|---|---|---|---|---|")
    for family in FAMILIES:
        rank = {"embedding_size": family.width // 4}
        blocks = {**rank, "num_hidden_layers": family.blocks // 3}
        units = {**blocks, "intermediate_size": family.inner // 3}
        sizes = [parameters(family, **change) for change in ({}, rank, blocks, units)]
        table = family.pieces * family.width
        shown = [sizes[0], table, *sizes[1:]]
        print(f"| {family.name} | {' | '.join(f'{size / 1e6:.1f} M' for size in shown)} |")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
