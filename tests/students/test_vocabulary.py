"""Fewer word pieces: what is kept is encoded as before, whatever the kind of tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.students.architectures import saved
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import T5Config, T5EncoderModel

from distilvec.corpus import join_pair, split_pair
from distilvec.errors import DistilvecError
from distilvec.students import load_student, reshaping, ship, shrink
from distilvec.students.factorising import factorise
from distilvec.students.fresh_models import train_tokenizer
from distilvec.students.static_tables import count_pieces
from distilvec.students.vocabulary import fast_tokenizer, prune_tokenizer

KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]
BUDGET = {"bert": 250, "xlmr": 250, "modernbert": 330, "qwen3": 330, "mistral": 330}
OTHER = ["Zebras juggle quartz vases.", "naïve café — 東京 🎉", "x" * 30, "tokenization of unusual wordforms", ""]


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tiny_model_folders: dict[str, Path]) -> SentenceTransformer:
    student = load_student(tiny_model_folders[request.param], device="cpu").eval()
    student.kind = request.param
    return student


def check(original: Any, texts: list[str], budget: int, probe: list[str]) -> int:
    """Texts of kept pieces are encoded as before, none breaks; returns how many of the probes were such texts."""
    pruned = prune_tokenizer(original, texts, budget)
    old_ids = pruned.kept_ids.tolist()
    assert len(old_ids) == len(set(old_ids)) == len(pruned.tokenizer) <= budget
    kept = set(old_ids)
    same = 0
    for text in probe:
        before = original(text)["input_ids"]
        after = [old_ids[index] for index in pruned.tokenizer(text)["input_ids"]]
        if set(before) <= kept:
            same += 1
            assert after == before, text
        else:
            assert after != before
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        old, new = getattr(original, role + "_token_id"), getattr(pruned.tokenizer, role + "_token_id")
        assert (old is None and new is None) or old_ids[new] == old
    return same


def test_texts_of_kept_pieces_are_encoded_as_before(source: SentenceTransformer, sentences: list[str]) -> None:
    same = check(source.tokenizer, sentences[:100], BUDGET[source.kind], sentences + OTHER)
    assert 5 < same < 200  # both cases occur


def test_embeddings_of_such_texts_are_unchanged(
    source: SentenceTransformer, sentences: list[str], tmp_path: Path
) -> None:
    student, report = shrink(source, vocabulary=BUDGET[source.kind], texts=sentences)
    kept = set(prune_tokenizer(source.tokenizer, sentences, BUDGET[source.kind]).kept_ids.tolist())
    same = [text for text in sentences if set(source.tokenizer(text)["input_ids"]) <= kept]
    assert report.texts_unchanged == pytest.approx(len(same) / len(sentences))
    assert 0 < report.texts_unchanged < 1
    assert report.vocabulary_after == student[0].model.config.vocab_size == len(student.tokenizer)
    lost = (report.vocabulary_before - report.vocabulary_after) * 32
    assert report.parameters_before - report.parameters_after == lost
    same, some = sorted(same, key=len)[:20], sorted(sentences, key=len)[90:100]
    torch.testing.assert_close(
        torch.from_numpy(student.encode(same)), torch.from_numpy(source.encode(same)), rtol=1e-5, atol=1e-6
    )
    student.save(str(tmp_path / "pruned"), create_model_card=False)
    again = load_student(tmp_path / "pruned", device="cpu")
    assert (again.encode(some) == student.encode(some)).all()
    assert again.max_seq_length == source.max_seq_length
    assert again.tokenizer.padding_side == source.tokenizer.padding_side
    assert again[0].model.config.pad_token_id == again.tokenizer.pad_token_id


def test_every_byte_and_every_seen_character_stays(source: SentenceTransformer, sentences: list[str]) -> None:
    pruned = prune_tokenizer(source.tokenizer, sentences, BUDGET[source.kind])
    pieces = source.tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    # The tiny tokenizers were learnt from these texts, so that each of their characters is in one.
    single = {piece for piece in pieces if len(piece.removeprefix("##")) == 1}
    assert len(single) > 50
    assert single <= pruned.tokenizer.get_vocab().keys()
    unknown = pruned.tokenizer.unk_token_id
    for text in sentences:
        after = pruned.tokenizer(text, add_special_tokens=False)["input_ids"]
        before = source.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert (unknown in after) <= (source.tokenizer.unk_token_id in before), text


def test_the_most_used_pieces_are_kept(tiny_bert: Path) -> None:
    tokenizer = load_student(tiny_bert, device="cpu").tokenizer
    words = [word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 2][:20]
    texts = [" ".join([word] * (20 - rank)) for rank, word in enumerate(words)]
    with pytest.raises(DistilvecError) as refused:
        prune_tokenizer(tokenizer, texts, 50)
    floor = int(re.findall(r"at least (\d+) pieces", str(refused.value))[0])
    kept = set(prune_tokenizer(tokenizer, texts, floor + 10).tokenizer.get_vocab())
    assert [word in kept for word in words] == [True] * 10 + [False] * 10


def test_a_vocabulary_larger_than_the_corpus_uses_is_filled_up(real_teacher_folder: Path, sentences: list[str]) -> None:
    tokenizer = load_student(real_teacher_folder, device="cpu").tokenizer
    few = sentences[:20]
    pruned = prune_tokenizer(tokenizer, few, 20_000)
    assert len(pruned.kept_ids) == 20_000, "the number asked for is the number got"
    whole = [tokenizer.tokenize(text) for text in sentences]
    same = np.mean([pruned.tokenizer.tokenize(text) == pieces for text, pieces in zip(sentences, whole, strict=True)])
    used = {piece for text in few for piece in tokenizer.tokenize(text)}
    alone = np.mean([set(pieces) <= used for pieces in whole])
    assert same > alone + 0.3, (same, alone)
    assert not [piece for piece in pruned.tokenizer.get_vocab() if piece.startswith("[unused")]


def languages(words: dict[str, int]) -> Any:
    """A Unigram tokenizer of these words, longer ones before shorter ones, and of all their characters."""
    characters = sorted(set("".join(words)))
    vocabulary = [("<unk>", 0.0), ("▁", -3.0), *(("▁" + word, -float(rank)) for word, rank in words.items())]
    backend = Tokenizer(models.Unigram([*vocabulary, *((each, -20.0) for each in characters)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return fast_tokenizer(backend, unk_token="<unk>", pad_token="<unk>")


@pytest.mark.parametrize("kind", ["unigram", "qwen3"])
def test_a_small_language_keeps_as_much_as_a_large_one(
    kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    large, small = [f"haus{letter}" for letter in "abcdefgh"], [f"casa{letter}" for letter in "abcdefgh"]
    tokenizer = languages({word: rank for rank, word in enumerate(large + small, start=1)})
    if kind == "qwen3":
        tokenizer = train_tokenizer([*large, *small] * 9, 700)
    # The rarest word of the large language is as frequent as the most frequent one of the small language.
    texts = [word for place, word in enumerate(large) for _ in range(80 - 8 * place)]
    of_large = len(texts)
    texts += [word for place, word in enumerate(small) for _ in range(10 - place)]
    domains = [0] * of_large + [1] * (len(texts) - of_large)
    with pytest.raises(DistilvecError) as refused:
        prune_tokenizer(tokenizer, texts, 3)
    floor = int(re.findall(r"at least (\d+) pieces", str(refused.value))[0])

    def kept(vocabulary: int, of: list[int] | None) -> tuple[int, int]:
        pruned = prune_tokenizer(tokenizer, iter(texts), vocabulary, domains=of).tokenizer
        before, after = ({word: each.tokenize(word) for word in large + small} for each in (tokenizer, pruned))
        return tuple(sum(before[word] == after[word] for word in words) for words in (large, small))  # type: ignore

    budget = next(size for size in range(floor, floor + 60) if sum(kept(size, None)) >= 8)
    together, apart = kept(budget, None), kept(budget, domains)
    assert together[0] == 8, "the large language takes all"
    assert apart[0] >= 3 and apart[1] >= 3, apart
    assert kept(budget, [0] * len(texts)) == together


def test_pieces_of_other_scripts_come_last() -> None:
    words = {"дом": 1, "город": 2, "house": 3, "town": 4, "homes": 5, "mouse": 6}
    tokenizer = languages(words)
    texts = ["homes town wheres"]
    whole = prune_tokenizer(tokenizer, texts, 1000).tokenizer
    assert len(whole) == len(tokenizer), "with room enough they are kept"
    foreign = sum(bool(re.search("[а-я]", piece)) for piece in tokenizer.get_vocab())
    kept = prune_tokenizer(tokenizer, texts, len(tokenizer) - foreign).tokenizer.get_vocab()
    assert {"▁house", "▁mouse"} <= kept.keys()
    assert not {piece for piece in kept if re.search("[а-я]", piece)}


def test_byte_pairs_keep_the_merges_that_build_them(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    tokenizer = load_student(tiny_model_folders["qwen3"], device="cpu").tokenizer
    pruned = prune_tokenizer(tokenizer, sentences, 320).tokenizer
    model = json.loads(pruned.backend_tokenizer.to_str())["model"]
    built = {left + right for left, right in model["merges"]}
    longer = {piece for piece in model["vocab"] if len(piece) > 1 and piece not in pruned.all_special_tokens}
    assert longer
    assert longer <= built
    for piece in longer:
        assert pruned.backend_tokenizer.model.tokenize(piece)[0].value == piece


def sentencepiece_bpe(texts: list[str]) -> Any:
    """The kind that Mistral and Llama use: characters, byte fallback, the word's start marked."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=700, special_tokens=special, limit_alphabet=60, show_progress=False)
    )
    description = json.loads(backend.to_str())
    description["added_tokens"] = [entry for entry in description["added_tokens"] if entry["id"] < 3]
    return fast_tokenizer(Tokenizer.from_str(json.dumps(description)), unk_token="<unk>", pad_token="</s>")


