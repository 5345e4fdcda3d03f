"""Narrower tables and blocks: exact where nothing is lost, the best linear map where something is, plainly opened."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.students.shipped import TEXTS, read_elsewhere
from tests.training.starting import Starter
from torch.nn import functional

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import parameters
from distilvec.students import PassCache, load_student, ship, shrink
from distilvec.students.factorising import factorise
from distilvec.students.fit_texts import sampled, token_batches
from distilvec.students.narrowing import _pooled
from distilvec.students.refitting import StateMoments, refit
from distilvec.students.reshaping import Reshaping
from distilvec.students.shape import Kept, Shape

ALIKE = ["bert", "xlmr", "distilbert", "electra"]


def difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max())


@pytest.mark.parametrize("kind", ALIKE)
def test_the_same_shape_is_the_same_model(kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    source = load_student(tiny_model_folders[kind], device="cpu").eval()
    whole = source[0].model.config
    student, report = shrink(source, embedding=32, inner=64, heads=whole.num_attention_heads, texts=sentences)
    assert type(student[0].model).__name__ == "ElectraModel"
    assert not hasattr(student[0].model, "embeddings_project")
    assert difference(student.eval().encode(sentences[:30]), source.encode(sentences[:30])) < 5e-5
    assert report.kept.energy is None


def test_a_table_of_full_rank_gives_the_blocks_what_they_had(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    source = load_student(tiny_model_folders["bert"], device="cpu").eval()
    table = source[0].model.embeddings
    words, positions, types = (
        each.weight.detach() for each in (table.word_embeddings, table.position_embeddings, table.token_type_embeddings)
    )
    norm, use = table.LayerNorm, torch.ones(len(words))
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5), norm.bias.normal_()
    for rank, closest, farthest in ((32, 0.0, 5e-5), (16, 1e-2, 9.0)):
        narrow = factorise(
            (words, positions, types), (norm.weight, norm.bias, norm.eps), rank, use, torch.tensor([20, 60])
        )
        rows = narrow.words[50:60] + narrow.positions[:10] + narrow.types[0]
        assert rows.mean(-1).abs().max() < 1e-5
        given = functional.layer_norm(rows, (rank,), eps=norm.eps) @ narrow.weight.T + narrow.bias
        expected = norm(words[50:60] + positions[:10] + types[0])
        assert closest <= float((given - expected).abs().max()) < farthest
    assert 0.3 < narrow.energy < 1 and 0.3 < narrow.explained < 1


def test_pieces_in_use_count_more(tiny_bert: Path, sentences: list[str]) -> None:
    source = load_student(tiny_bert, device="cpu").eval()
    before = source.encode(sentences[:40])

    def near(texts: list[str]) -> float:
        student, _ = shrink(source, embedding=12, texts=texts)
        return float(
            functional.cosine_similarity(*map(torch.tensor, (student.eval().encode(sentences[:40]), before))).mean()
        )

    assert near(sentences[:40]) > near(["0 1 2 3 4 5 6 7 8 9"]) + 0.01


def test_a_refit_is_the_least_squares_one() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4000, 6, generator=generator) @ torch.randn(6, 6, generator=generator) + 2
    weight, bias = torch.randn(3, 6, generator=generator), torch.randn(3, generator=generator)
    moments = StateMoments(6)
    for part in rows.split(1000):
        moments.add(part)
    kept = torch.tensor([0, 2, 5])
    found = refit(moments, weight, bias, kept)
    fitted = np.arange(4000) % 8 != 7
    inputs = np.concatenate([rows[:, kept].numpy(), np.ones((4000, 1))], 1)
    wanted = (rows @ weight.T + bias).numpy()
    best = np.linalg.lstsq(inputs[fitted], wanted[fitted], rcond=None)[0]
    assert difference(found.weight.T.numpy(), best[:-1]) < 2e-2 * np.abs(best).max()
    left = wanted[~fitted]
    missed = left - (inputs[~fitted, :-1] @ found.weight.T.numpy() + found.bias.numpy())
    explained = 1 - (missed**2).sum() / ((left - left.mean(0)) ** 2).sum()
    assert found.explained == pytest.approx(explained, abs=1e-4)
    assert refit(moments, weight, None, torch.arange(6)).bias is None


def test_a_refit_to_few_tokens_stays_near_the_old_weights() -> None:
    """As many tokens as inputs: the plain solution fits their noise, and is worse on others than no refit at all."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.eye(60) + 0.05 * torch.randn(60, 60, generator=generator)
    weight, kept = torch.randn(20, 60, generator=generator), torch.arange(50)

    def missed(tokens: int) -> float:
        moments = StateMoments(60)
        moments.add(torch.randn(tokens, 60, generator=generator) @ mixing)
        found = refit(moments, weight, None, kept).weight
        others = torch.randn(2000, 60, generator=generator) @ mixing
        left, old = others @ weight.T - others[:, kept] @ found.T, others[:, 50:] @ weight[:, 50:].T
        return float(left.square().sum() / old.square().sum())

    assert missed(56) < 1.1 and missed(10_000) < 0.98


