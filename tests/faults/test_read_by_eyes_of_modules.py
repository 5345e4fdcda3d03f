"""What a reading of modules, students and training has found, each once seen to fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import (
    AutoTokenizer,
    LongformerConfig,
    LongformerModel,
    Olmo2Config,
    Olmo2Model,
    OPTConfig,
    OPTModel,
    SwinConfig,
    SwinModel,
    T5Config,
    T5EncoderModel,
)

from distilvec.errors import DistilvecError
from distilvec.flow.start import with_dropout
from distilvec.methods.base import Term
from distilvec.modules.expert_head import ExpertHead
from distilvec.modules.molecule import normed
from distilvec.modules.watch import Seen
from distilvec.students import load_student, ship, shrink
from distilvec.students.tap import StudentTap
from distilvec.teachers import load_teacher
from distilvec.training.step import mean_and_count

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def saved(model: Any, tokenizer: Path, folder: Path) -> SentenceTransformer:
    model.save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(tokenizer)).save_pretrained(str(folder))
    transformer = Transformer(str(folder))
    return SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="mean")], device="cpu")


def opt(tokenizer: Path, folder: Path, **options: Any) -> SentenceTransformer:
    """A student whose dropout is a function, and whose blocks may be passed over."""
    config = OPTConfig(
        **SMALL,
        vocab_size=len(AutoTokenizer.from_pretrained(str(tokenizer))),
        ffn_dim=64,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        **options,
    )
    return saved(OPTModel(config), tokenizer, folder / "opt")


def test_blocks_that_pad_by_themselves_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    size = len(AutoTokenizer.from_pretrained(str(tiny_bert)))
    config = LongformerConfig(
        vocab_size=size, intermediate_size=64, attention_window=16, max_position_embeddings=80, pad_token_id=0, **SMALL
    )
    tap = StudentTap(saved(LongformerModel(config), tiny_bert, tmp_path / "long"))
    student = SentenceTransformer(modules=list(tap._modules), device="cpu")
    features = student.preprocess(["one short text", "two"])
    with pytest.raises(DistilvecError, match="its layers cannot be read"):
        tap(features, 1, layers=True)
    assert tap(features, 1).embedding.shape == (1, 2, 32), "its vector can"


def test_states_of_stages_are_refused() -> None:
    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 1, 1], num_heads=[1, 2, 4], window_size=2, num_labels=2
    )
    model, seen = SwinModel(config).eval(), Seen(blocks=3)
    for block in model.encoder.layers:
        block.register_forward_hook(lambda module, args, output: seen.states.append(output[0]))
    model.encoder.layers[0].register_forward_pre_hook(lambda module, args: seen.states.insert(0, args[0]))
    last = model(torch.zeros(2, 3, 32, 32)).last_hidden_state
    with pytest.raises(DistilvecError, match="its layers cannot be read"):
        seen.close(last)


def test_blocks_that_are_passed_over_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    """What comes after a dropped block would stand under the number of the block before."""
    student = opt(tiny_bert, tmp_path, layerdrop=0.5)
    tap, features = StudentTap(student), student.preprocess(["one short text", "two"])
    student.train()
    torch.manual_seed(0)
    with pytest.raises(DistilvecError, match=r"blocks showed their states.*layerdrop"):
        for _ in range(20):
            tap(features, 1, layers=True)
    student.eval()
    found = tap(features, 1, layers=True).layers
    assert found is not None and len(found[0]) == SMALL["num_hidden_layers"]


def test_a_vision_student_has_no_parameter_that_nothing_comes_of(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    ViTModel(config, use_mask_token=True).save_pretrained(str(tmp_path))
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(str(tmp_path))
    student = load_student(tmp_path, device="cpu").train()
    from PIL import Image

    features = student.preprocess([Image.new("RGB", (8, 8), "red")])
    student(features)["sentence_embedding"].square().sum().backward()
    left = [name for name, each in student.named_parameters() if each.requires_grad and each.grad is None]
    assert left == []


def test_dropout_by_a_function_is_chosen_too(tiny_bert: Path, tmp_path: Path) -> None:
    student = opt(tiny_bert, tmp_path, dropout=0.5, attention_dropout=0.5).train()

    def twice() -> float:
        features = student.preprocess(["one short text", "two"])
        first, second = (student(dict(features))["sentence_embedding"] for _ in range(2))
        return float((first - second).abs().max())

    assert twice() > 0.01
    with_dropout(student, 0.0)
    assert twice() == 0.0


def test_small_weights_weigh_as_they_say() -> None:
    for weights, expected in (([0.1, 0.1], 2.0), ([0.01, 0.03], 2.5), ([0.0, 0.0], 0.0), ([2.0, 6.0], 2.5)):
        term = Term(torch.tensor([1.0, 3.0]), torch.tensor(weights), 1.0)
        assert float(mean_and_count(term)[0]) == pytest.approx(expected)


def test_the_weights_of_a_gate_add_up_to_one_in_half_precision() -> None:
    torch.manual_seed(0)
    head = ExpertHead(16, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        gate = head({"sentence_embedding": torch.randn(64, 16)})["gate"]
    assert gate.dtype == torch.float32
    assert torch.allclose(gate.sum(-1), torch.ones(64), atol=1e-6)


def test_one_row_alone_is_brought_to_the_spread_of_others() -> None:
    norm = torch.nn.BatchNorm1d(4)
    norm.running_mean.fill_(1.0)
    assert torch.allclose(normed(norm, torch.ones(1, 4)), torch.zeros(1, 4), atol=1e-6)
    assert torch.equal(normed(norm, torch.eye(4)), torch.nn.BatchNorm1d(4)(torch.eye(4)))


def test_a_former_student_is_read_in_mini_batches_too(tiny_bert: Path, tmp_path: Path) -> None:
    import distilvec

    sizes = []
    run = StudentTap.__call__

    def counted(self: StudentTap, features: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(next(iter(features.values()))))
        return run(self, features, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StudentTap, "__call__", counted)
        distilvec.distill(
            str(tiny_bert),
            student={"model": str(tiny_bert), "remember": 0.5},
            corpus={"path": [f"text number {number} of them" for number in range(60)], "holdout": 0.0},
            method="cosine",
            output=tmp_path / "out",
            training={"max_steps": 2, "batch_size": 25, "mini_batch_size": 4},
            judging={"tasks": [], "agreement": False, "speed": False},
        )
    assert sizes and sizes.count(25) == 0


@pytest.mark.parametrize(("room", "batches"), [(4 << 30, 7), (1 << 16, 1)])
def test_a_sample_of_tokens_takes_no_more_memory_than_there_is_for_it(
    room: int, batches: int, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distilvec
    from distilvec.training import sample

    made, take = [], sample.token_batches

    def counted(*args: Any) -> Any:
        made.append(take(*args))
        return made[-1]

    monkeypatch.setattr(sample, "TOKEN_BYTES", room)
    monkeypatch.setattr(sample, "token_batches", counted)
    distilvec.distill(
        str(tiny_bert),
        student={"shrink": {"of": "teacher", "layers": 1}},
        corpus={"path": [f"text number {number} of them" for number in range(200)], "holdout": 0.0},
        method={"name": "emo", "layers": 1},
        output=tmp_path / "out",
        training={"max_steps": 1, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    assert [len(each) for each in made] == [batches]


def test_maps_that_dropout_has_thinned_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    from transformers import XLMConfig, XLMModel

    size = len(AutoTokenizer.from_pretrained(str(tiny_bert)))
    config = XLMConfig(vocab_size=size, emb_dim=32, n_layers=2, n_heads=2, attention_dropout=0.5, pad_index=0)
    student = saved(XLMModel(config), tiny_bert, tmp_path / "xlm")
    tap, features = StudentTap(student), student.preprocess(["one short text", "two"])
    student.eval()
    assert (tap(features, 1, attention=[1]).attention[1].sum(-1) - 1).abs().max() < 1e-3
    student.train()
    with pytest.raises(DistilvecError, match="no attention map of layer 1"):
        tap(features, 1, attention=[1])


def with_one_more(tiny_bert: Path, folder: Path, **tokens: Any) -> Path:
    """A model whose tokenizer knows a token more than its table has rows."""
    shutil.copytree(tiny_bert, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_bert), **tokens)
    tokenizer.save_pretrained(str(folder))
    assert len(tokenizer) == 1 + len(AutoTokenizer.from_pretrained(str(tiny_bert)))
    return folder


def test_an_added_token_without_a_vector_is_read_as_letters(
    tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    folder = with_one_more(tiny_bert, tmp_path / "gemma", extra_special_tokens={"image_token": "<image>"})
    student, plain = load_student(folder, device="cpu").eval(), load_student(tiny_bert, device="cpu").eval()
    texts = [*sentences[:10], "what <image> says"]
    np.testing.assert_allclose(student.encode(texts), plain.encode(texts), atol=1e-6)
    np.testing.assert_allclose(load_teacher(model=folder, device="cpu").encode(texts), plain.encode(texts), atol=1e-5)
    ship(student, tmp_path / "student")
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    np.testing.assert_allclose(shipped.encode(texts), plain.encode(texts), atol=1e-6)


def test_padding_without_a_vector_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    folder = with_one_more(tiny_bert, tmp_path / "padded", pad_token="<padding>")
    with pytest.raises(DistilvecError, match="its tokenizer gives ids up to 400, and there are vectors for 400"):
        load_student(folder, device="cpu")


def test_a_table_that_a_model_names_twice_is_cut_in_both_places(
    tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
    source = saved(T5EncoderModel(T5Config(vocab_size=400, **sizes)), tiny_bert, tmp_path / "t5").eval()
    student, report = shrink(source, vocabulary=300, texts=sentences)
    assert report.vocabulary_after == len(student.tokenizer) == 300
    pieces = set(student.tokenizer.get_vocab())
    same = [text for text in sentences if set(source.tokenizer.tokenize(text)) <= pieces]
    assert len(same) > 5
    np.testing.assert_allclose(student.encode(same), source.encode(same), atol=1e-5)
    ship(student, tmp_path / "student")
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    np.testing.assert_allclose(shipped.encode(sentences), student.encode(sentences), atol=1e-6)


def test_a_longformer_is_cut(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    config = LongformerConfig(
        vocab_size=400, attention_window=[8, 8, 16], pad_token_id=0, **SMALL | {"num_hidden_layers": 3}
    )
    source = saved(LongformerModel(config), tiny_bert, tmp_path / "longformer").eval()
    student, report = shrink(source, layers=[1, 3], inner=1024, texts=sentences)
    assert student[0].model.config.attention_window == [8, 16]
    assert len(report.kept.inner) == 2 and min(report.kept.inner) > 0.5
    ship(student, tmp_path / "student")
    shipped = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    np.testing.assert_allclose(shipped.encode(sentences), student.encode(sentences), atol=1e-6)


def test_a_cut_that_a_class_has_no_place_for_names_no_block(
    tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    config = Olmo2Config(vocab_size=400, intermediate_size=64, pad_token_id=0, **SMALL)
    source = saved(Olmo2Model(config), tiny_bert, tmp_path / "olmo")
    with pytest.raises(DistilvecError, match="does not fit into its class, Olmo2Model.* Make another cut"):
        shrink(source, heads=1, texts=sentences)
