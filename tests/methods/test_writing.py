"""What is asked of every method that teaches students to write, on tiny models of three kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.writing import WritingWorld, built, items

from distilvec.flow.teach import teacher_info
from distilvec.methods.table import TABLE, build_method, resolve
from distilvec.store.axes import axes_of
from distilvec.students.tap import StudentTap
from distilvec.tasks.generation import Generation
from distilvec.training.data import Collator
from distilvec.training.sample import make_sample
from distilvec.training.step import Distiller

#: Student, teacher: of two and three layers; OPT puts a token before every text.
PAIR, OTHER = ("gpt2", "qwen3"), ("opt", "gpt2")
CASES = [
    ("uld", {}),
    ("uld", {"preset": "paper"}),
    ("mined", {}),
    ("mined", {"preset": "paper"}),
    ("cdm", {}),
    ("cdm", {"preset": "code"}),
    ("multilevel_ot", {}),
    ("multilevel_ot", {"preset": "paper"}),
    ("dskd", {}),
    ("dskd", {"preset": "paper"}),
    ("emo", {}),
    ("distillmoe", {}),
    ("distillmoe", {"preset": "paper"}),
]


def over(cases: list[tuple[str, dict[str, Any]]]) -> pytest.MarkDecorator:
    ids = [f"{name}-{options.get('preset', 'sound')}" for name, options in cases]
    return pytest.mark.parametrize(("name", "options"), cases, ids=ids)


METHODS, DEFAULTS = over(CASES), over([case for case in CASES if not case[1]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("writing")


@pytest.fixture
def world(folder: Path) -> WritingWorld:
    return WritingWorld(folder / "world", *PAIR)


def test_every_method_that_writes_is_here() -> None:
    assert {name for name, _ in CASES} | {"sft"} == {name for name in TABLE if resolve(name).writes}


@METHODS
def test_gradients_reach_the_student_and_every_head(world: WritingWorld, name: str, options: dict[str, Any]) -> None:
    method, collator, distiller = world.method(name, **options)
    result = distiller(**collator(range(8)))
    assert torch.isfinite(result["loss"])
    result["loss"].backward()
    for key, parameter in distiller.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), key
    assert all(parameter.grad.abs().sum() > 0 for parameter in method.parameters() if parameter.grad is not None)


@METHODS
def test_live_and_stored_signals_give_one_loss(folder: Path, name: str, options: dict[str, Any]) -> None:
    live = WritingWorld(folder / "world", *PAIR).terms(name, range(12), "live", **options)
    stored = WritingWorld(folder / "world", *PAIR).terms(name, range(12), "store", **options)
    assert live.keys() == stored.keys()
    for key in live:
        torch.testing.assert_close(
            stored[key], live[key], rtol=2e-3, atol=2e-3, msg=lambda text, key=key: f"{key} {text}"
        )


@METHODS
def test_padding_on_the_other_side_changes_nothing(world: WritingWorld, name: str, options: dict[str, Any]) -> None:
    _, collator, distiller = world.method(name, **options)
    distiller.eval()
    before = distiller(**collator(range(10)))["terms"]
    for tokenizer in (world.student.tokenizer, world.teacher.model.tokenizer):  # type: ignore[attr-defined]
        tokenizer.padding_side = "right" if tokenizer.padding_side == "left" else "left"
    after = distiller(**collator(range(10)))["terms"]
    for key in before:
        torch.testing.assert_close(
            after[key], before[key], rtol=2e-3, atol=2e-4, msg=lambda text, key=key: f"{key} {text}"
        )


@DEFAULTS
def test_absent_items_contribute_nothing(world: WritingWorld, name: str, options: dict[str, Any]) -> None:
    _, collator, distiller = world.method(name, **options)
    distiller.eval()
    batch = collator(range(8))
    batch["teachers"][0]["present"][:] = False
    result = distiller(**batch)
    torch.testing.assert_close(result["terms"]["task"], distiller(**collator(range(8)))["terms"]["task"])
    taught = {key: value for key, value in result["terms"].items() if key != "task"}
    own = ("diversity", "gate", "true_cka")
    assert not any(value.abs() > 1e-6 for key, value in taught.items() if not key.startswith(own)), taught


def test_states_on_axes_are_read_by_the_teachers_own_head(folder: Path) -> None:
    """On all axes but one dskd says what it says of whole states."""
    whole, world = (WritingWorld(folder / place, *PAIR) for place in ("whole", "axes"))
    method, info = build_method("dskd", {}), StudentTap(world.student).info
    teacher = teacher_info(world.teacher, world.teacher.hidden - 1)
    needs = method.needs(info, [teacher])
    source = world.source(needs._replace(teachers=(replace(needs.of(0), axes=teacher.hidden),)), "store")
    axes = {layer: torch.from_numpy(each.matrix) for layer, each in axes_of(source.store.path).items()}
    rows = np.arange(len(world.corpus))
    sample = make_sample(world.student, world.tokens, [source], rows, seed=0, needs=needs)
    method.build(info, [replace(teacher, axes=axes)], sample)
    method.attach(world.student)
    distiller = Distiller(world.student, method, needs, Generation()).eval()
    found = distiller(**Collator(world.corpus, world.tokens, [source])(range(12)))["terms"]
    for key, value in whole.terms("dskd", range(12)).items():
        assert key == "loss" or float(found[key]) == pytest.approx(float(value), rel=0.1), key


@pytest.mark.parametrize("name", ["mined", "dskd", "emo", "distillmoe"])
def test_a_student_that_puts_a_token_before_every_text(folder: Path, name: str) -> None:
    world = WritingWorld(folder / "other", *OTHER)
    _, collator, distiller = world.method(name)
    result = distiller(**collator(range(8)))
    result["loss"].backward()
    assert torch.isfinite(result["loss"])
    assert result["terms"].get("aligned", 1.0) > 0.9


@DEFAULTS
def test_autocast_agrees_loosely_with_float32(world: WritingWorld, name: str, options: dict[str, Any]) -> None:
    _, collator, distiller = world.method(name, **options)
    distiller.eval()
    exact = distiller(**collator(range(8)))["terms"]
    with torch.autocast("cpu", torch.bfloat16):
        loose = distiller(**collator(range(8)))["terms"]
    for key, value in exact.items():
        torch.testing.assert_close(loose[key], value, rtol=0.1, atol=0.05, msg=lambda text, key=key: f"{key} {text}")


@pytest.mark.parametrize("name", ["uld", "mined", "cdm", "multilevel_ot"])
def test_a_student_that_is_its_teacher_is_at_the_minimum(folder: Path, name: str) -> None:
    """Every divergence from the teacher's next token is nothing."""
    terms = WritingWorld(folder / "same", "gpt2", "gpt2").terms(name, range(12))
    found = [key for key in ("uld", "mined", "cdm", "absolute", "logarithmic") if key in terms]
    assert found
    for key in found:
        assert terms[key] == pytest.approx(0, abs=1e-4), key
    # But for pieces of white space alone, which add nothing that is compared.
    assert terms.get("aligned", 1.0) > 0.95


