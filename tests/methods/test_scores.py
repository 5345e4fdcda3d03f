"""Methods on scores against sentence-transformers' losses, and what missing scores and repeated documents do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sentence_transformers import util
from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss, GISTEmbedLoss, MarginMSELoss
from tests.methods.world import options_of
from torch import Tensor

from distilvec.corpus.batch import Batch
from distilvec.errors import DistilvecError
from distilvec.methods.base import Sample
from distilvec.methods.margin_mse import MarginMSE
from distilvec.methods.mnrl import MNRL, MNRLOptions, ranking_loss
from distilvec.methods.score_kl import ScoreKL, ScoreKLOptions
from distilvec.methods.score_parts import ScoreOptions, deviations
from distilvec.methods.table import build_methods
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

QUERIES, WIDTH = 5, 8
INFO = StudentInfo("s", WIDTH, 2, WIDTH)
SIMILARITY = {"dot": util.pairwise_dot_score, "cosine": util.pairwise_cos_sim}


def vectors(parts: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(parts)
    return [torch.randn(QUERIES, WIDTH, generator=draw) for _ in range(parts)]


def labels(parts: int) -> Tensor:
    """[QUERIES, documents], what a scorer says."""
    return 4 * torch.randn(QUERIES, parts - 1, generator=torch.Generator().manual_seed(9))


def batch_of(scores: Tensor) -> Batch:
    """Queries, then their positives, then their first negatives, and so on."""
    parts = scores.shape[1] + 1
    keys = torch.arange(QUERIES * parts, dtype=torch.uint8)[:, None].repeat(1, 16)
    told = torch.cat([torch.full((QUERIES,), torch.nan), scores.T.reshape(-1)])
    role = torch.arange(parts).clamp_max(2).repeat_interleave(QUERIES)
    return Batch(keys, Batch.equal_items(keys), group=torch.arange(QUERIES).repeat(parts), role=role, scores=told)


def loss(method: Any, embedding: Tensor, batch: Batch) -> Tensor:
    (term,) = method(StudentOutput(embedding[None]), [], batch).values()
    return term.values[term.counted].mean()


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("parts", [3, 5])
def test_margins_as_in_sentence_transformers(parts: int, similarity: Any) -> None:
    given, scores = vectors(parts), labels(parts)
    theirs = MarginMSELoss(None, SIMILARITY[similarity]).compute_loss_from_embeddings(given, scores)
    method = MarginMSE(ScoreOptions(raw=True, similarity=similarity))
    embedding = torch.cat(given).requires_grad_()
    torch.testing.assert_close(loss(method, embedding, batch_of(scores)), theirs)
    loss(method, embedding, batch_of(scores)).backward()
    assert embedding.grad is not None and (embedding.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("student", [1.0, 0.5])
def test_listwise_as_in_sentence_transformers(student: float, similarity: Any) -> None:
    """Theirs is multiplied by the square of the student's temperature."""
    given, scores = vectors(5), labels(5)
    there = DistillKLDivLoss(
        None, SIMILARITY[similarity], teacher_temperature=1.0, student_temperature=student
    ).compute_loss_from_embeddings(given, scores)
    options = options_of("score_kl", {"raw": True, "similarity": similarity, "student_temperature": student})
    found = loss(ScoreKL(options), torch.cat(given), batch_of(scores))
    torch.testing.assert_close(found * student**2, there)


def test_teacher_filtered_negatives_as_in_sentence_transformers() -> None:
    given, guide = vectors(3), vectors(4)[:3]
    theirs = GISTEmbedLoss.__new__(GISTEmbedLoss)
    torch.nn.Module.__init__(theirs)
    theirs.similarity_fct, theirs.cross_entropy_loss = torch.nn.CosineSimilarity(dim=-1), torch.nn.CrossEntropyLoss()
    theirs.margin_strategy, theirs.margin, theirs.temperature = "absolute", 0.1, 0.05
    theirs.contrast_anchors = theirs.contrast_positives = theirs.gather_across_devices = False
    theirs.must_retokenize = False
    theirs.model, theirs.guide = "student", "guide"
    from unittest.mock import patch

    asked = {"student": given, "guide": guide}
    name = "sentence_transformers.sentence_transformer.losses.gist_embed.embed_columns"
    with patch(name, lambda model, features: asked[model]):
        expected = theirs([{}, {}, {}], torch.empty(0))
    method = MNRL(MNRLOptions(teacher_margin=0.1))
    method.build(INFO, [TeacherInfo("t", WIDTH, 2, hidden=WIDTH)], Sample(StudentOutput(torch.cat(given)[None]), []))
    batch = batch_of(labels(3))
    signals = [TeacherSignals(torch.ones(3 * QUERIES, dtype=torch.bool), sentence=torch.cat(guide))]
    (term,) = method(StudentOutput(torch.cat(given)[None]), signals, batch).values()
    torch.testing.assert_close(term.values[term.counted].mean(), expected)
    plain = ranking_loss(torch.cat(given), batch.group, batch.role, batch.duplicate, 0.05).mean()  # type: ignore[arg-type]
    assert abs(plain - expected) > 0.01, "the teacher takes some"
    signals[0].present[:] = False
    (term,) = method(StudentOutput(torch.cat(given)[None]), signals, batch).values()
    torch.testing.assert_close(term.values[term.counted].mean(), plain)
    with pytest.raises(DistilvecError, match=r"^mnrl, teacher_margin: "):
        method.needs(INFO, [])


