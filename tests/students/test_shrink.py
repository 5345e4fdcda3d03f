"""Fewer blocks: the kept ones do what they did, and a reload is exact."""

from __future__ import annotations

import itertools
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tests.students.architectures import SMALL, saved
from transformers import LongformerConfig, LongformerModel, Olmo2Config, Olmo2Model

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_blocks, parameters
from distilvec.students import StudentTap, load_student, ship, shrink
from distilvec.students.shrink import choose_layers

KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]
KEPT = {"bert": [1, 3], "xlmr": [2], "modernbert": [1, 2, 4], "qwen3": [2, 3], "mistral": [2]}


def test_even_spacing_keeps_both_ends() -> None:
    assert choose_layers(2, 6) == [1, 6]
    assert choose_layers(6, 12) == [1, 3, 5, 8, 10, 12]
    assert choose_layers(1, 4) == [1]
    for count in range(1, 30):
        for wanted in range(1, count + 1):
            chosen = choose_layers(wanted, count)
            gaps = [after - before for before, after in itertools.pairwise(chosen)]
            assert len(set(chosen)) == wanted
            assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_kept_blocks_run_one_after_the_other(
    kind: str, tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    source = load_student(tiny_model_folders[kind], device="cpu").eval()
    _name, blocks = find_blocks(source[0].model)
    before = source.encode(sentences[:12])
    student, report = shrink(source, layers=KEPT[kind])
    assert report.layers_kept == tuple(KEPT[kind])
    assert report.layers_before == len(blocks)
    assert report.parameters_before == parameters(source)
    assert report.parameters_after == parameters(student)
    dropped = [block for number, block in enumerate(blocks, 1) if number not in KEPT[kind]]
    assert report.parameters_before - report.parameters_after == sum(map(parameters, dropped))
    # The reference: the whole model with the dropped blocks passing their input on.
    for block in dropped:
        block.forward = lambda hidden_states, *args, **kwargs: hidden_states
    expected = torch.from_numpy(source.encode(sentences[:12]))
    assert (expected - torch.from_numpy(before)).abs().max() > 1e-3
    torch.testing.assert_close(torch.from_numpy(student.encode(sentences[:12])), expected, rtol=1e-4, atol=1e-5)
    assert StudentTap(student).info.layers == len(KEPT[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_reload_is_exact(
    kind: str,
    tiny_model_folders: dict[str, Path],
    sentences: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    student, _ = shrink(tiny_model_folders[kind], layers=KEPT[kind])
    student.save(str(tmp_path / "shrunk"), create_model_card=False)
    with caplog.at_level(logging.WARNING):
        again = load_student(tmp_path / "shrunk", device="cpu")
    assert "LOAD REPORT" not in caplog.text  # transformers says there what it had to make up
    assert (again.encode(sentences[:12]) == student.to("cpu").encode(sentences[:12])).all()
    state, loaded = student.state_dict(), again.state_dict()
    assert state.keys() == loaded.keys()
    assert all(torch.equal(state[name].cpu(), loaded[name]) for name in state)


def test_the_attention_pattern_follows_the_kept_blocks(tiny_model_folders: dict[str, Path], tmp_path: Path) -> None:
    source = load_student(tiny_model_folders["modernbert"], device="cpu")
    whole = list(source[0].model.config.layer_types)
    assert len(set(whole)) == 2
    student, _ = shrink(source, layers=[1, 2, 4])
    student.save(str(tmp_path / "shrunk"), create_model_card=False)
    config = json.loads((tmp_path / "shrunk" / "config.json").read_text())
    assert config["num_hidden_layers"] == 3
    assert config["layer_types"] == [whole[0], whole[1], whole[3]]
    assert "global_attn_every_n_layers" not in config
    assert list(source[0].model.config.layer_types) == whole


def test_blocks_that_cannot_stand_alone_are_refused(tiny_model_folders: dict[str, Path]) -> None:
    # ModernBERT's first block has no norm before its attention, the others do.
    with pytest.raises(DistilvecError, match=r"\[2, 3\] of ModernBertModel .*block 1\b"):
        shrink(tiny_model_folders["modernbert"], layers=[2, 3])


def test_the_source_is_left_as_it_is(tiny_bert: Path, sentences: list[str]) -> None:
    source = load_student(tiny_bert, device="cpu")
    before, state = source.encode(sentences[:10]), {n: t.clone() for n, t in source.state_dict().items()}
    student, _ = shrink(source, layers=1, vocabulary=300, texts=sentences)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in state.items())
    assert (source.encode(sentences[:10]) == before).all()
    assert source[0].model.config.num_hidden_layers == 3
    assert len(source.tokenizer) == source[0].model.config.vocab_size


def test_a_real_teacher_at_a_quarter_of_its_size(real_teacher_folder: Path, sentences: list[str]) -> None:
    student, report = shrink(real_teacher_folder, layers=2, vocabulary=5000, texts=sentences)
    assert report.layers_kept == (1, 6)
    assert report.vocabulary_after <= 5000
    assert report.parameters_after == parameters(student) < 22.7e6 / 4
    assert report.texts_unchanged == 1.0  # all pieces of so few texts fit


def test_impossible_choices_are_refused(tiny_bert: Path) -> None:
    source = load_student(tiny_bert, device="cpu")
    for layers in (0, 4, [], [0, 1], [4]):
        with pytest.raises(DistilvecError, match=rf"layers is {re.escape(str(layers))}, .*\b1 to 3\b"):
            shrink(source, layers=layers)
    with pytest.raises(DistilvecError, match="^texts: vocabulary 300 .*texts="):
        shrink(source, vocabulary=300)
    static = SentenceTransformer(modules=[StaticEmbedding(source.tokenizer.backend_tokenizer, embedding_dim=8)])
    with pytest.raises(DistilvecError, match=r"\(StaticEmbedding\)"):
        shrink(static, layers=1)


def test_longformer_is_shrunk(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    config = LongformerConfig(
        vocab_size=400, attention_window=[8, 8, 16], pad_token_id=0, **SMALL | {"num_hidden_layers": 3}
    )
    source = saved(LongformerModel(config), tiny_bert, tmp_path / "longformer").eval()
    texts = [text[:100] for text in sentences[:60]]
    student, report = shrink(source, layers=[1, 3], inner=1024, texts=texts)
    assert student[0].model.config.attention_window == [8, 16]
    assert len(report.kept.inner) == 2 and min(report.kept.inner) > 0.5
    ship(student, tmp_path / "student")
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    np.testing.assert_allclose(shipped.encode(texts), student.encode(texts), atol=1e-6)


def test_heads_that_do_not_fit_the_class_are_refused(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    config = Olmo2Config(vocab_size=400, intermediate_size=64, pad_token_id=0, **SMALL)
    source = saved(Olmo2Model(config), tiny_bert, tmp_path / "olmo")
    with pytest.raises(DistilvecError, match="does not fit into its class, Olmo2Model.* Make another cut"):
        shrink(source, heads=1, texts=sentences)
