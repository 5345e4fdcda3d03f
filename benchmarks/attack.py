"""An attack: commands that are killed, commands whose disk fails, and hostile recipes, corpora, vectors and folders.

    python benchmarks/attack.py                           # 1,000 kills and 20,000 inputs, about an hour on 2 cores
    python benchmarks/attack.py --kills 100 --errors 100 --inputs 2000 --folder /tmp/attack
    python benchmarks/attack.py --only model/17           # one block again, with what it says

All of it comes from a seed. One process imports everything, and every command runs in a fork of it. A kill is held
where the command, started again, ends with what the unkilled one leaves: the same weights bit by bit, every row once,
no half-written file under a final name, no file of others touched. An error of the disk (EIO, ENOSPC, EROFS, EDQUOT
...) at a chosen change is held where the command says the system's reason and a fitting advice, leaves nothing half,
and, started again, ends with the same. An input is held where it ends with success or with
an error that says what to do (exit 2, 3 or 4), in time, writing nowhere but in its output, and running nothing.
With --folder the blocks that are done are kept there, and a second start goes on. Writes results/attack.{json,md}; with
--kills 0, --errors 0 or --inputs 0 that part stays there as it was.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PER_BLOCK, MOST_INPUTS_PER_BLOCK = 5, 50
#: Shares of the kills: what is dear is killed less often.
KILLED = {"teach": 20, "train": 24, "run": 18, "compare": 10, "plan": 6, "finetune": 12, "compress": 5, "export": 5}
KILLED |= {"mine": 5, "shrink": 3, "adapt": 4, "evaluate": 3, "geometry": 3}
#: Shares of the inputs.
FED = {"recipe": 30, "options": 9, "corpus": 22, "prepared": 7, "vectors": 12, "model": 9, "store": 6, "run": 5}
FED |= {"typed": 30, "endless": 8, "checkpoint": 6}


def get_ready() -> None:
    """One thread, no network, no device; and the tests' tiny models can be imported."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    sys.dont_write_bytecode = True  # that would count as a file of others that an input touched
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def warm(folder: Path, commands: Sequence[str], fed: Sequence[str]) -> None:
    """Import here, once, what the commands import: found by running some of them in a fork."""
    import importlib

    import torch
    from attacking import jobs, made
    from attacking.children import call, forked

    from distilvec.students import load_student

    torch.set_num_threads(1)
    for name in ("distilvec.cli.main", "distilvec.flow.run", "sentence_transformers"):
        importlib.import_module(name)
    leave_alone()
    if not (folder / "inputs").exists():
        shutil.rmtree(folder / "making", ignore_errors=True)
        ended = forked(lambda: int(made.make_inputs(folder / "making") is None), folder)
        if ended.code:
            raise SystemExit(f"the inputs cannot be made:\n{ended.output}")
        (folder / "making").rename(folder / "inputs")
        made.write_recipes(folder / "inputs")
        made.make_runs(folder / "inputs", left={"typed", "endless"}.intersection(fed))

    def modules() -> int:
        first = {job.command: job for job in reversed(jobs.jobs(folder / "inputs"))}
        for job in first.values():
            if job.command in {"run", *commands} - {"teach", "train", "export"}:
                call([each if each != "out" else f"warm-{job.command}" for each in job.arguments])
        Path("modules.json").write_text(json.dumps(list(sys.modules)))
        return 0

    place = jobs.fresh(folder / "warm")
    forked(modules, place)
    names = json.loads((place / "modules.json").read_text())
    for name in (name for name in names if not name.startswith("onnxruntime")):  # it starts a thread, which no fork has
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    shutil.rmtree(place)
    for kind in ("bert", "qwen3"):  # what transformers makes when it first opens a model is then there for all
        load_student(folder / "inputs" / kind, device="cpu")
    leave_alone()


def leave_alone() -> None:
    """What is here now is no garbage to the forks: looking through it would also copy it, page by page."""
    gc.collect()
    gc.freeze()


def blocks(given: argparse.Namespace, jobs: Sequence[Any]) -> list[str]:
    """KIND/NUMBER of every block of the attack, the dear ones first."""
    found = []
    shares = {command: share for command, share in KILLED.items() if command in given.commands}
    for command, share in shares.items():
        variants = [number for number, job in enumerate(jobs) if job.command == command]
        for how, wanted in (("kill", given.kills), ("error", given.errors)):
            count = max(1, round(wanted * share / sum(shares.values()) / PER_BLOCK)) if wanted else 0
            found += [f"{how}-{variants[number % len(variants)]}/{number // len(variants)}" for number in range(count)]
    shares = {kind: FED[kind] for kind in given.fed}
    for kind, share in shares.items():
        wanted = given.inputs * share / sum(shares.values())
        count = max(1, round(wanted / inputs_per_block(given))) if given.inputs else 0
        found += [f"{kind}/{number}" for number in range(count)]
    return sorted(found, key=lambda name: not name.startswith(("kill-", "error-")))