@pytest.mark.parametrize("method", [MarginMSE(ScoreOptions(raw=True)), ScoreKL(ScoreKLOptions(raw=True))])
def test_documents_without_a_score_or_there_twice_count_for_nothing(method: Any) -> None:
    """Query 0 has no score for its second negative, query 1 has its positive again in that place, query 2 none."""
    given, scores = vectors(4), labels(4)
    batch = batch_of(scores)
    assert batch.scores is not None
    batch.scores[3 * QUERIES] = torch.nan
    batch.keys[3 * QUERIES + 1] = batch.keys[QUERIES + 1]
    batch.scores[QUERIES + 2] = batch.scores[2 * QUERIES + 2] = batch.scores[3 * QUERIES + 2] = torch.nan
    batch.duplicate = Batch.equal_items(batch.keys)
    found = method(StudentOutput(torch.cat(given)[None]), [], batch)
    (term,) = found.values()
    whole = method(StudentOutput(torch.cat(given)[None]), [], batch_of(scores))
    (every,) = whole.values()
    kept = list(range(3, QUERIES))
    few = batch_of(scores[:, :2])
    (less,) = method(StudentOutput(torch.cat(given[:3])[None]), [], few).values()
    if isinstance(method, ScoreKL):
        assert term.counted.nonzero().squeeze(1).tolist() == [0, 1, *kept]
        torch.testing.assert_close(term.values[kept], every.values[kept])
        torch.testing.assert_close(term.values[:2], less.values[:2])
    else:
        counted = [2 * QUERIES + q for q in (0, 1, *kept)] + [3 * QUERIES + q for q in kept]
        assert term.counted.nonzero().squeeze(1).tolist() == counted
        torch.testing.assert_close(term.values[counted], every.values[counted])


def test_the_scale_is_fitted_to_the_untrained_student() -> None:
    given, scores = torch.cat(vectors(5)), labels(5)
    batch = batch_of(scores)
    sample = Sample(StudentOutput(given[None]), [], pairs=[(StudentOutput(given[None]), batch)])
    own, theirs = deviations(sample, "cosine")
    unit = torch.nn.functional.normalize(given, dim=-1).view(5, QUERIES, WIDTH)
    cosines = (unit[0] * unit[1:]).sum(-1).T
    expected = [float(x.sub(x.mean(1, keepdim=True)).square().mean().sqrt()) for x in (cosines, scores)]
    assert [own, theirs] == pytest.approx(expected, rel=1e-5)
    method, again = MarginMSE(), MarginMSE()
    method.build(INFO, [], sample)
    assert float(method.scale) == pytest.approx(own / theirs)
    again.load_state_dict(method.state_dict())
    assert again.scale == method.scale
    alike = Sample(sample.student, [], pairs=[(StudentOutput(torch.ones(1, 5 * QUERIES, WIDTH)), batch)])
    assert deviations(alike, "cosine")[0] == 0.05, "a student that tells nothing apart is no measure"
    flat = Sample(sample.student, [], pairs=[(StudentOutput(given[None]), batch_of(torch.full_like(scores, 3.0)))])
    with pytest.raises(DistilvecError, match=r"^scorers: .*same score"):
        MarginMSE().build(INFO, [], flat)
    with pytest.raises(DistilvecError, match=r"^scorers: .* 0 scored .*distilvec mine.*raw: true"):
        ScoreKL().build(INFO, [], Sample(sample.student, []))


def test_second_method_adds_its_terms() -> None:
    both = build_methods([{"name": "cosine", "map": False}, {"name": "score_kl", "weight": 3, "raw": True}])
    assert (both.name, both.needs_teacher, both.trains_on_pairs) == ("cosine + score_kl", True, True)
    teacher = TeacherInfo("t", WIDTH, 2, hidden=WIDTH)
    needs = both.needs(INFO, [teacher])
    assert (needs.companions, needs.coupled, needs.scores, needs.sentence) == (None, True, True, True)
    given, batch = torch.cat(vectors(4)), batch_of(labels(4))
    sample = Sample(StudentOutput(given[None]), [], pairs=[(StudentOutput(given[None]), batch)])
    both.build(INFO, [teacher], sample)
    signals = [TeacherSignals(torch.ones(len(given), dtype=torch.bool), sentence=given.flip(0))]
    terms = both(StudentOutput(given[None]), signals, batch)
    assert [(name, term.weight) for name, term in terms.items()] == [("cosine", 1.0), ("listwise", 3.0)]
    alone = ScoreKL(ScoreKLOptions(raw=True))(StudentOutput(given[None]), [], batch)["listwise"]
    torch.testing.assert_close(terms["listwise"].values, alone.values)
    for second, told in (
        ({"name": "score_kl", "temperature": 1}, '"temperature"'),
        ({"name": "cosine"}, "cosine stands there twice"),
        ({"name": "scorekl"}, '"scorekl".*score_kl'),
    ):
        with pytest.raises(DistilvecError, match=told):
            build_methods([{"name": "cosine"}, second])
    assert build_methods([{"name": "cosine"}, {"name": "score_kl", "weight": 0}]).name == "cosine"
    with pytest.raises(DistilvecError, match="weight above 0"):
        build_methods([{"name": "cosine", "weight": 0}])
    with pytest.raises(DistilvecError, match="^method: simcse .* 2 times, mnrl once"):
        build_methods([{"name": "simcse"}, {"name": "mnrl"}]).needs(INFO, [])