def test_the_rest_is_one_class_and_its_error_is_bounded(folder: Path) -> None:
    """ULD of the k likeliest tokens is below that of all by at most twice the smaller rest."""
    from distilvec.functional import sorted_wasserstein
    from distilvec.methods.tokens.next_tokens import Compared, sorted_difference
    from distilvec.teachers.observing import candidates

    torch.manual_seed(0)
    ours, theirs = (4 * torch.randn(1, 2, 5, 300)).log_softmax(-1), 4 * torch.randn(2, 5, 400)
    seen = candidates(theirs)
    assert seen["logs"].shape == (2, 5, 64) and (seen["logs"].diff(dim=-1) <= 0).all()
    whole = torch.cat([seen["logs"], seen["rest"].unsqueeze(-1)], -1).exp().sum(-1)
    torch.testing.assert_close(whole, torch.ones(2, 5), rtol=1e-4, atol=1e-5)
    real = torch.ones(2, 5, dtype=torch.bool)
    found = Compared(ours, seen["ids"], seen["logs"], seen["rest"], real, (real.long(), real.long()))
    short, full = sorted_difference(found, 1.0), sorted_wasserstein(ours.exp(), theirs.softmax(-1))
    rest = 1 - ours.exp().topk(64, -1).values.sum(-1)
    bound = 2 * torch.minimum(rest, seen["rest"].exp())
    assert (short <= full + 1e-5).all() and (full - short <= bound + 1e-5).all()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_a_student_that_says_what_its_teacher_says_is_at_the_minimum_at_every_temperature(temperature: float) -> None:
    """Of 5,000 entries the teacher gives 64; the rest is one class on both sides before the temperature."""
    from distilvec.methods.tokens.dual_space import candidate_divergence
    from distilvec.methods.tokens.next_tokens import Compared, gathered_divergence, mapped_divergence, sorted_difference
    from distilvec.teachers.observing import candidates

    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, 3.0, 30.0]).view(1, 1, 4, 1) * torch.randn(1, 2, 4, 5000)
    seen, real = candidates(logits[0]), torch.ones(2, 4, dtype=torch.bool)

    def distances(logits: torch.Tensor) -> list[torch.Tensor]:
        ours = logits.log_softmax(-1)
        found = Compared(ours, seen["ids"], seen["logs"], seen["rest"], real, (real.long(), real.long()))
        return [
            candidate_divergence(ours, found, temperature),
            mapped_divergence(found, found.ids, temperature, None),
            gathered_divergence(found, torch.nn.Identity(), temperature, 64),
            sorted_difference(found, temperature),
        ]

    least = distances(logits.requires_grad_())
    for values in least:
        assert values.detach().abs().max() < 1e-4
        (gradient,) = torch.autograd.grad(values.sum(), logits, retain_graph=True)
        assert values is least[3] or gradient.abs().max() < 1e-4  # an absolute difference has a corner there
    other = distances(logits.detach() + 0.5 * torch.randn(logits.shape))
    assert all((values >= -1e-5).all() and values.mean() > 1e-3 for values in other)


