"""Training jobs for processes of their own (`tests/forking.py`), and what they work on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 24
Job = dict[str, Any]


# what every job works on


def prepare(folder: Path, count: int = 80) -> Path:
    """A corpus with three domains, one of triplets of its texts, a store of random vectors, four students.

    `student` has dropout, `still` has none; `mixture` and `still-mixture` are mixtures of experts made of them.
    `decoder` is a teacher whose tokens can be seen; it pads on the left. `classifier` is another, with a head for the
    topics. `writer` is a teacher that writes, padding on the left, `scribe` a student that does, with dropout, and
    `still-scribe` one without; `prompts` is a corpus of prompts with answers.
    """
    import torch
    from tests import tiny_models
    from tests.english import sentences

    from distilvec.corpus import read_corpus
    from distilvec.modules.task_head import TaskHead
    from distilvec.store import SignalStore
    from distilvec.students.upcycling import upcycle

    texts = list(dict.fromkeys(" ".join(text.split()[:10]) for text in sentences(200)))[:count]
    rows = [{"text": text, "topic": "abc"[number % 3]} for number, text in enumerate(texts)]
    corpus = read_corpus(rows, folder / "corpus", domain="topic", holdout=0.2)
    read_corpus(
        [{"text": row["text"], "label": row["topic"]} for row in rows], folder / "labelled", label="label", holdout=0.2
    )
    store = SignalStore.create(folder / "store", CARD, WIDTH, "float32")
    with store.writer("random") as writer:
        writer.add(corpus.keys, np.random.default_rng(5).standard_normal((len(corpus), WIDTH)).astype(np.float32))
    triplets = [
        {"anchor": text, "positive": texts[(number + 1) % count], "negative": texts[(number + 7) % count]}
        for number, text in enumerate(texts)
    ]
    read_corpus(triplets, folder / "triplets", text=["anchor", "positive", "negative"], holdout=0.0)
    for name in ("decoder", "classifier"):
        tiny_models.build("qwen3", folder / name)
    for kind, name in (("qwen3", "writer"), ("gpt2", "scribe"), ("gpt2", "still-scribe")):
        tiny_models.build_writer(kind, folder / name)
    config = json.loads((folder / "still-scribe" / "config.json").read_text())
    config |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    (folder / "still-scribe" / "config.json").write_text(json.dumps(config))
    words = [text.split() for text in texts]
    prompts = [{"prompt": " ".join(each[:5]), "answer": " ".join(each[5:]) or "none"} for each in words]
    read_corpus(prompts, folder / "prompts", text=["prompt", "answer"], joint=True, holdout=0.2)
    torch.manual_seed(7)
    head = TaskHead(tiny_models.WIDTH, labels=["a", "b", "c"])
    torch.nn.init.normal_(head.linear.weight)
    head.save(folder / "classifier")
    tiny_models.build("bert", folder / "student")
    still = folder / "still"
    tiny_models.build("bert", still)
    config = json.loads((still / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    for dense, mixture in (("student", "mixture"), ("still", "still-mixture")):
        upcycle(folder / dense, experts=4, noise=0.3).save(str(folder / mixture), create_model_card=False)
    return folder


CARD = {"name": "random", "kind": "vectors", "fingerprint": "f" * 16}


def parts(
    home: Path, student: str = "student", corpus: str = "corpus", live: str | None = None, writes: bool = False
) -> dict[str, Any]:
    """Student, corpus, teachers and sources as `fit` takes them; the teacher is the store's, or the live one named."""
    import torch

    from distilvec.corpus import Corpus
    from distilvec.flow.teach import teacher_info
    from distilvec.kinds.base import find_kind
    from distilvec.modules.writing import open_writer
    from distilvec.store import SignalStore
    from distilvec.students import load_student
    from distilvec.teachers import TeacherInfo, load_teacher
    from distilvec.training import LiveSource, StoreSource

    items = Corpus.open(home / corpus)
    if writes:
        items = items.taken_as(find_kind("writing"))
    source: LiveSource | StoreSource
    if live:
        teacher = load_teacher(model=home / live, separator="\n" if writes else None)
        source = LiveSource(teacher, items, home / f"live-{os.environ.get('RANK', 'alone')}")
        info = teacher_info(teacher)
    else:
        source = StoreSource(SignalStore.open(home / "store"), items)
        info = TeacherInfo("random", WIDTH, mean=torch.zeros(WIDTH), std=torch.ones(WIDTH))
    return {
        "student": (open_writer if writes else load_student)(home / student, device="cpu"),
        "teachers": [info],
        "corpus": items,
        "sources": [source],
    }


