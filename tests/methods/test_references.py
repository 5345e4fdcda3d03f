"""The same values as sentence-transformers' losses where both define the same thing."""

import pytest
import torch
from torch import nn


@pytest.fixture
def pair(world):
    torch.manual_seed(1)
    return world.output(range(8)), world.signals(range(8)), world.batch(range(8))


@pytest.mark.parametrize(
    ("name", "options", "metric", "factor"),
    [("cosine", {}, "cosine", 1), ("mse", {"vectors": "raw"}, "mse", 1), ("leaf", {}, "mse", 20)],
)
def test_embed_distill_loss(world, pair, mean, name, options, metric, factor) -> None:
    from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss

    student, signals, batch = pair
    method = world.method(name, **options)
    reference = EmbedDistillLoss(nn.Identity(), distance_metric=metric)
    reference.projection = method.teacher_map()
    expected = reference.compute_loss_from_embeddings([student.embedding[0]], [signals[0].sentence])
    torch.testing.assert_close(mean(method(student, signals, batch)[name]), expected * factor)


def test_multiple_negatives_ranking_loss(world, mean) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    torch.manual_seed(1)
    student = world.output(range(8), 2)
    reference = MultipleNegativesRankingLoss(nn.Identity(), scale=20.0)
    expected = reference.compute_loss_from_embeddings(list(student.embedding), labels=None)
    method = world.method("simcse", temperature=0.05)
    torch.testing.assert_close(mean(method(student, [], world.batch(range(8)))["simcse"]), expected)


def test_multiple_negatives_with_the_teacher_as_the_other_side(world, pair, mean) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    student, signals, batch = pair
    method = world.method("distilcse", queue=0)
    queries = method.teacher_map()(student.embedding[0])
    reference = MultipleNegativesRankingLoss(nn.Identity(), scale=20.0)
    expected = reference.compute_loss_from_embeddings([queries, signals[0].sentence], labels=None)
    torch.testing.assert_close(mean(method(student, signals, batch)["contrast"]), expected)