def suffix_bpe(texts: list[str]) -> Any:
    """The kind that CLIP uses: the end of the word is marked."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<pad>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return fast_tokenizer(backend, unk_token="<unk>", pad_token="<pad>")


def added_words(texts: list[str]) -> Any:
    """Words added behind the model's pieces, one of which the texts use."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_tokens(["window", "quicksilver"])
    backend.add_special_tokens(["<pad>"])
    return fast_tokenizer(backend, pad_token="<pad>")


@pytest.mark.parametrize(("make", "budget"), [(sentencepiece_bpe, 450), (suffix_bpe, 350), (added_words, 320)])
def test_other_kinds_of_byte_pairs(make: Any, budget: int, sentences: list[str]) -> None:
    tokenizer = make(sentences)
    assert check(tokenizer, sentences[:100], budget, sentences + OTHER) > 5


def test_added_words_stay_where_the_texts_use_them(sentences: list[str]) -> None:
    texts = [*sentences, *["window " * 30] * 5]
    kept = prune_tokenizer(added_words(sentences), texts, 330).tokenizer.get_vocab()
    assert "window" in kept
    assert "quicksilver" not in kept


def test_a_real_tokenizer_pruned_hard(real_teacher_folder: Path, sentences: list[str]) -> None:
    tokenizer = load_student(real_teacher_folder, device="cpu").tokenizer
    assert check(tokenizer, sentences, 600, sentences + OTHER) > 5