class Poisoned:
    """A source that gives NaN for one row, once training has begun."""

    def __init__(self, source: Any, row: int) -> None:
        self.source, self.row, self.calls = source, row, 0

    def prepare(self, wanted: Any, tokens: Any) -> None:
        self.source.prepare(wanted, tokens)

    def fetch(self, rows: Any) -> dict[str, Any]:
        signals: dict[str, Any] = self.source.fetch(rows)
        self.calls += 1
        if self.calls > 1:  # the first is the sample that the heads start from
            signals["sentence"][np.asarray(rows) == self.row] = float("nan")
        return signals


def train(job: Job) -> None:
    """Run `fit` as the job says and write all weights to `final.safetensors`.

    home, out; method, options, training, optimizer; student; corpus; live (the teacher); task; matryoshka; remember;
    router_balance; resume; train_rows (60 where it is silent); evaluate (a metric per call, or none); apart (see
    `_apart`); die, slow, limit (see below).
    """
    import torch
    from safetensors.torch import save_file

    from distilvec.methods.table import build_methods
    from distilvec.recipe import OptimizerSection, TaskSection, TrainingSection
    from distilvec.tasks.table import build_task
    from distilvec.training import Material, TrainingSettings, fit
    from distilvec.training.checkpoint import save_model  # noqa: F401 - imported before anything is patched

    torch.set_num_threads(1)
    home, out = Path(job["home"]), Path(job["out"])
    writes = job.get("task") == "generation"
    given = parts(home, job.get("student", "student"), job.get("corpus", "corpus"), job.get("live"), writes)
    corpus, source = given["corpus"], given["sources"][0]
    # What is not trained on is held out: two batches of 8.
    train_rows = job.get("train_rows", 60)
    corpus.holdout_rows = np.concatenate([corpus.holdout_rows, corpus.train_rows[train_rows:]])[:16]
    corpus.train_rows = corpus.train_rows[:train_rows]
    torch.manual_seed(0)
    entry = {"name": job["method"], **job.get("options", {})}
    dims = job.get("matryoshka")
    method = build_methods([entry if dims is None else {"name": "matryoshka", "dims": dims, "of": entry}])
    task = None
    if "task" in job:
        width = given["student"].get_embedding_dimension()
        task = build_task(TaskSection(kind=job["task"]), width, corpus.labels, corpus.label_names)
    calls = iter(job.get("evaluate") or ())
    if job.get("poison"):
        given["sources"] = [Poisoned(given["sources"][0], corpus.train_rows[0])]
    if job.get("apart"):
        _apart(job["apart"])
    _set_traps(job)
    _weigh_parts(out)
    learnt = Material(
        corpus,
        given["teachers"],
        given["sources"],
        task=task,
        evaluate=(lambda student, method: {"score": next(calls)}) if "evaluate" in job else None,
        lookup=lambda teacher, keys: torch.from_numpy(source.store.read(source.store.rows(keys.cpu().numpy()))),
    )
    settings = TrainingSettings(
        TrainingSection(**{"bf16": False, **job["training"]}),
        OptimizerSection(**job.get("optimizer", {"lr": 1e-2})),
        out,
        cache=home,
        remember=job.get("remember", 0.0),
        router_balance=job.get("router_balance", 0.0),
    )
    fitted = fit(given["student"], method, learnt, settings, resume=job.get("resume", False))
    state = {f"student.{name}": value for name, value in given["student"].state_dict().items()}
    state |= {f"method.{name}": value for name, value in fitted.method.state_dict().items()}
    rank = os.environ.get("RANK", "0")
    save_file(
        {name: value.detach().contiguous().clone() for name, value in state.items()}, out / f"final-{rank}.safetensors"
    )
    (out / f"log-{rank}.json").write_text(json.dumps(fitted.log))
    (out / f"held-out-{rank}.json").write_text(json.dumps(fitted.held_out))


