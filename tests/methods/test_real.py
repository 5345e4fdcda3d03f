"""Every method on a real student of a real teacher, on real sentences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from distilvec.corpus.batch import Batch
from distilvec.corpus.docstrings import docstring_pairs
from distilvec.methods.base import Method, Sample
from distilvec.methods.table import TABLE, build_options, resolve
from distilvec.optim import SharpnessAware, largest_curvature
from distilvec.students import StudentTap, shrink
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

ROWS, DOCUMENTS = 16, 3
#: The others are tried on real models in test_token_models, test_mnrl and tests/flow/test_internals.py.
SENTENCE_METHODS = [name for name in TABLE if not resolve(name).inside and name not in {"sft", "mnrl", "score_bce"}]


class Run:
    """A student of two layers of the teacher, the teacher's vectors, and one batch of sentences."""

    def __init__(self, teacher: Any, texts: list[str]) -> None:
        self.student, _ = shrink(teacher, layers=2, vocabulary=1500, texts=texts)
        self.tap = StudentTap(self.student)
        self.features = self.student.preprocess(texts[:ROWS])
        self.vectors = torch.from_numpy(teacher.encode(texts[:ROWS]))
        keys = torch.arange(ROWS, dtype=torch.uint8)[:, None].expand(ROWS, 16).contiguous()
        self.batch = Batch(keys, Batch.equal_items(keys))
        self.teachers = [TeacherInfo("teacher", self.vectors.shape[1])]

    @classmethod
    def scored(cls, teacher: Any, pairs: list[dict[str, str]]) -> Run:
        """Queries, each with its answer and the two after it; a scorer counts the words that a document shares."""
        queries = ROWS // (1 + DOCUMENTS)
        asked = [pair["summary"] for pair in pairs[:queries]]
        places = [(row, row + after) for after in range(DOCUMENTS) for row in range(queries)]
        answers = [pairs[other]["description"][:120] for _, other in places]
        run = cls(teacher, [*asked, *answers, *(pair["description"] for pair in pairs[ROWS:])])
        words = [
            (set(asked[row].split()), set(answer.split())) for (row, _), answer in zip(places, answers, strict=True)
        ]
        said = [len(query & answer) / len(query) for query, answer in words]
        run.batch.group = torch.arange(queries).repeat(1 + DOCUMENTS)
        run.batch.role = torch.arange(1 + DOCUMENTS).clamp_max(2).repeat_interleave(queries)
        run.batch.scores = torch.tensor([*[float("nan")] * queries, *said])
        return run

    def signals(self) -> list[TeacherSignals]:
        return [TeacherSignals(torch.ones(ROWS, dtype=torch.bool), sentence=self.vectors)]

    def build(self, name: str, **options: Any) -> Method:
        torch.manual_seed(0)
        method = resolve(name)(build_options(name, options))
        needs = method.needs(self.tap.info, self.teachers)
        self.student.eval()
        with torch.no_grad():
            seen = self.tap(self.features, 1, layers=needs.student.layers, tokens=needs.student.tokens)
        method.build(self.tap.info, self.teachers, Sample(seen, self.signals(), pairs=[(seen, self.batch)]))
        return method

    def loss(self, method: Method) -> Tensor:
        needs = method.needs(self.tap.info, self.teachers)
        seen = self.tap(self.features, needs.student.views, layers=needs.student.layers, tokens=needs.student.tokens)
        terms = method(seen, self.signals(), self.batch)
        return sum((term.values.mean() * term.weight for term in terms.values()), torch.zeros(()))


@pytest.fixture(scope="module")
def teacher(real_teacher_folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(real_teacher_folder), device="cpu")


@pytest.fixture
def real(teacher, sentences) -> Run:
    return Run(teacher, [text[:120] for text in sentences])


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, str]]:
    return docstring_pairs(limit=100)


@pytest.mark.parametrize("name", SENTENCE_METHODS)
def test_a_few_steps_lower_the_loss(real, teacher, pairs, name) -> None:
    options = {"queue": 64} if name == "distilcse" else {}
    if "init" in resolve(name).Options.model_fields:
        options["init"] = "random"  # a ridge map fitted to the few rows of this batch is perfect already
    if name == "matryoshka":
        options["of"] = {"name": "cosine", "init": "random"}
    if resolve(name).trains_on_pairs:
        real = Run.scored(teacher, pairs)
    method = real.build(name, **options)
    parameters = [*real.student.parameters(), *method.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4)

    def measured() -> float:
        real.student.eval()
        method.eval()
        torch.manual_seed(5)
        with torch.no_grad():
            return real.loss(method).item()

    before = measured()
    for step in range(4):
        real.student.train()
        method.train()
        torch.manual_seed(step)
        optimizer.zero_grad()
        real.loss(method).backward()
        optimizer.step()
    assert measured() < before


def test_asam_ends_in_a_flatter_place_than_adamw(teacher, sentences) -> None:
    """The largest eigenvalue of the objective's Hessian over the encoder, in eval mode."""
    found = {}
    for kind in ("adamw", "asam"):
        real = Run(teacher, [text[:40] for text in sentences])
        method = real.build("talas", simcse_weight=0)
        groups = [{"params": real.student.parameters()}, {"params": method.parameters(), "perturb": False}]
        optimizer = SharpnessAware(torch.optim.AdamW(groups, lr=1e-4), rho=0.5 if kind == "asam" else 0.0)
        real.student.eval()
        for _ in range(5):
            optimizer.zero_grad()
            real.loss(method).backward()
            if optimizer.ascend():
                optimizer.zero_grad()
                real.loss(method).backward()
            optimizer.restore()
            optimizer.step()
        encoder = [p for name, p in real.student.named_parameters() if "embeddings" not in name]
        found[kind] = largest_curvature(lambda real=real, method=method: real.loss(method), encoder, 10, 0.05).value
    assert 0 < found["asam"] < found["adamw"]
