"""Attention maps beside the fast kernel: equal to eager attention's, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests import tiny_models
from torch import Tensor
from transformers import AutoModel, DebertaV2Config, DebertaV2Model, MPNetConfig, MPNetModel, SwinConfig, SwinModel

from distilvec.errors import DistilvecError
from distilvec.modules import watch as module
from distilvec.modules.blocks import find_blocks
from distilvec.modules.watch import Seen, Watch
from distilvec.students import StudentTap, load_student
from distilvec.teachers import load_teacher
from distilvec.teachers.signals import Wanted

KINDS = ("bert", "xlmr", "modernbert", "qwen3", "mistral")
TEXTS = ["short", "a text that is clearly longer than the other one", "two words"]


def model_and_features(folder: Path) -> tuple[SentenceTransformer, dict[str, Tensor]]:
    model = SentenceTransformer(str(folder), device="cpu").eval()
    features = {k: v for k, v in model.preprocess(TEXTS).items() if isinstance(v, Tensor)}
    return model, features


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_those_of_eager_attention(
    kind: str, kernel: str, tiny_model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "eager":
        monkeypatch.setattr("transformers.integrations.sdpa_attention.sdpa_attention_forward", None)
    folder = tiny_model_folders[kind]
    model, features = model_and_features(folder)
    model[0].model.config._attn_implementation = kernel
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = {k: v for k, v in features.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        expected = eager(**inputs, output_attentions=True).attentions
        output = StudentTap(model)(features, views=1, tokens=(0, 1, 2), attention=(1, 2))
        plain = model(dict(features))["sentence_embedding"]
    real = features["attention_mask"].bool()
    for layer in (1, 2):
        found, wanted = output.attention[layer][0], expected[layer - 1].mean(1)
        torch.testing.assert_close(found[real], wanted[real], atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(found[real].sum(-1), torch.ones(int(real.sum())))
        for row in range(len(TEXTS)):
            assert (found[row][real[row]][:, ~real[row]] == 0).all()
    # The embedding is bit for bit what it is without a watch (up to the final Normalize that the tap leaves out).
    taken = output.embedding[0]
    if not torch.equal(taken, plain):
        torch.testing.assert_close(torch.nn.functional.normalize(taken, dim=-1), plain, atol=0, rtol=0)


#: Kinds whose last block is not the end: a norm follows it.
NORMED = ("modernbert", "qwen3", "mistral", "gpt2")


@pytest.mark.parametrize("kind", (*KINDS, "gpt2"))
def test_the_last_states_are_the_models_own_last_hidden_states(kind: str, tiny_model_folders: dict[str, Path]) -> None:
    model, features = model_and_features(tiny_model_folders[kind])
    reference = AutoModel.from_pretrained(tiny_model_folders[kind]).eval()
    inputs = {k: v for k, v in features.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
    tap, teacher = StudentTap(model), load_teacher(model=tiny_model_folders[kind], device="cpu", prompt="")
    count = tap.info.layers or 0
    with torch.no_grad():
        expected = reference(**inputs, output_hidden_states=True)
        output = tap(features, views=1, layers=True, tokens=range(count + 1))
    signals = teacher.signals(TEXTS, Wanted(tokens=(count - 1, count)))
    real = features["attention_mask"].bool()
    torch.testing.assert_close(output.tokens[count][0][real], expected.last_hidden_state[real])
    torch.testing.assert_close(signals.tokens[count][real], expected.last_hidden_state[real])
    for layer in range(count):  # all others are what the blocks give
        torch.testing.assert_close(output.tokens[layer][0][real], expected.hidden_states[layer][real])
    torch.testing.assert_close(signals.tokens[count - 1][real], expected.hidden_states[count - 1][real])
    # The layers' vectors end in the embedding, and only where a norm follows the blocks that is news.
    assert output.layers is not None
    torch.testing.assert_close(output.layers[0, -1], output.embedding[0])
    assert teacher.final_norm == (kind in NORMED)


def test_gradient_reaches_the_weights_and_chunks_do_not_matter(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = model_and_features(tiny_bert)
    tap = StudentTap(model)
    gradients = []
    for chunk in (1 << 26, 1):
        monkeypatch.setattr(module, "CHUNK", chunk)
        model.zero_grad()
        tap(features, views=2, attention=(2,)).attention[2].square().sum().backward()
        weight = find_blocks(model[0].model)[1][0].attention.self.query.weight  # type: ignore[index]
        gradients.append(weight.grad.clone())
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients, atol=1e-8, rtol=1e-4)


def test_nothing_stays_in_the_configuration(tiny_bert: Path, tmp_path: Path) -> None:
    model, features = model_and_features(tiny_bert)
    before = model[0].model.config._attn_implementation
    model.save_pretrained(str(tmp_path / "before"))
    tap = StudentTap(model)
    tap(features, views=1, attention=(1,))
    model.save_pretrained(str(tmp_path / "after"))
    assert model[0].model.config._attn_implementation == before
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("before", "after"))
    assert first == second
    assert module._ACTIVE == {}


SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
OUTSIDE = [MPNetModel(MPNetConfig(**SMALL)), DebertaV2Model(DebertaV2Config(**SMALL))]


@pytest.mark.parametrize("model", OUTSIDE, ids=lambda model: type(model).__name__)
def test_maps_are_those_before_dropout(model: torch.nn.Module) -> None:
    """Every row of a distribution adds up to 1, in training too, and the gradient goes through it."""
    found = find_blocks(model)
    assert found is not None
    watch = Watch(model.train(), found[1])
    with watch.watching(maps=(1, 2)) as seen:
        model(input_ids=torch.randint(5, 50, (2, 6)))
    for layer in (1, 2):
        assert seen.maps[layer].requires_grad
        torch.testing.assert_close(seen.maps[layer].sum(-1), torch.ones(2, 6))
    watch.remove()


@pytest.mark.parametrize("model", OUTSIDE, ids=lambda model: type(model).__name__)
def test_an_architecture_outside_the_interface_gives_its_own_maps(model: torch.nn.Module) -> None:
    model.eval()
    found = find_blocks(model)
    assert found is not None
    watch = Watch(model, found[1])
    ids = torch.randint(5, 50, (2, 6))
    with torch.no_grad(), watch.watching(maps=(1, 2)) as seen:
        model(input_ids=ids)
    expected = model(input_ids=ids, output_attentions=True).attentions
    assert len(seen.states) == 3
    for layer in (1, 2):
        torch.testing.assert_close(seen.maps[layer], expected[layer - 1].mean(1))


@pytest.mark.parametrize("model", OUTSIDE, ids=lambda model: type(model).__name__)
def test_such_an_architecture_gives_its_maps_as_a_student_too(model: torch.nn.Module, tmp_path: Path) -> None:
    wide = type(model)(type(model.config)(**{**SMALL, "vocab_size": tiny_models.VOCABULARY}))  # type: ignore[operator]
    wide.save_pretrained(tmp_path)
    tiny_models.KINDS["bert"]["tokenizer"]().save_pretrained(tmp_path)
    student = load_student(tmp_path, device="cpu").eval()
    inner, features = student[0].model, student.preprocess(TEXTS)
    with torch.no_grad():
        expected = inner(**{k: v for k, v in features.items() if isinstance(v, Tensor)}, output_attentions=True)
        found = StudentTap(student)(features, views=1, attention=(1, 2)).attention
    for layer in (1, 2):
        torch.testing.assert_close(found[layer][0], expected.attentions[layer - 1].mean(1))
    assert "forward" not in vars(inner)


def test_maps_that_do_not_come_are_an_error(tiny_bert: Path) -> None:
    model, features = model_and_features(tiny_bert)
    inner = model[0].model
    inner._supports_attention_backend = False  # as of an architecture that ignores the request
    inner.config._attn_implementation = "sdpa"
    original = type(inner).forward

    def deaf(self: object, *args: object, output_attentions: bool = False, **kwargs: object) -> object:
        return original(self, *args, **kwargs)

    inner.forward = deaf.__get__(inner)
    with pytest.raises(DistilvecError, match=r"^BertModel: .*layer 1 \(of 3\)"):
        StudentTap(model)(features, views=1, attention=(1,))


def test_states_of_other_layers_are_not_held(tiny_bert: Path) -> None:
    model, features = model_and_features(tiny_bert)
    watch = Watch(model[0].model, find_blocks(model[0].model)[1])
    with watch.watching() as every:
        model[0](dict(features))
    with watch.watching((0, 2)) as seen:
        model[0](dict(features))
    assert [state.numel() > 0 for state in seen.states] == [True, False, True, False]
    assert all(torch.equal(seen.states[layer], every.states[layer]) for layer in (0, 2))


def test_layers_of_a_model_in_stages_are_refused() -> None:
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
