"""What a sharded training keeps of its optimiser, in one process that has all parts; see also test_processes."""

from __future__ import annotations

from pathlib import Path

from tests.training.starting import Starter

PROGRAM = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from distilvec.errors import EnvironmentProblem
from distilvec.training.sharding import whole_state

home = Path(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{home / 'meeting'}", rank=0, world_size=1)


def stepped(sharded):
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    if sharded:
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    layer(torch.arange(10.0).view(2, 5)).square().sum().backward()
    optimizer.step()
    return optimizer


wanted, optimizer = stepped(False).state_dict(), stepped(True)
kept = whole_state(optimizer, home / "parts")
for number, entry in wanted["state"].items():
    assert entry.keys() == kept["state"][number].keys()
    for name, value in entry.items():
        assert type(kept["state"][number][name]) is torch.Tensor
        torch.testing.assert_close(kept["state"][number][name], value)
assert len(list((home / "parts").iterdir())) == 4  # of weight and bias, two each

full = home / "full"
full.mkdir()
(full / "optimizer-2").symlink_to("/dev/full")
try:
    whole_state(optimizer, full)
except EnvironmentProblem as problem:
    print(problem)
assert not full.exists()
"""


def test_the_state_lies_in_files_and_a_full_disk_is_said(start: Starter, tmp_path: Path) -> None:
    code, output = start.code(PROGRAM, tmp_path).wait()
    assert code == 0, output
    assert "the checkpoint cannot be written" in output and "No space left on device" in output
