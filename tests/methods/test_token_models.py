"""EMO and DistillMoE between real models: WordPiece, Unigram and byte-level BPE, padded on either side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.methods.world import total

from distilvec.alignment import Aligner
from distilvec.corpus.batch import Batch
from distilvec.methods.base import Method, Sample
from distilvec.methods.table import build_method
from distilvec.students.output import StudentOutput
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

TEXTS = [
    "The train to Zürich leaves from platform 7 at 14:32.",
    "An unbelievable story about misunderstandings, retold.",
    "東京は今日も雨です。 Emoji 😀 too",
    "the same words the same words the same words, and once more the same words",
    "A man is playing a guitar on the stage while the others are dancing to it.",
    "What is the capital of the country whose flag is red and white?",
    "Sentences of other lengths matter for padding; this one is rather long, on purpose, with many words in it.",
    "Reset my card, please.",
]
METHODS = [
    ("emo", {"alpha": 0}),
    ("emo", {"preset": "paper", "alpha": 0}),
    ("distillmoe", {"scope": "sentence", "alpha": 0, "experts": ["cosine"], "gate_gradient": "loss", "layers": 2}),
]
ON_STATES = [
    ("dskd", {"alpha": 0}),
    ("cdm", {"form": "embedding", "alpha": 0}),
    ("mined", {"form": "embedding", "alpha": 0}),
]


class Two:
    """A student and a teacher reading the same texts, each with its own tokenizer."""

    def __init__(self, student: Path, teacher: Path) -> None:
        self.student, self.teacher = (SentenceTransformer(str(folder), device="cpu") for folder in (student, teacher))
        self.taps = StudentTap(self.student), StudentTap(self.teacher)
        info = self.taps[1].info
        causal = "qwen3" in teacher.name
        self.info = TeacherInfo("teacher", info.width, info.layers, hidden=info.hidden, causal=causal)
        self.aligner = Aligner(*(vocabulary(model) for model in (self.student, self.teacher)))

    def method(self, name: str, options: dict[str, Any]) -> Method:
        method = build_method(name, {**options, "width": 16} if name == "distillmoe" else options)
        self.needs = method.needs(self.taps[0].info, [self.info])
        self.student.eval()
        with torch.no_grad():
            output, signals = self.read(TEXTS)
            vectors = StudentOutput(output.embedding)
            method.build(self.taps[0].info, [self.info], Sample(vectors, [signals], [(output, [signals])]))
        method.attach(self.student)
        self.taps = StudentTap(self.student), self.taps[1]
        return method.eval()

    def read(self, texts: list[str]) -> tuple[StudentOutput, TeacherSignals]:
        needs, views = self.needs, self.needs.student.views
        ours, theirs = (model.preprocess(texts) for model in (self.student, self.teacher))
        output = self.taps[0](dict(ours), views, tokens=needs.student.tokens, attention=needs.student.attention)
        wanted = needs.of(0)
        with torch.no_grad():
            seen = self.taps[1](dict(theirs), 1, tokens=wanted.tokens, attention=wanted.attention)
        modes = wanted.alignment
        places = [
            [(ids[row][content[row]].numpy(), content[row].nonzero()[:, 0].numpy()) for row in range(len(texts))]
            for ids, content in ((ours["input_ids"], output.content), (theirs["input_ids"], seen.content))
        ]
        found = self.aligner.batch([(own[0], their[0]) for own, their in zip(*places, strict=True)], modes)
        signals = TeacherSignals(
            torch.ones(len(texts), dtype=torch.bool),
            sentence=seen.embedding[0],
            tokens={layer: states[0] for layer, states in seen.tokens.items()},
            attention={layer: each[0] for layer, each in seen.attention.items()},
            mask=seen.mask,
            content=seen.content,
            alignments={mode: table(found[mode], *places) for mode in modes},
        )
        return output, signals

    def step(self, method: Method, texts: list[str]) -> dict[str, Any]:
        keys = torch.arange(len(texts), dtype=torch.uint8)[:, None].expand(-1, 16)
        output, signals = self.read(texts)
        return method(output, [signals], Batch(keys, Batch.equal_items(keys)))


def vocabulary(model: SentenceTransformer) -> list[str]:
    tokenizer = model.tokenizer
    return [str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


def table(found: list[np.ndarray], ours: list[Any], theirs: list[Any]) -> torch.Tensor:
    pairs = torch.full((len(found), max(1, *map(len, found)), 2), -1)
    for row, (each, own, their) in enumerate(zip(found, ours, theirs, strict=True)):
        placed = np.stack([own[1][each[:, 0]], their[1][each[:, 1]]], 1).reshape(-1, 2)
        pairs[row, : len(each)] = torch.from_numpy(placed)
    return pairs


@pytest.mark.parametrize(
    ("student", "teacher", "name", "options"),
    [
        *(("bert", teacher, *method) for teacher in ("xlmr", "qwen3", "mistral") for method in METHODS),
        *(("xlmr", "mistral", *method) for method in ON_STATES),
        *((student, "xlmr", "emo", {"alpha": 0}) for student in ("modernbert", "qwen3")),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_a_sentences_terms_do_not_depend_on_its_neighbours(tiny_model_folders, student, teacher, name, options) -> None:
    """Nor, therefore, on either side's padding."""
    both = Two(tiny_model_folders[student], tiny_model_folders[teacher])
    if "paper" in options.values():
        options = {**options, "layer_map": "scaled"}  # two of these teachers have fewer layers than the student
    method = both.method(name, options).double()
    for model in (both.student.eval(), both.teacher):
        model.double()  # in float32 the models themselves give other states with other padding
    together = both.step(method, TEXTS)
    checked = [key for key, term in together.items() if term.values.dim() == 2]
    assert checked
    for row in (0, 3, 7):
        alone = both.step(method, [TEXTS[row]])
        for key in checked:
            torch.testing.assert_close(alone[key].values[:, 0], together[key].values[:, row], rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_order_of_the_heads_does_not_matter(tiny_model_folders) -> None:
    both = Two(tiny_model_folders["bert"], tiny_model_folders["xlmr"])
    method = both.method("emo", {"alpha": 0, "layers": 2, "share": 1.0})
    before = both.step(method, TEXTS)
    for model in (both.student, both.teacher):
        for layer in model[0].model.encoder.layer:
            attention = layer.attention
            heads, size = attention.self.num_attention_heads, attention.self.attention_head_size
            turned = torch.arange(heads * size).view(heads, size).roll(1, 0).flatten()
            for part in (attention.self.query, attention.self.key, attention.self.value):
                part.weight.copy_(part.weight[turned])
                part.bias.copy_(part.bias[turned])
            attention.output.dense.weight.copy_(attention.output.dense.weight[:, turned])
    after = both.step(method, TEXTS)
    for name in ("ira", "otis"):
        assert before[name].values.abs().max() > 0.01
        torch.testing.assert_close(after[name].values, before[name].values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("student", ["bert", "xlmr", "modernbert", "qwen3"])
@pytest.mark.parametrize("name", ["emo", "distillmoe"])
def test_any_kind_of_student_learns_from_another_tokenizer(tiny_model_folders, student, name) -> None:
    both = Two(tiny_model_folders[student], tiny_model_folders["mistral"])
    torch.manual_seed(0)
    # A ridge start on eight texts fits them so closely that any step leads away from it.
    method = both.method(name, {"layers": 2, "alpha": 0, "init": "random"})
    both.student.eval()
    optimizer = torch.optim.Adam([*both.student.parameters(), *method.parameters()], lr=1e-3)
    losses = []
    for _ in range(15):
        loss = total(both.step(method, TEXTS))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.isfinite().all() for parameter in both.student.parameters())


def test_one_model_as_its_own_teacher_has_no_attention_left_to_learn(tiny_model_folders) -> None:
    both = Two(tiny_model_folders["bert"], tiny_model_folders["bert"])
    method = both.method("emo", {"alpha": 0, "otis_weight": 0, "cka": "plain"})
    both.student.eval()
    term = both.step(method, TEXTS)["ira"]
    assert term.counted.all()
    assert term.values.abs().max() < 1e-3
