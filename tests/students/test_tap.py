"""The tap says what the student's own forward says, layer by layer, and leaves no trace."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tests.students.architectures import SMALL, opt, saved
from transformers import AutoTokenizer, LongformerConfig, LongformerModel

from distilvec.errors import DistilvecError
from distilvec.students import StudentTap, load_student

KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]


@pytest.fixture(params=KINDS)
def student(request: pytest.FixtureRequest, tiny_model_folders: dict[str, Path]) -> SentenceTransformer:
    return load_student(tiny_model_folders[request.param], device="cpu").eval()


def features_of(student: SentenceTransformer, texts: list[str]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in student.preprocess(texts).items() if isinstance(value, torch.Tensor)}


def test_states_are_those_of_the_model(student: SentenceTransformer, sentences: list[str]) -> None:
    tap = StudentTap(student)
    count = tap.info.layers
    features = features_of(student, sentences[:6])
    with torch.no_grad():
        out = tap(features, views=2, layers=True, tokens=tuple(range(count + 1)))
        reference = student[0].model(**features, output_hidden_states=True)
    assert out.layers.shape == (2, count, 6, tap.info.hidden)
    for layer in range(count + 1):
        for view in range(2):
            torch.testing.assert_close(out.tokens[layer][view], reference.hidden_states[layer], rtol=0, atol=1e-5)
    torch.testing.assert_close(out.tokens[count][1], reference.last_hidden_state, rtol=0, atol=1e-5)
    for layer in range(1, count + 1):
        pooled = student[1]({"token_embeddings": out.tokens[layer][0], "attention_mask": features["attention_mask"]})
        torch.testing.assert_close(out.layers[0, layer - 1], pooled["sentence_embedding"], rtol=0, atol=1e-6)


def test_embedding_is_what_encode_gives_before_normalize(student: SentenceTransformer, sentences: list[str]) -> None:
    tap = StudentTap(student)
    with torch.no_grad():
        out = tap(features_of(student, sentences[:8]), views=1)
    expected = torch.from_numpy(student.encode(sentences[:8], batch_size=8))
    ours = out.embedding[0]
    if isinstance(student[-1], Normalize):
        assert (ours.norm(dim=-1) - 1).abs().max() > 1e-2
        ours = torch.nn.functional.normalize(ours)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    assert out.layers is None
    assert out.tokens == {}
    assert tap.info.width == student.get_embedding_dimension() == ours.shape[1]


def test_masks_tell_padding_and_special_tokens_apart(student: SentenceTransformer) -> None:
    tap = StudentTap(student)
    features = features_of(student, ["one", "a much longer text than the other one"])
    out = tap(features, views=1)
    assert torch.equal(out.mask, features["attention_mask"].bool())
    special = torch.tensor(sorted(student.tokenizer.all_special_ids))
    assert not torch.isin(features["input_ids"][out.content], special).any()
    without = [
        len(student.tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in ("one", "a much longer text than the other one")
    ]
    assert out.content.sum(1).tolist() == without
    given = torch.zeros_like(features["input_ids"])
    given[:, 0] = 1
    told = tap({**features, "special_tokens_mask": given}, views=1)
    assert torch.equal(told.content, out.mask & ~given.bool())


def test_views_differ_by_dropout_and_every_layer_gets_a_gradient(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu").train()
    tap = StudentTap(student)
    out = tap(features_of(student, sentences[:4]), views=2, layers=True)
    assert (out.embedding[0] - out.embedding[1]).abs().max() > 1e-3
    assert (out.layers[0] - out.layers[1]).abs().amax(dim=(1, 2)).min() > 1e-3
    for layer in range(3):
        student.zero_grad()
        out.layers[:, layer].sum().backward(retain_graph=True)
        reached = [
            any(p.grad is not None and p.grad.abs().sum() > 0 for p in block.parameters())
            for block in student[0].model.encoder.layer
        ]
        assert reached == [number <= layer for number in range(3)]


def test_views_are_rows_of_one_forward(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu").eval()
    calls: list[int] = []
    student[0].model.encoder.layer[0].register_forward_hook(lambda block, args, output: calls.append(len(output)))
    StudentTap(student)(features_of(student, sentences[:4]), views=3, layers=True, tokens=(1,))
    assert calls == [12]


def test_no_trace_in_the_configuration_and_hooks_go_with_the_tap(
    tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu")
    student.save(str(tmp_path / "before"), create_model_card=False)
    tap = StudentTap(student)
    student.train()[0].model.gradient_checkpointing_enable()
    tap(features_of(student, sentences[:4]), views=2, layers=True, tokens=(0, 3))
    student.save(str(tmp_path / "after"), create_model_card=False)
    for file in ("config.json", "sentence_bert_config.json", "modules.json", "tokenizer_config.json"):
        assert (tmp_path / "before" / file).read_text() == (tmp_path / "after" / file).read_text()
    assert student[0].model.encoder.layer[0]._forward_hooks
    del tap
    gc.collect()
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in student[0].model.encoder.layer)


def test_an_error_in_the_forward_leaves_the_tap_usable(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu").eval()
    tap = StudentTap(student)
    features = features_of(student, sentences[:4])
    good = tap(features, views=1, layers=True)
    with pytest.raises(IndexError):
        tap({**features, "input_ids": features["input_ids"] + 10**6}, views=1, layers=True)
    again = tap(features, views=1, layers=True)
    assert torch.equal(good.layers, again.layers)


def test_a_copy_of_student_and_tap_records_its_own_blocks(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu").eval()
    pair = {"student": student, "tap": StudentTap(student)}
    twin = copy.deepcopy(pair)
    with torch.no_grad():
        for parameter in twin["student"].parameters():
            parameter.mul_(1.5)
    features = features_of(student, sentences[:4])
    assert not torch.allclose(
        pair["tap"](features, 1, layers=True).layers, twin["tap"](features, 1, layers=True).layers
    )


def test_two_taps_on_one_student_do_not_disturb_each_other(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu").eval()
    first, second = StudentTap(student), StudentTap(student)
    features = features_of(student, sentences[:3])
    assert torch.equal(first(features, 1, layers=True).layers, second(features, 1, layers=True).layers)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_compiled_and_autocast_calls_agree(
    kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders[kind], device="cpu").eval()
    tap = StudentTap(student)
    features = features_of(student, sentences[:4])
    compiled = torch.compile(lambda rows: tap(rows, 2, layers=True), backend="eager")
    with torch.no_grad():
        plain = tap(features, 2, layers=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(features).layers, plain.layers, rtol=1e-5, atol=1e-5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = tap(features, 2, layers=True)
    assert torch.nn.functional.cosine_similarity(half.layers.float(), plain.layers, dim=-1).min() > 0.99


def test_modules_after_the_pooling_shape_the_embedding_only(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    base = load_student(tiny_model_folders["bert"], device="cpu").eval()
    student = SentenceTransformer(
        modules=[*base.children(), Dense(32, 8, activation_function=None), Normalize()], device="cpu"
    )
    tap = StudentTap(student)
    out = tap(features_of(student, sentences[:4]), views=1, layers=True)
    assert (tap.info.width, tap.info.hidden, tap.info.layers) == (8, 32, 3)
    assert out.embedding.shape == (1, 4, 8)
    assert out.layers.shape == (1, 3, 4, 32)
    torch.testing.assert_close(out.embedding[0], student[2].linear(out.layers[0, -1]))


def test_two_ways_of_pooling_widen_the_pooled_states_and_not_the_tokens(tiny_bert: Path, sentences: list[str]) -> None:
    student = load_student(tiny_bert, device="cpu").eval()
    wide = student.get_embedding_dimension()
    tap = StudentTap(SentenceTransformer(modules=[student[0], Pooling(wide, ("cls", "mean"))], device="cpu"))
    with torch.no_grad():
        out = tap(features_of(student, sentences[:3]), views=1, layers=True, tokens=[1])
    assert out.tokens[1].shape[-1] == tap.info.hidden == wide
    assert out.layers.shape[-1] == out.embedding.shape[-1] == tap.pooled == tap.info.width == 2 * wide


def test_features_added_by_modules_are_passed_on(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    base = load_student(tiny_model_folders["bert"], device="cpu").eval()
    head = Dense(32, 8, activation_function=None, module_output_name="expert")
    student = SentenceTransformer(modules=[*base.children(), head], device="cpu")
    out = StudentTap(student)(features_of(student, sentences[:4]), views=2)
    assert {name: tuple(value.shape) for name, value in out.extras.items()} == {"expert": (2, 4, 8)}


def test_static_students_have_views_but_no_layers(sentences: list[str], tiny_bert: Path) -> None:
    tokenizer = load_student(tiny_bert, device="cpu").tokenizer.backend_tokenizer
    student = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    tap = StudentTap(student)
    assert (tap.info.layers, tap.info.width) == (None, 16)
    out = tap(student.preprocess(sentences[:5]), views=3)
    expected = torch.from_numpy(student.encode(sentences[:5]))
    for view in range(3):
        torch.testing.assert_close(out.embedding[view], expected, rtol=0, atol=1e-6)
    with pytest.raises(DistilvecError, match="^student: .*final embedding only"):
        tap(student.preprocess(sentences[:5]), views=1, layers=True)


def test_signals_that_a_student_cannot_give_are_refused(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu")
    tap = StudentTap(student)
    features = features_of(student, sentences[:2])
    with pytest.raises(DistilvecError, match=r"^bert: .*layer 0\b.*\b1 to 3\b"):
        tap(features, views=1, attention=(0,))
    with pytest.raises(DistilvecError, match=r"^bert: .*layer 4\b.*\b0 to 3\b"):
        tap(features, views=1, tokens=(4,))
    with pytest.raises(DistilvecError, match="^bert: .*unpad_inputs=False"):
        tap({**features, "cu_seq_lens_q": torch.tensor([0, 2])}, views=1)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(
    tiny_model_folders: dict[str, Path], sentences: list[str], reentrant: bool
) -> None:
    student = load_student(tiny_model_folders["bert"], device="cpu").train()
    for module in student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    features = features_of(student, sentences[:4])
    tap = StudentTap(student)
    weight = student[0].model.encoder.layer[0].attention.self.query.weight

    def gradient() -> torch.Tensor:
        student.zero_grad()
        tap(features, views=1, layers=True).layers.square().sum().backward()
        return weight.grad.clone()

    plain = gradient()
    student[0].model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    torch.testing.assert_close(gradient(), plain)


def test_states_without_gradients_are_refused(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    # What reentrant checkpointing does where a model's hooks run inside of it: the states come without a graph.
    student = load_student(tiny_model_folders["bert"], device="cpu").train()
    last = student[0].model.encoder.layer[-1]
    last.register_forward_hook(lambda block, args, output: output.detach())
    student.append(Dense(32, 8))
    with pytest.raises(DistilvecError, match="gradient_checkpointing_kwargs to use_reentrant: false"):
        StudentTap(student)(features_of(student, sentences[:2]), views=1, layers=True)


def test_layers_of_blocks_that_pad_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    size = len(AutoTokenizer.from_pretrained(str(tiny_bert)))
    config = LongformerConfig(
        vocab_size=size, intermediate_size=64, attention_window=16, max_position_embeddings=80, pad_token_id=0, **SMALL
    )
    student = saved(LongformerModel(config), tiny_bert, tmp_path / "long")
    tap = StudentTap(student)
    features = student.preprocess(["one short text", "two"])
    with pytest.raises(DistilvecError, match="its layers cannot be read"):
        tap(features, 1, layers=True)
    assert tap(features, 1).embedding.shape == (1, 2, 32), "its vector can"


def test_layers_are_refused_if_layerdrop_skips_blocks(tiny_bert: Path, tmp_path: Path) -> None:
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


def test_attention_maps_with_dropout_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
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