def inputs_per_block(given: argparse.Namespace) -> int:
    """Fewer where few are asked for, so that there are some of each kind."""
    return min(MOST_INPUTS_PER_BLOCK, max(1, given.inputs // len(given.fed)))


def do(
    name: str, folder: Path, given: argparse.Namespace, jobs: Sequence[Any], *, loud: bool = False
) -> dict[str, Any]:
    """One block."""
    from attacking import disk_errors, feeding, kills

    kind, _, number = name.partition("/")
    seed = given.seed
    place = folder / "cases" / name.replace("/", "-")
    begun = time.perf_counter()
    how, dash, variant = kind.partition("-")
    if dash:
        job = jobs[int(variant)]
        whole_run, changes = the_unkilled(int(variant), job, folder)
        block = {"kill": kills.block, "error": disk_errors.block}[how]
        done = block(job, changes, whole_run, place, random.Random(f"{seed}/{name}"), PER_BLOCK)
        found = {"command": job.command, **done}
    else:
        count = inputs_per_block(given)
        numbers = range(int(number) * count, (int(number) + 1) * count)
        found = feeding.block(kind, f"{seed}/{name}", numbers, folder / "inputs", place, loud=loud)
    return {"name": name, "seed": seed, "seconds": time.perf_counter() - begun, **found}


def the_unkilled(number: int, job: Any, folder: Path) -> tuple[Path, list[tuple[float, str, str]]]:
    """The folder of the run that was not killed, and what it changed; made by the first who asks."""
    from attacking import kills

    place = folder / f"whole-{number}"
    record = place / "changes.json"
    if not record.exists():
        mine = folder / f"whole-{number}-{os.getpid()}"
        changes = kills.unkilled(job, mine).changes
        (mine / "changes.json").write_text(json.dumps(changes))
        try:
            mine.rename(place)
        except OSError:  # another worker was faster
            shutil.rmtree(mine)
    return place, [tuple(change) for change in json.loads(record.read_text())]


def work(names: Sequence[str], folder: Path, given: argparse.Namespace, jobs: Sequence[Any]) -> None:
    """Take blocks that nobody has taken yet, until there are none."""
    for name in names:
        file = name.replace("/", "-")
        done = folder / "done" / f"{file}.json"
        if done.exists():
            continue
        try:
            os.close(os.open(folder / "taken" / file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        found = do(name, folder, given, jobs)
        partial = done.with_suffix(".partial")
        partial.write_text(json.dumps(found))
        partial.rename(done)
        told = next(f"{found[key]} {key}" for key in ("kills", "errors", "tried") if key in found)
        print(f"{name:<14} {told}, {len(found['broken'])} broken, {found['seconds']:.0f} s", flush=True)


def attack(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All blocks with so many processes; returns what they found."""
    warm(folder, given.commands, given.fed)
    from attacking import results
    from attacking.jobs import jobs

    every = jobs(folder / "inputs")
    names = blocks(given, every)
    shutil.rmtree(folder / "taken", ignore_errors=True)
    for part in ("taken", "done", "cases"):
        (folder / part).mkdir(exist_ok=True)
    workers = []
    for _ in range(given.workers):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(names, folder, given, every)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
        workers.append(child)
    ends = [os.waitpid(child, 0)[1] for child in workers]
    if any(ends):
        raise SystemExit("a worker of the attack itself failed; start it again to go on")
    files = [folder / "done" / f"{name.replace('/', '-')}.json" for name in names]
    return results.gather([json.loads(file.read_text()) for file in files], given.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_100)
    parser.add_argument(
        "--commands", nargs="+", choices=list(KILLED), default=list(KILLED), help="that are killed, or get errors"
    )
    parser.add_argument("--errors", type=int, default=400, help="of the disk")
    parser.add_argument("--inputs", type=int, default=20_400)
    parser.add_argument("--fed", nargs="+", choices=list(FED), default=list(FED), help="kinds of inputs")
    parser.add_argument("--seed", type=int, default=27)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep everything here, and go on; default: a temporary folder")
    parser.add_argument("--only", metavar="KIND/NUMBER", help="this block alone; writes no results")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"))
    given = parser.parse_args()
    get_ready()
    with contextlib.ExitStack() as stack:
        folder = given.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distilvec-attack-")))
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if given.only:
            warm(folder, given.commands, given.fed)
            from attacking.jobs import jobs

            print(json.dumps(do(given.only, folder, given, jobs(folder / "inputs"), loud=True), indent=1))
            return
        result = attack(given, folder)
    given.results.mkdir(parents=True, exist_ok=True)
    from attacking.results import keep_the_other, table

    keep_the_other(result, given.results / "attack.json")
    (given.results / "attack.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    (given.results / "attack.md").write_text(table(result))
    print(table(result))
    if result["broken"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
