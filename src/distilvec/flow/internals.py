"""What the report shows of the inside of models: how tokens look at each other, and what experts make of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.keys import split_pair
from distilvec.evenly import evenly_spaced
from distilvec.functional import relation_matrix
from distilvec.judging import TRAINED
from distilvec.judging.geometry import mixture_geometry
from distilvec.modules.blocks import find_transformer
from distilvec.modules.pipeline import default_prompt
from distilvec.modules.routing import mixtures
from distilvec.report.mixtures import MixtureFacts, MixtureLayer
from distilvec.report.record_parts import ExpertMap, TokenMaps
from distilvec.students import StudentTap
from distilvec.teachers.signals import Wanted
from distilvec.teachers.text import TextTeacher
from distilvec.training.sample import on_device

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.flow.job import Job
    from distilvec.flow.teach import Taught

EXPERT_TEXTS = 150
MIXTURE_TEXTS = 200


@torch.no_grad()
def token_maps(
    text: str, taught: Taught, untrained: SentenceTransformer, student: SentenceTransformer
) -> TokenMaps | None:
    """The last blocks' maps of one text: teacher, student before, student after.

    Attention averaged over heads where the method looks at attention, else the cosines of the token states.

    Returns:
        None where the method looks at neither.
    """
    wanted, layers = taught.wanted, taught.teacher.card.layers
    if not (wanted.attention or wanted.tokens) or layers is None:
        return None
    asked = Wanted(attention=(layers,)) if wanted.attention else Wanted(tokens=(layers,))
    seen = taught.teacher.signals([text], asked)
    assert seen.ids is not None and seen.mask is not None
    maps = [_map(seen.attention[layers][0] if wanted.attention else seen.tokens[layers][0], seen.mask[0], asked)]
    vocabulary = taught.teacher.vocabulary
    tokens = [[vocabulary[int(i)] for i in seen.ids[0][seen.mask[0]]]]
    for model in (untrained, student):
        training = model.training
        tap, features = StudentTap(model.eval()), on_device(_features(model, [text]), model.device)
        last = tap.info.layers
        if last is None:
            return None
        output = tap(
            features,
            views=1,
            tokens=() if asked.attention else (last,),
            attention=(last,) if asked.attention else (),
        )
        model.train(training)
        assert output.mask is not None
        values = output.attention[last][0, 0] if asked.attention else output.tokens[last][0, 0]
        maps.append(_map(values, output.mask[0], asked))
        ids = features["input_ids"][0][output.mask[0]].tolist()
        tokens.append([str(token) for token in model.tokenizer.convert_ids_to_tokens(ids)])
    return TokenMaps(
        measure="attention" if asked.attention else "cosine of token states",
        names=[taught.teacher.card.name, "student before", "student after"],
        tokens=tokens,
        maps=[np.round(each, 4).tolist() for each in maps],
    )


def _features(model: SentenceTransformer, texts: Sequence[str]) -> dict[str, Any]:
    """As in training: joint items as pairs, with the default prompt."""
    prompt = default_prompt(model) or None
    return dict(model.preprocess([split_pair(text) for text in texts], prompt=prompt))


def _map(values: Tensor, mask: Tensor, asked: Wanted) -> np.ndarray:
    """[T, T] of the real tokens."""
    mask = mask.to(values.device)
    if asked.attention:
        return np.asarray(values[mask][:, mask].float().cpu())
    return np.asarray(relation_matrix(values[mask].float()).cpu())


@torch.no_grad()
def expert_map(student: SentenceTransformer, texts: Sequence[str], names: Sequence[str]) -> ExpertMap | None:
    """What each expert of the student's head makes of some texts, on the two main axes of all of it.

    Args:
        names: of the experts, in order.

    Returns:
        None where the student has no such head, or there are fewer than 20 texts.
    """
    if len(texts) < 20:
        return None
    tap = StudentTap(student.eval())
    chosen = [texts[row] for row in evenly_spaced(len(texts), EXPERT_TEXTS)]
    outputs: list[Tensor] = []
    for start in range(0, len(chosen), 32):
        features: dict[str, Any] = on_device(_features(student, chosen[start : start + 32]), student.device)
        expert_outputs = tap(features, views=1).extras.get("expert_outputs")
        if expert_outputs is None:
            return None
        outputs.append(expert_outputs[0].float().cpu())
    vectors = torch.nn.functional.normalize(torch.cat(outputs), dim=-1)  # [n, K, d]
    flat = vectors.flatten(0, 1)
    centred = flat - flat.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    points = (centred @ axes.mT).unflatten(0, vectors.shape[:2])
    count = vectors.shape[1]
    shown = list(names) if len(names) == count else [f"expert {number}" for number in range(1, count + 1)]
    return ExpertMap(names=shown, points=[np.round(points[:, k].numpy(), 4).tolist() for k in range(count)])


def mixture_facts(job: Job, student: SentenceTransformer) -> list[MixtureFacts]:
    """The mixtures of experts in teachers and student, on held-out texts or, where they are few, on others.

    Returns:
        One for each model that has any.
    """
    corpus = job.corpus
    rows = np.asarray(corpus.holdout_rows if len(corpus.holdout_rows) >= 20 else corpus.train_rows)
    rows = rows[evenly_spaced(len(rows), MIXTURE_TEXTS)]
    teachers = [each.teacher for each in job.taught if isinstance(each.teacher, TextTeacher)]
    for each in teachers:
        each.wake()
    models = [(each.card.name, each.model, each.prompt, corpus.teacher_texts) for each in teachers]
    facts = []
    for name, model, prompt, read in [*models, (TRAINED, student, None, corpus.texts)]:
        transformer = find_transformer(model)
        if transformer is None or not mixtures(transformer.model):
            continue  # whose corpus may hold no texts
        layers = mixture_geometry(model, read(rows), prompt=prompt)[1:]
        shown = [
            MixtureLayer(
                layer=each.layer,
                load=each.load,
                entropy=each.entropy,
                norm_ratio=each.norm_ratio.median,
                angle=each.angle.median,
            )
            for each in layers
        ]
        facts.append(MixtureFacts(model=name, texts=len(rows), layers=shown))
    return facts