@pytest.mark.parametrize("kind", ["bert", "xlmr", "modernbert", "qwen3"])
def test_units_that_do_nothing_go_first(kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    source = load_student(tiny_model_folders[kind], device="cpu").eval()
    outputs = [
        module
        for name, module in source[0].model.named_modules()
        if name.endswith(("mlp.down_proj", "mlp.Wo")) or (name.endswith("output.dense") and module.in_features == 64)
    ]
    with torch.no_grad():
        for layer in outputs:
            layer.weight[:, ::3] = 0
    size = outputs[0].in_features - len(range(0, outputs[0].in_features, 3))
    before = source.encode(sentences[:30])
    student, report = shrink(source, inner=size, texts=sentences)
    assert difference(student.eval().encode(sentences[:30]), before) < 2e-2 * np.abs(before).max()
    assert min(report.kept.inner) > 0.999
    assert report.parameters_after < report.parameters_before
    smaller, report = shrink(source, inner=size // 2, texts=sentences)
    assert min(report.kept.inner) > 0 and max(report.kept.inner) < 0.999
    assert smaller[0].model.config.intermediate_size == size // 2


def test_heads_that_do_nothing_go_first(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    source = load_student(tiny_model_folders["qwen3"], device="cpu").eval()
    with torch.no_grad():
        for block in source[0].model.layers:
            block.self_attn.o_proj.weight[:, :16] = 0  # two of four heads, which share keys and values
    before = source.encode(sentences[:30])
    student, report = shrink(source, heads=2, texts=sentences)
    assert difference(student.eval().encode(sentences[:30]), before) < 5e-3
    assert student[0].model.config.num_key_value_heads == 1
    assert report.parameters_after < report.parameters_before


def test_heads_that_attend_alike_merge_without_loss(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    source = load_student(tiny_model_folders["bert"], device="cpu").eval()
    with torch.no_grad():
        for block in source[0].model.encoder.layer:
            for layer in (block.attention.self.query, block.attention.self.key):
                layer.weight.copy_(layer.weight[:8].repeat(4, 1))
                layer.bias.copy_(layer.bias[:8].repeat(4))
    before = source.encode(sentences[:30])
    student, report = shrink(source, heads=2, texts=sentences)
    assert min(report.kept.heads) > 0.999
    assert difference(student.eval().encode(sentences[:30]), before) < 2e-2 * np.abs(before).max()
    assert student[0].model.config.num_attention_heads == 2


@pytest.mark.parametrize("kind", ALIKE)
def test_narrower_blocks_start_near_the_wide_ones(
    kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    source = load_student(tiny_model_folders[kind], device="cpu").eval()
    wide, _ = shrink(source, embedding=12, texts=sentences)
    student, report = shrink(source, embedding=12, width=24, texts=sentences)
    states = last_states(student, sentences[:60])
    known = last_states(wide, sentences[:60])
    # What the narrow states tell of the wide ones, by the best linear map.
    missed = known - fitted(states, known)
    share = 1 - np.square(missed).sum() / np.square(known - known.mean(0)).sum()
    assert min(share, *report.kept.states) > 0.9 and report.kept.vectors is not None
    assert len(report.kept.states) == len(student[0].model.encoder.layer)
    assert [type(module).__name__ for module in student.children()][1:3] == ["Pooling", "Dense"]
    assert student[0].model.config.hidden_size == 24 and student[1].get_embedding_dimension() == 24
    # Behind the map they are the source's vectors, as far as so few texts tell it.
    vectors, told = student.encode(sentences), source.encode(sentences)
    assert vectors.shape == told.shape
    assert np.square(vectors - told).sum() < 0.8 * np.square(told - told.mean(0)).sum()
    assert re.search(r"^width +24: R² .*\b0\.9\d\d", str(report), re.MULTILINE)


def last_states(model: Any, texts: list[str]) -> np.ndarray:
    return np.concatenate([rows.numpy() for rows in model.encode(texts, output_value="token_embeddings")])


def fitted(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    rows = np.concatenate([rows, np.ones((len(rows), 1))], 1)
    return rows @ np.linalg.lstsq(rows, wanted, rcond=None)[0]


def test_every_cut_opens_without_distilvec(
    start: Starter, tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    small = {"layers": [1], "vocabulary": 320, "inner": 24}
    tables = {"embedding": 12, "positions": 40, "heads": 2}
    cuts = {
        "bert": small | tables | {"width": 16},
        "xlmr": small | tables,
        "distilbert": {"embedding": 20, "heads": 1},
        "electra": {"positions": 50, "inner": 10, "width": 24},
        "qwen3": small | {"heads": 2},
        "mistral": {"inner": 8, "heads": 2},
        "modernbert": small,
    }
    folders, expected, counts = [], [], []
    for kind, sizes in cuts.items():
        source = load_student(tiny_model_folders[kind], device="cpu").eval()
        student, report = shrink(source, **sizes, texts=sentences)
        student.eval()
        folders.append(tmp_path / kind)
        ship(student, folders[-1])
        expected.append(student.encode(TEXTS))
        counts.append(parameters(student))
        assert report.parameters_after == counts[-1] < report.parameters_before
        narrower, _ = shrink(student, embedding=8, texts=sentences) if kind in ("bert", "xlmr") else (student, None)
        assert np.isfinite(narrower.eval().encode(TEXTS)).all()
    found = read_elsewhere(start, folders, tmp_path)
    for number, vectors in enumerate(expected):
        assert difference(found[f"{number}-query"], vectors) < 1e-6
        assert int(found[f"{number}-parameters"]) == counts[number]


def test_a_cut_student_reads_no_more_than_its_positions(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    source = load_student(tiny_model_folders["xlmr"], device="cpu").eval()
    student, _ = shrink(source, positions=20)
    assert student.max_seq_length == 20
    long = " ".join(sentences[:20])
    source.max_seq_length = 20
    assert difference(student.eval().encode([long]), source.encode([long])) < 5e-5


def test_impossible_shapes_are_refused_in_one_line(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    bert, qwen, modern = (
        load_student(tiny_model_folders[kind], device="cpu") for kind in ("bert", "qwen3", "modernbert")
    )
    for source, sizes, told in (
        (bert, {"embedding": 33}, r"^shrink\.embedding: .*\b33\b.*\b2 to 32\."),
        (bert, {"embedding": 1}, r"^shrink\.embedding: .*\b1\b.*\b2 to 32\."),
        (bert, {"inner": 0}, r"^shrink\.inner: .*\b0\b.*\b1\b"),
        (bert, {"inner": 65}, r"^shrink\.inner: .*\b65\b.*\b1 to 64\."),
        (bert, {"heads": 3}, r"^shrink\.heads: 3 .*\b1, 2, 4\."),
        (bert, {"positions": 129}, r"^shrink\.positions: .*\b129\b.*\b1 to 128\."),
        (bert, {"width": 20}, r"^shrink\.width: .*\b20\b.*\b8\b.*\b8, 16, 24\."),
        (bert, {"width": 16, "heads": 2, "embedding": 16}, r"^shrink\.width: .*\b16 wide\b.*\bembedding\b"),
        (bert, {"width": 32}, r"^shrink\.width: .*\b32\b.*\b8, 16, 24\."),
        (bert, {"width": 16, "heads": 1}, r"^shrink\.width: .*\b16\b.*\b32 each.*\bheads less\b"),
        (qwen, {"width": 16}, r"^shrink\.width: Qwen3Model .*\blayers\b"),
        (qwen, {"heads": 3}, r"^shrink\.heads: 3 .* 2, 4\."),
        (qwen, {"embedding": 16}, r"^shrink\.embedding: Qwen3Model .*\bvocabulary\b"),
        (qwen, {"positions": 16}, r"^shrink\.positions: Qwen3Model .*student\.max_length"),
        (modern, {"heads": 2}, r"^shrink\.heads: .*\bModernBertModel\b"),
    ):
        with pytest.raises(DistilvecError) as raised:
            shrink(source, **sizes, texts=sentences)
        assert re.search(told, str(raised.value)) and "\n" not in str(raised.value)
    with pytest.raises(DistilvecError, match="^texts: inner 16 .*texts="):
        shrink(bert, inner=16)


def test_many_cuts_of_a_model_look_at_it_once_and_are_the_same(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    source = load_student(tiny_model_folders["bert"], device="cpu").eval()
    other = load_student(tiny_model_folders["electra"], device="cpu").eval()
    calls: list[int] = []
    source[0].model.embeddings.register_forward_hook(lambda *_: calls.append(1))
    seen, counts = PassCache(further=True), []
    for sizes in ({"width": 16, "inner": 20}, {"width": 24, "layers": 1, "inner": 40}, {"inner": 24}):
        alone, _ = shrink(source, embedding=12, texts=sentences, **sizes)
        calls.clear()
        student, _ = shrink(source, embedding=12, texts=sentences, **sizes, seen=seen)
        counts.append(len(calls))
        state = student.state_dict()
        assert all(torch.equal(state[name], value) for name, value in alone.state_dict().items())
        # Another model's states are not taken for this one's.
        alone, _ = shrink(other, embedding=12, texts=sentences, inner=24)
        student, _ = shrink(other, embedding=12, texts=sentences, inner=24, seen=seen)
        assert torch.equal(*(each[0].model.encoder.layer[0].output.dense.weight for each in (alone, student)))
    assert counts[0] > 0 and counts[1:] == [0, 0], counts


def test_cuts_are_fitted_to_both_sides_of_pairs() -> None:
    """Queries and answers take turns: every second text would be the queries alone."""
    texts = [f"{'query' if n % 2 == 0 else 'answer'} {n}" for n in range(5000)]
    chosen = sampled(texts, 1000)
    queries = sum(text.startswith("query") for text in chosen)
    assert len(chosen) == 1000 and 400 < queries < 600 and chosen == sampled(texts, 1000)


def test_too_few_texts_for_narrower_blocks_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match="^width: 6 texts are too few"):
        shrink(load_student(tiny_bert, device="cpu"), embedding=12, width=24, texts=["some text of ours"] * 6)


def test_factorised_table_is_factorised_again_in_float64(tiny_bert: Path, sentences: list[str]) -> None:
    """Beside a model on a GPU stands one of another dtype: what is fitted is float32 on the CPU."""
    once, _ = shrink(load_student(tiny_bert, device="cpu"), embedding=16, texts=sentences[:20])
    model: Any = once[0].model
    state = {name: value.double() for name, value in model.state_dict().items()}
    cut: Any = SimpleNamespace(
        shape=Shape(embedding=8), report=Kept(), _count=lambda pieces, _: (torch.ones(pieces), torch.tensor([5, 9]))
    )
    Reshaping._factorise(cut, state, model.config)
    assert state["embeddings_project.weight"].shape == (32, 8) and cut.report.embedding > 0


def test_token_batches_of_left_padded_texts(tiny_model_folders: dict[str, Path]) -> None:
    model = load_student(tiny_model_folders["qwen3"], device="cpu")
    assert model.tokenizer.padding_side == "left"
    texts = ["a cat", "a cat sleeps under the table " * 5]
    (batch,) = token_batches(model, texts, 6)
    assert batch["input_ids"].shape == (2, 6) and batch["attention_mask"].any(dim=1).all()
    whole = model.preprocess(texts[:1])["input_ids"][0]
    assert torch.equal(batch["input_ids"][0][batch["attention_mask"][0].bool()], whole[-6:])


def test_narrowing_reads_the_source_without_dropout(tiny_bert: Path) -> None:
    model, texts = load_student(tiny_bert, device="cpu"), ["a cat", "a dog that barks"]
    model.train()
    model[0].model.embeddings.eval()
    with torch.no_grad():
        first, again = (_pooled(model, list(model.children()), texts) for _ in range(2))
    assert torch.equal(first, again)
    assert model.training and model[0].model.encoder.training and not model[0].model.embeddings.training
