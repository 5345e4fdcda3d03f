"""All benchmarks one after another, with their defaults: store, encode, step, allocator, attention,
alignment, token_steps, expert_head, many_teachers, dispatch, static, scale,
ray_teaching, service, engines, stream, mining, out_of_the_box, serving.

    OMP_NUM_THREADS=2 python benchmarks/run_all.py

store: making, opening and reading a store of 10 million rows. encode: a teacher's throughput against
sentence-transformers' encode. step: time and memory of a training step of every method. allocator: what
keeping freed memory gains. attention: kernels by length and batch, and what compiling adds. alignment:
aligning tokens against plain Python; it needs the shared data (DISTILVEC_DATA). token_steps: steps of the
methods that look inside the teacher. expert_head: the latency that DistillMoE's head adds. many_teachers:
what one more teacher adds to a step of gaussian. dispatch: sparse dispatch to experts, and aggregation on
the sphere. static: static students beside a transformer. scale: what `plan --rows` prints. ray_teaching:
what Ray costs beside one process (extra ray). service: how much of the throughput that a server allows
comes through. engines: one student on torch, ONNX and OpenVINO. stream: what reading a data set of the hub
fetches. mining: beside sentence-transformers' miner; it needs the shared data. out_of_the_box: a whole job by
defaults, beside sentence-transformers' documented way. serving: requests a second, beside others.
Each writes its figures to benchmarks/results/NAME.json, and most a NAME.md. They take two hours together
on 2 cores. `attack.py`, which kills commands and feeds hostile inputs, takes longer and is started by
itself, as is `web.py`, which needs node, npm and Chromium.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = (
    "store",
    "encode",
    "step",
    "allocator",
    "attention",
    "alignment",
    "token_steps",
    "expert_head",
    "many_teachers",
    "dispatch",
    "static",
    "scale",
    "ray_teaching",
    "service",
    "engines",
    "stream",
    "mining",
    "out_of_the_box",
    "serving",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    options = parser.parse_args()
    failed = []
    for name in options.only:
        if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