def test_mapped_mass_by_hand() -> None:
    """Two of the teacher's tokens stand for one of the student's, one for none."""
    from distilvec.methods.tokens.next_tokens import Compared, mapped_divergence

    ours = torch.tensor([0.5, 0.25, 0.25]).log().view(1, 1, 1, 3)
    logs = torch.tensor([0.4, 0.3, 0.2]).log().view(1, 1, 3)
    real = torch.ones(1, 1, dtype=torch.bool)
    found = Compared(
        ours, torch.zeros(1, 1, 3).long(), logs, torch.tensor([[0.1]]).log(), real, (real.long(), real.long())
    )
    mapped = torch.tensor([[[0, 0, -1]]])
    expected = 0.7 * np.log(0.7 / 0.5) + 0.3 * np.log(0.3 / 0.5)  # the rest: 0.2 unmapped and 0.1, beside 0.25 + 0.25
    assert mapped_divergence(found, mapped, 1.0, None).item() == pytest.approx(expected, rel=1e-5)
    # Published: the two best only, which then have all mass.
    assert mapped_divergence(found, mapped, 1.0, 2).item() == pytest.approx(np.log(1 / 0.5), rel=1e-5)


def test_top_k_of_cdm_cuts_both_directions() -> None:
    from distilvec.methods.tokens.next_tokens import Compared, gathered_divergence, mapped_divergence
    from distilvec.teachers.observing import candidates

    torch.manual_seed(0)
    seen, real = candidates(torch.randn(1, 2, 40), 6), torch.ones(1, 2, dtype=torch.bool)
    ours = torch.randn(1, 1, 2, 40).log_softmax(-1)
    found = Compared(ours, seen["ids"], seen["logs"], seen["rest"], real, (real.long(), real.long()))
    known = found.ids.shape[-1]
    for top_k, kept, count in ((None, None, known), (2, 2, 2), (known + 1, None, known + 1)):
        method = build_method("cdm", {"top_k": top_k})
        method.entries, method.back = [torch.nn.Identity()], [torch.nn.Identity()]
        there = mapped_divergence(found, found.ids, 1.0, kept)
        back = gathered_divergence(found, torch.nn.Identity(), 1.0, count)
        assert torch.equal(method.next_divergence(0, found), (there + back) / 2)


