"""A BERT-shaped student as GGUF, which llama.cpp and Ollama open."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError
from distilvec.export.convert import (
    LEAST_COSINE,
    begun,
    check_agreement,
    check_texts,
    left_behind,
    made_whole,
    row_cosines,
)
from distilvec.export.graph import check_model, is_static
from distilvec.export.llama_tensors import EXACT, Weights, llama_weights
from distilvec.export.llama_vocabulary import write_vocabulary
from distilvec.extras import need
from distilvec.modules.blocks import find_transformer
from distilvec.modules.pipeline import token_limit
from distilvec.progress import at_work
from distilvec.words import size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Precision of the matrices -> file.
FILES = {"f16": "model-f16.gguf", "q8_0": "model-q8_0.gguf"}
_MODELS = ("bert", "electra", "roberta", "xlm-roberta", "camembert", "distilbert")
_POOLINGS = {"mean": "MEAN", "cls": "CLS", "lasttoken": "LAST"}
#: llama.cpp has one GELU for all of them.
_ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python")


class GgufFile(NamedTuple):
    """A file, and the least cosine and the largest difference of a number between llama.cpp's vectors and torch's."""

    path: Path
    size_bytes: int
    cosine_min: float | None = None
    difference: float | None = None


class GgufReport(NamedTuple):
    """The outcome of `export_gguf`; `texts` is how many were compared, `notes` what a user should know."""

    files: list[GgufFile]
    texts: int
    notes: list[str]

    def text(self) -> str:
        """Return what a person reads."""
        found = [f", cosine {c:.6f} or more, numbers within {d:.1g}" if c else "" for *_, c, d in self.files]
        lines = [f"{each.path}: {size(each.size_bytes)}{said}" for each, said in zip(self.files, found, strict=True)]
        compared = f"Compared with the student over {self.texts} texts, opened with llama-cpp-python."
        missing = "Not compared with the student: pip install llama-cpp-python, and export again."
        return "\n".join([*lines, compared if self.texts else missing, *self.notes])


@at_work
def export_gguf(model_folder: str | Path, out_folder: str | Path, *, quantize: bool = True) -> GgufReport:
    """Write a BERT-shaped student with its tokenizer and pooling as GGUF, and compare it with torch in llama.cpp.

    A narrow table (`shrink.embedding`) is written as one more block (`llama_tensors`). If llama-cpp-python is not
    installed, the files are written and not compared.

    Args:
        model_folder: a sentence-transformers folder, or hub id: BERT, ELECTRA, RoBERTa, XLM-R, CamemBERT, DistilBERT
            with a WordPiece or Unigram tokenizer, a pooling, and at most `Normalize` behind it.
        out_folder: where the files go; those of an older export there are replaced.
        quantize: also write 8-bit matrices (q8_0).

    Raises:
        DistilvecError: the student has a part that llama.cpp's BERT has no place for, llama.cpp gives other vectors, or
            the folder holds what no export wrote.
        EnvironmentProblem: the extra `gguf` is not installed, or the folder cannot be written.
    """
    need("GGUF", "gguf", "gguf")
    where = str(model_folder)
    out, source, student = begun(model_folder, out_folder, "gguf", tuple(FILES.values()))
    pooling, notes = _readable(student, where)
    weights, added = llama_weights(find_transformer(student).model, where)  # type: ignore[union-attr]
    longest, positions = token_limit(student), len(weights["position_embd.weight"])
    if longest is not None and longest < positions:
        notes.append(f"The student cuts texts after {longest} tokens, llama.cpp after {positions}: cut them before.")
    notes += ["The narrow table became one more block, because llama.cpp has none."] * added
    texts = _compared(student, longest or positions)
    files = []
    with made_whole(out, "gguf", FILES["f16"]) as made:
        for precision in list(FILES)[: 1 + quantize]:
            file = made / FILES[precision]
            notes += [each for each in _write(file, student, weights, pooling, where) if each not in notes]
            least, most = _agreement(student, file, texts, where)
            files.append(GgufFile(out / file.name, file.stat().st_size, least, most))
    return GgufReport(files, len(texts), [*notes, *left_behind(source)])


def _readable(student: SentenceTransformer, where: str) -> tuple[str, list[str]]:
    """Name of the pooling in GGUF, and notes."""
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling

    check_model(student, where)
    parts: list[Any] = list(student.children())
    config: Any = getattr(getattr(parts[0], "model", None), "config", None)
    activation = getattr(config, "hidden_act", None) or getattr(config, "activation", None)
    behind = [type(part).__name__ for part in parts[2:] if not isinstance(part, Normalize)]
    what, remedy = "", "Export it as ONNX (without --to gguf)."
    if is_static(student):
        what = "a static table"
    elif config.model_type not in _MODELS:
        what = f"a model of type {config.model_type}: it reads {', '.join(_MODELS)}"
    elif activation not in _ACTIVATIONS:
        what = f"the activation {activation}"
    elif len(parts) < 2 or not isinstance(parts[1], Pooling) or parts[1].pooling_mode not in _POOLINGS:
        what = "this pooling: it has mean, cls and last token"
    elif behind:
        what = f"a {behind[0]} behind the pooling"
        remedy = f"Train with student.space: own, and save it without truncate_dim. {remedy}"
    if what:
        raise DistilvecError(f"llama.cpp's BERT has no place for {what}", where=where, remedy=remedy)
    notes = []
    if len(parts) == 2:
        notes.append("llama.cpp brings vectors to length 1, which the student does not: compare directions.")
    default = student.default_prompt_name
    prompts = [f"{text!r} ({name}{', default' * (name == default)})" for name, text in student.prompts.items() if text]
    if prompts:
        notes.append(f"Put prompts before the texts yourself, a GGUF file has no place for them: {', '.join(prompts)}.")
    return _POOLINGS[parts[1].pooling_mode], notes


def _write(file: Path, student: SentenceTransformer, weights: Weights, pooling: str, where: str) -> list[str]:
    """Write one GGUF file; returns notes on the tokenizer."""
    import gguf

    config: Any = find_transformer(student).model.config  # type: ignore[union-attr]
    half = file.name == FILES["f16"]
    writer: Any = gguf.GGUFWriter(file, "bert")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(len(weights["position_embd.weight"]))
    writer.add_embedding_length(weights["token_embd.weight"].shape[1])
    writer.add_block_count(1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk.")))
    writer.add_feed_forward_length(len(weights["blk.0.ffn_up.weight"]))
    writer.add_head_count(getattr(config, "n_heads", None) or config.num_attention_heads)
    writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", 1e-12))
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType[pooling])
    notes = write_vocabulary(writer, student.tokenizer, len(weights["token_embd.weight"]), where)
    for name, value in weights.items():
        if value.ndim == 1 or name in EXACT or name.startswith(("position", "token_types")):  # what is added
            writer.add_tensor(name, value)
        elif half or value.shape[1] % 32:  # so many numbers q8_0 scales together
            writer.add_tensor(name, value.astype(np.float16))
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return notes


def _compared(student: SentenceTransformer, most: int) -> list[str]:
    """Texts that fit into the student as a whole, as llama.cpp cuts otherwise; none where it is not installed."""
    tokenizer: Any = student.tokenizer
    texts = check_texts(student) if importlib.util.find_spec("llama_cpp") else []
    return [text for text in texts if len(tokenizer(text, truncation=False, verbose=False)["input_ids"]) <= most]


def _agreement(student: SentenceTransformer, file: Path, texts: Sequence[str], where: str) -> tuple[Any, Any]:
    """The least cosine and the largest difference of numbers between llama.cpp's vectors and the student's, or None."""
    if not texts:
        return None, None
    expected = np.asarray(student.encode(list(texts), prompt="", normalize_embeddings=True, show_progress_bar=False))
    vectors = llama_vectors(file, texts)
    cosines = row_cosines(vectors, expected)
    if file.name == FILES["f16"]:
        check_agreement(cosines, texts, LEAST_COSINE, where)
    return float(cosines.min()), float(np.abs(vectors - expected).max())


def llama_vectors(file: Path, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """float32 [n, d] at length 1, as llama.cpp gives them for a GGUF file."""
    from llama_cpp import Llama

    with closing(Llama(str(file), embedding=True, n_ctx=0, n_batch=8192, n_ubatch=8192, verbose=False)) as model:
        return np.array([model.embed(text, normalize=True) for text in texts], np.float32)
