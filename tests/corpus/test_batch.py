"""Equal items of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distilvec.corpus.batch import Batch


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.most = max(self.most, made.numel())
        return made


def test_equal_items_are_found_in_quadratic_memory() -> None:
    flat = torch.randint(0, 2, (1 + 40 * 16,), dtype=torch.uint8)[1:]  # where no word begins
    keys = flat.view(40, 16)
    keys[7], keys[8, :15] = keys[3], keys[3, :15]
    keys[8, 15] = 1 - keys[3, 15]
    keys[9] = keys[3]
    keys[9, 0] = 1 - keys[3, 0]
    expected = (keys[:, None] == keys[None]).all(-1)
    assert expected[3, 7] and not expected[3, 8] and not expected[3, 9]
    for given in (keys, keys.T.contiguous().T, keys[::3], keys[:0], keys[:1].expand(5, 16)):
        with Largest() as largest:
            found = Batch.equal_items(given)
        assert torch.equal(found, (given[:, None] == given[None]).all(-1))
        assert largest.most <= max(len(given) ** 2, given.numel())