def test_tokenizers_that_cannot_be_pruned_are_refused(tiny_bert: Path, sentences: list[str]) -> None:
    tokenizer = load_student(tiny_bert, device="cpu").tokenizer
    with pytest.raises(DistilvecError, match=r"vocabulary is 50, .*\b(\d+)\. .*\b\1 pieces"):
        prune_tokenizer(tokenizer, sentences, 50)
    with pytest.raises(DistilvecError, match="^texts: "):
        prune_tokenizer(tokenizer, iter(()), 300)
    with pytest.raises(DistilvecError, match=r"\b399\b.*\b100 rows"):
        prune_tokenizer(tokenizer, sentences, 300, rows=100)


def test_many_texts_are_sampled_from_all_over_and_from_both_sides_of_pairs(tiny_bert: Path) -> None:
    from distilvec.students.vocabulary import _Use

    backend = load_student(tiny_bert, device="cpu").tokenizer.backend_tokenizer
    use = _Use(backend, size=backend.get_vocab_size())
    use.count(f"{number}" for number in range(45_000))
    numbers = np.array([int(text) for text in use.sample])
    assert len(set(numbers)) == len(numbers) == 10_000
    assert np.bincount(numbers // 9_000, minlength=5) == pytest.approx(np.full(5, 2_000), rel=0.1)
    assert np.bincount(numbers % 2) == pytest.approx(np.full(2, 5_000), rel=0.05)


def test_the_two_texts_of_a_joint_item_are_read_apart(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_student(tiny_bert, device="cpu").tokenizer
    words = [word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 2][:12]
    items = [join_pair(first, second) for first, second in zip(words[::2], words[1::2], strict=True)]
    with pytest.raises(DistilvecError) as refused:
        prune_tokenizer(tokenizer, items, 50)
    floor = int(re.findall(r"at least (\d+) pieces", str(refused.value))[0])
    assert set(words) <= set(prune_tokenizer(tokenizer, items, floor + len(words)).tokenizer.get_vocab())
    counts = count_pieces(tokenizer.backend_tokenizer, items, len(tokenizer))
    assert counts[tokenizer.convert_tokens_to_ids(words)].tolist() == [1] * 12 and counts.sum() == 12
    assert set(words) <= {piece.removeprefix("Ġ") for piece in train_tokenizer(items * 9, 400).get_vocab()}

    used = []
    monkeypatch.setattr(reshaping, "factorise", lambda *given: used.append(given[3:]) or factorise(*given))
    shrink(load_student(tiny_bert, device="cpu"), embedding=12, texts=items)
    [(use, lengths)] = used
    assert use[tokenizer.convert_tokens_to_ids(words)].tolist() == [1] * 12
    assert lengths.tolist() == [len(tokenizer(*split_pair(item))["input_ids"]) for item in items]


def test_vocabulary_of_a_table_with_two_names_is_cut(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
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
