"""Tiny sentence-transformers folders with random weights, one for each kind of model that behaves differently.

Made from a seed, so every run gets the same weights. The tokenizers are the same, too; WordPiece and Unigram are not
trained therefore, since their trainers settle ties by the order of a hash. Run as a script to look at them:

    python tests/tiny_models.py FOLDER [KIND ...]
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the folder above `tests` is not on the path then
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.english import sentences

WIDTH = 32
VOCABULARY = 400
LONGEST_PIECE = 6


def build(kind: str, folder: Path) -> Path:
    """Write the tiny model of this kind into `folder` and return it.

    bert: WordPiece, 3 layers, mean pooling. xlmr: Unigram, 2 layers, CLS pooling, Normalize.
    electra, distilbert: as bert.
    modernbert: byte-level BPE, 4 layers (local and global attention), mean pooling.
    qwen3: decoder, byte-level BPE, left padding, last token, Normalize, a query prompt.
    mistral: decoder without causal mask (LLM2Vec), BPE on bytes, left padding, mean pooling.
    gpt2: decoder with learned positions, byte-level BPE, last token.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    recipe = KINDS[kind]
    tokenizer = recipe["tokenizer"]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = recipe["model"](len(tokenizer), tokenizer)
        _spread(model)
    with tempfile.TemporaryDirectory() as bare:
        model.eval().save_pretrained(bare)
        tokenizer.save_pretrained(bare)
        transformer = Transformer(bare, max_seq_length=recipe["length"])
        modules: list[Any] = [transformer, Pooling(WIDTH, pooling_mode=recipe["pooling"])]
        if recipe["normalize"]:
            modules.append(Normalize())
        student = SentenceTransformer(modules=modules, prompts=recipe["prompts"], device="cpu")
        student.save(str(folder), create_model_card=False)
    return folder


def build_writer(kind: str, folder: Path) -> Path:
    """Write a tiny causal language model into `folder`, a plain transformers folder: gpt2, opt or qwen3.

    qwen3 pads on the left and ties its head to its table; opt puts a token before every text.
    """
    import torch

    recipe = WRITERS[kind]
    tokenizer = recipe["tokenizer"]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = recipe["model"](len(tokenizer), tokenizer)
        _spread(model)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build_all(folder: Path, kinds: Iterable[str] | None = None) -> dict[str, Path]:
    """Kind -> folder, for all kinds or the given ones."""
    return {kind: build(kind, folder / kind) for kind in kinds or KINDS}


def _spread(model: Any) -> None:
    """Larger weights than a fresh model has: otherwise all texts get nearly the same vector."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.15 / parameter.std())


def _fast(tokenizer: Any, **special: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special)


def _pieces(normalizer: Any, pre_tokenizer: Any, count: int, within: str = "") -> Counter[str]:
    """The sentences' characters and the parts of words that cover most of them; `within` marks what starts none."""
    found: Counter[str] = Counter()
    for sentence in sentences():
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(sentence)):
            for start in range(len(word)):
                for end in range(start + 1, min(start + LONGEST_PIECE, len(word)) + 1):
                    found[within * (start > 0) + word[start:end]] += 1

    def worth(piece: str) -> tuple[bool, int, str]:
        length = len(piece.removeprefix(within))
        return length > 1, -length * found[piece], piece

    return Counter({piece: found[piece] for piece in sorted(found, key=worth)[:count]})


def _wordpiece() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    pieces = [*special, *_pieces(normalizer, pre_tokenizer, VOCABULARY - len(special), within="##")]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return _fast(
        tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )


def _unigram() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    normalizer, pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    pieces = _pieces(normalizer, pre_tokenizer, VOCABULARY - len(special))
    scored = [(piece, math.log(times / pieces.total())) for piece, times in pieces.items()]
    tokenizer = Tokenizer(models.Unigram([*((token, 0.0) for token in special), *scored], special.index("<unk>")))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return _fast(
        tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def _byte_level(special: list[str], template: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    used = [(token, tokenizer.token_to_id(token)) for token in special if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return tokenizer


def _modernbert_tokenizer() -> Any:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = _byte_level(special, "[CLS] $A [SEP]")
    return _fast(
        tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )


def _qwen_tokenizer() -> Any:
    tokenizer = _byte_level(["<|endoftext|>", "<|im_end|>"], "$A <|endoftext|>")
    return _fast(tokenizer, pad_token="<|endoftext|>", eos_token="<|im_end|>", padding_side="left")


def _mistral_tokenizer() -> Any:
    tokenizer = _byte_level(["<unk>", "<s>", "</s>"], "<s> $A")
    return _fast(tokenizer, pad_token="</s>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", padding_side="left")


def _gpt2_tokenizer() -> Any:
    return _fast(_byte_level(["<|endoftext|>"], "$A"), pad_token="<|endoftext|>", eos_token="<|endoftext|>")


def _opt_tokenizer() -> Any:
    tokenizer = _byte_level(["<s>", "<pad>", "</s>"], "</s> $A")
    return _fast(tokenizer, pad_token="<pad>", bos_token="</s>", eos_token="</s>")


def _bert(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertModel(config)


def _electra(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import ElectraConfig, ElectraModel

    config = ElectraConfig(
        vocab_size=vocabulary,
        embedding_size=WIDTH,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    return ElectraModel(config)


def _distilbert(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=vocabulary,
        dim=WIDTH,
        n_layers=3,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    return DistilBertModel(config)


def _xlmr(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import XLMRobertaConfig, XLMRobertaModel

    config = XLMRobertaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=130,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return XLMRobertaModel(config)


def _modernbert(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=256,
        global_attn_every_n_layers=2,
        local_attention=16,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    return ModernBertModel(config)


def _qwen3(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Qwen3Model(config)


def _mistral(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import MistralConfig, MistralModel

    config = MistralConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_position_embeddings=512,
        sliding_window=None,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config.is_causal = False  # what makes a decoder attend in both directions
    return MistralModel(config)


def _gpt2(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        n_positions=256,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return GPT2Model(config)


def _writing_qwen3(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import Qwen3ForCausalLM

    config = _qwen3(vocabulary, tokenizer).config
    config.tie_word_embeddings = True
    return Qwen3ForCausalLM(config)


def _writing_gpt2(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel(_gpt2(vocabulary, tokenizer).config)


def _writing_opt(vocabulary: int, tokenizer: Any) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return OPTForCausalLM(config)


WRITERS: dict[str, dict[str, Any]] = {
    "gpt2": {"tokenizer": _gpt2_tokenizer, "model": _writing_gpt2},
    "opt": {"tokenizer": _opt_tokenizer, "model": _writing_opt},
    "qwen3": {"tokenizer": _qwen_tokenizer, "model": _writing_qwen3},
}


_QUERY = "Instruct: Given a question, retrieve passages that answer it\nQuery:"

KINDS: dict[str, dict[str, Any]] = {
    "bert": {"tokenizer": _wordpiece, "model": _bert, "pooling": "mean", "length": 128},
    "electra": {"tokenizer": _wordpiece, "model": _electra, "pooling": "mean", "length": 128},
    "distilbert": {"tokenizer": _wordpiece, "model": _distilbert, "pooling": "mean", "length": 128},
    "xlmr": {"tokenizer": _unigram, "model": _xlmr, "pooling": "cls", "length": 128, "normalize": True},
    "modernbert": {"tokenizer": _modernbert_tokenizer, "model": _modernbert, "pooling": "mean", "length": 192},
    "qwen3": {
        "tokenizer": _qwen_tokenizer,
        "model": _qwen3,
        "pooling": "lasttoken",
        "length": 256,
        "normalize": True,
        "prompts": {"query": _QUERY, "document": ""},
    },
    "mistral": {"tokenizer": _mistral_tokenizer, "model": _mistral, "pooling": "mean", "length": 256},
    "gpt2": {"tokenizer": _gpt2_tokenizer, "model": _gpt2, "pooling": "lasttoken", "length": 256},
}
for _recipe in KINDS.values():
    _recipe.setdefault("normalize", False)
    _recipe.setdefault("prompts", None)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for _kind, _folder in build_all(Path(sys.argv[1]), sys.argv[2:] or None).items():
        print(_kind, _folder)