def _weigh_parts(out: Path) -> None:
    """Where the student is sharded: how much of it this process keeps, to `part-0.json`."""
    from distilvec.training import loop

    sharded = loop.sharding.sharded

    def weighed(distiller: Any, device: Any) -> Any:
        every = sum(each.numel() for each in distiller.student.parameters())
        twin = sharded(distiller, device)
        part = sum(each.to_local().numel() for each in twin.student.parameters())
        kept = sum(each.numel() for each in distiller.student.parameters())
        out.mkdir(parents=True, exist_ok=True)
        (out / f"part-{os.environ['RANK']}.json").write_text(json.dumps((part / every, kept / every)))
        return twin

    loop.sharding.sharded = weighed  # type: ignore[attr-defined]


# how a job comes to an end early


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _set_traps(job: Job) -> None:
    """die: step:N (when N steps are done), forward:N, weights:N, optimizer:N, rename:N, log:N (the N-th time).

    slow: seconds per step. limit: from step N on, no file may grow beyond so many bytes.
    """
    import resource

    import torch

    from distilvec.training import checkpoint, log, loop

    what, _, number = job.get("die", "").partition(":")
    count = {"left": int(number or 0)}

    def counted(call: Callable[..., Any], instead: Callable[..., Any] = _die) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            count["left"] -= 1
            return instead(*args, **kwargs) if count["left"] == 0 else call(*args, **kwargs)

        return step

    def half_weights(module: Any, file: str) -> None:
        checkpoints_save(module, file)
        os.truncate(file, os.path.getsize(file) // 2)
        _die()

    def half_optimizer(state: Any, file: Any, *args: Any) -> None:
        if not str(file).endswith("optimizer.pt"):
            return torch_save(state, file, *args)
        count["left"] -= 1
        torch_save(state, file, *args)
        if count["left"] == 0:
            os.truncate(file, os.path.getsize(file) // 2)
            _die()
        return None

    def half_line(self: Any, entry: Any) -> None:
        with self.file.open("a") as out:
            out.write('{"step": ')
        _die()

    checkpoints_save, torch_save = checkpoint.save_model, torch.save
    forward = loop.Loop.micro_step
    if what == "step":
        loop.Loop._follow = counted(loop.Loop._follow)  # type: ignore[method-assign]
    elif what == "forward":
        loop.Loop.micro_step = counted(forward)  # type: ignore[method-assign]
    elif what == "weights":
        checkpoint.save_model = counted(checkpoints_save, half_weights)  # type: ignore[assignment]
    elif what == "optimizer":
        torch.save = half_optimizer  # type: ignore[assignment]
    elif what == "rename":
        checkpoint.os.replace = counted(os.replace)  # type: ignore[assignment]
    elif what == "log":
        log.RunLog.write = counted(log.RunLog.write, half_line)  # type: ignore[method-assign]
    if "slow" in job or "limit" in job:
        steps = iter(range(1, 1_000_000))

        def slowly(self: Any, *args: Any, **kwargs: Any) -> Any:
            step = next(steps)
            time.sleep(job.get("slow", 0))
            if "limit" in job and step == job["limit"][0]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"][1], job["limit"][1]))
            return forward(self, *args, **kwargs)

        loop.Loop.micro_step = slowly  # type: ignore[method-assign]


def _apart(count: int) -> None:
    """Each batch is dealt out into so many, as to processes, and its loss is the mean of theirs."""
    import torch

    from distilvec.training.step import Distiller

    whole = Distiller.forward

    def dealt(value: Any, items: int, part: int) -> Any:
        if isinstance(value, dict):
            return {name: dealt(each, items, part) for name, each in value.items()}
        if isinstance(value, list):
            return [dealt(each, items, part) for each in value]
        share = slice(part * items // count, (part + 1) * items // count)
        return value[share] if isinstance(value, torch.Tensor) and len(value) == items else value

    def forward(self: Any, features: Any, teachers: Any, keys: Any, **more: Any) -> dict[str, Any]:
        given = {"features": features, "teachers": teachers, "keys": keys, **more}
        parts = [whole(self, **dealt(given, len(keys), part)) for part in range(count)]
        terms = {name: sum(part["terms"][name] for part in parts) / count for name in parts[0]["terms"]}
        return {**parts[0], "loss": sum(part["loss"] for part in parts) / count, "terms": terms}

    Distiller.forward = forward  # type: ignore[method-assign]


def limit_student(size: int) -> None:
    """From when the student is written on, no file may grow beyond so many bytes."""
    import resource

    from distilvec.flow import fit

    save = fit.save

    def limited(*args: Any, **kwargs: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        save(*args, **kwargs)

    fit.save = limited  # type: ignore[assignment]
