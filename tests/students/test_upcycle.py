"""Dense encoders as mixtures of experts: they start where the dense ones are, and can be trained and shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from distilvec.errors import DistilvecError
from distilvec.modules.routing import hand_out_routing, mixtures, router_balance
from distilvec.students import StudentTap, load_student, ship
from distilvec.students.upcycling import upcycle

TEXTS = ["hello", "The train to Zürich leaves from platform 7 at 14:32.", "東京は今日も雨です。", ""]


def opened(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def test_without_noise_it_is_the_real_dense_model(real_teacher_folder: Path) -> None:
    dense = opened(real_teacher_folder)
    model = upcycle(dense, experts=3, noise=0.0)
    np.testing.assert_allclose(model.encode(TEXTS), dense.encode(TEXTS), atol=1e-5)
    assert list(mixtures(model[0].model)) == [2, 4, 6]
    assert model.max_seq_length == dense.max_seq_length
    assert [type(module) for module in model] == [type(module) for module in dense]
    assert model[0].model.config._name_or_path == str(real_teacher_folder)


@pytest.mark.parametrize("kind", ["bert", "xlmr", "electra", "distilbert"])
@pytest.mark.parametrize("every", [1, 2])
def test_positions_biases_and_pooling_are_kept(kind: str, every: int, tiny_model_folders: dict[str, Path]) -> None:
    dense = opened(tiny_model_folders[kind])
    with torch.no_grad():
        for name, parameter in dense[0].model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    before = dense.encode(TEXTS)
    model = upcycle(dense, experts=4, top_k=3, every=every, noise=0.0)
    np.testing.assert_allclose(model.encode(TEXTS), before, atol=1e-5)
    assert np.array_equal(dense.encode(TEXTS), before)
    count = dense[0].model.config.num_hidden_layers
    assert list(mixtures(model[0].model)) == list(range(every, count + 1, every))
    maps = [StudentTap(one)(one.preprocess(TEXTS), views=1, attention=(1,)).attention[1] for one in (dense, model)]
    torch.testing.assert_close(*maps, atol=1e-5, rtol=1e-4)
    left = dense.preprocess(TEXTS)  # padded on the other side
    left = {name: left[name].flip(1) for name in ("input_ids", "attention_mask")}
    states = [one[0](dict(left))["token_embeddings"][left["attention_mask"].bool()] for one in (dense, model)]
    torch.testing.assert_close(*states, atol=1e-5, rtol=1e-4)


def test_distilbert_reads_two_texts_as_before(tiny_model_folders: dict[str, Path]) -> None:
    """A tokenizer may tell a second text from the first; DistilBERT does not."""
    dense = opened(tiny_model_folders["distilbert"])
    model = upcycle(dense, noise=0.0)
    pair = dense.tokenizer(TEXTS[0], TEXTS[1], return_token_type_ids=True, return_tensors="pt")
    assert pair["token_type_ids"].max() == 1
    before = dense[0].model.eval()(pair["input_ids"]).last_hidden_state
    torch.testing.assert_close(model[0].model.eval()(**pair).last_hidden_state, before, atol=1e-5, rtol=1e-4)


def test_electra_with_a_projection_is_refused(tiny_model_folders: dict[str, Path]) -> None:
    from transformers import ElectraConfig, ElectraModel

    narrow = opened(tiny_model_folders["electra"])
    narrow[0].model = ElectraModel(ElectraConfig(embedding_size=16, hidden_size=32, vocab_size=400))
    with pytest.raises(DistilvecError, match=r"\b16\b.*\b32\b") as caught:
        upcycle(narrow)
    assert "embedding_size" in str(caught.value.remedy)


def test_noise_is_relative_and_seeded(tiny_bert: Path) -> None:
    folder = str(tiny_bert)
    first, same, other = (upcycle(folder, noise=0.1, seed=seed)[0].model.state_dict() for seed in (1, 1, 2))
    dense = opened(tiny_bert)[0].model.encoder.layer[1].intermediate.dense.weight
    name = "encoder.layers.1.mlp.experts.mlp.w1"
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not torch.equal(first[name], other[name])
    difference = first[name].view(8, *dense.shape) - dense
    assert (difference.std((1, 2)) / dense.std()).tolist() == pytest.approx([0.1] * 8, rel=0.1)
    assert (difference[0] - difference[1]).abs().max() > 0


def test_it_is_a_student_that_ships(tiny_bert: Path, tmp_path: Path) -> None:
    model = upcycle(tiny_bert, experts=4)
    ship(model, tmp_path / "mixture")
    assert (tmp_path / "mixture" / "moe_encoder.py").is_file()
    again = load_student(tmp_path / "mixture", device="cpu")
    assert np.array_equal(again.encode(TEXTS), model.encode(TEXTS))
    twice = SentenceTransformer(str(tmp_path / "mixture"), device="cpu")
    assert np.array_equal(twice.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(DistilvecError, match="type distilvec_moe .*bert"):
        upcycle(model)


def test_balance_can_be_trained(tiny_bert: Path, sentences: list[str]) -> None:
    student = upcycle(tiny_bert, experts=4, every=3)
    router = mixtures(student[0].model)[3].router.layer
    hand_out_routing(student)
    tap, features = StudentTap(student), student.preprocess(sentences[:16])
    inputs: list[torch.Tensor] = []
    handle = router.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
    tap(features, views=1)
    handle.remove()
    with torch.no_grad():  # nearly every token goes to the first expert, and to another one
        router.weight[0] += 0.2 * inputs[0].mean(0)
    optimizer = torch.optim.Adam([router.weight], 0.01)
    seen, loads = [], []
    for _ in range(40):
        extras = tap(features, views=1).extras
        load = extras["router_load"][0]
        loss = router_balance(load, extras["router_probability"][0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        loads.append((load.sum((0, 1)).max() / load.sum()).item())
    assert seen[0] > 1.3 and seen[-1] < 1.05
    assert loads[0] > 0.45 and loads[-1] < 0.35


def test_models_that_cannot_be_upcycled_are_refused(tiny_model_folders: dict[str, Path]) -> None:
    with pytest.raises(DistilvecError, match="type qwen3 .*bert"):
        upcycle(opened(tiny_model_folders["qwen3"]))
    bert: Any = tiny_model_folders["bert"]
    for changes, given in (
        ({"top_k": 9}, "top_k 9"),
        ({"experts": 0}, "experts 0"),
        ({"every": 4}, "every 4"),
        ({"noise": -0.1}, "noise -0.1"),
    ):
        with pytest.raises(DistilvecError, match=rf"\b{given}\b.*\b3 blocks"):
            upcycle(bert, **changes)