def longer_head(kind: str, folder: Path) -> Path:
    """A tiny causal model whose head has more rows than its tokenizer has entries, all of them likely."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, place = built(kind, folder), folder / f"longer-{kind}"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    model.resize_token_embeddings(len(tokenizer) + 64, mean_resizing=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        model.get_output_embeddings().weight[len(tokenizer) :].normal_(0, 0.5)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.mark.parametrize("name", ["uld", "mined", "cdm", "multilevel_ot", "dskd"])
@pytest.mark.parametrize("side", ["student", "teacher"])
def test_heads_that_are_longer_than_their_tokenizer(folder: Path, name: str, side: str) -> None:
    """As Qwen's are; entries that no text is made of stand for none of the other side's."""
    kinds = dict(zip(("student", "teacher"), PAIR, strict=True))
    kinds[side] = longer_head(kinds[side], folder)
    terms = WritingWorld(folder / f"longer-{name}-{side}", **kinds).terms(name, range(8))
    assert all(torch.isfinite(value) for value in terms.values())


def test_a_tokenizer_that_cannot_spell_a_text(folder: Path) -> None:
    """Where the student has no entry for a character, places beyond it go with none, and the loss stays finite."""
    strange = [{**row, "answer": f"{row['answer'][:9]} 東京 {row['answer']}"} for row in items(24)]
    world = WritingWorld(folder / "strange", spelling_ascii(folder / "ascii"), "qwen3", rows=strange)
    _, collator, distiller = world.method("mined")
    batch = collator(range(8))
    ends = batch["teachers"][0]["alignments"]["ends"]
    lengths = (batch["features"]["answer_mask"] == 1).sum(-1)
    assert (ends[:, :, 0].amax(-1) < lengths).all() and (ends[:, 1, 0] >= 1).all()
    result = distiller(**batch)
    assert torch.isfinite(result["loss"]) and 0 < result["terms"]["aligned"] < 0.8


def spelling_ascii(folder: Path) -> Path:
    """GPT-2's tiny model with a tokenizer of ASCII characters and an unknown token."""
    import string

    from tests import tiny_models
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tiny_models.build_writer("gpt2", folder)
    pieces = ["<end>", "<unk>", "▁", *string.printable[:94]]
    backend = Tokenizer(models.BPE({piece: n for n, piece in enumerate(dict.fromkeys(pieces))}, [], unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", pad_token="<end>", unk_token="<unk>", model_max_length=256
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["mined", "dskd", "emo", "distillmoe", "multilevel_ot"])
def test_answers_that_are_cut_at_their_end(folder: Path, name: str) -> None:
    """Longer ones than the student reads, and of one token only."""
    rows = [{"prompt": f"number {n}", "answer": " ".join(["word"] * (60 if n % 2 else 1))} for n in range(16)]
    world = WritingWorld(folder / "long", "gpt2", "qwen3", max_length=24, rows=rows)
    assert world.tokens.truncated == 8
    _, collator, distiller = world.method(name)
    result = distiller(**collator(range(16)))
    result["loss"].backward()
    assert torch.isfinite(result["loss"])
    assert all(torch.isfinite(p.grad).all() for p in distiller.parameters() if p.grad is not None)
