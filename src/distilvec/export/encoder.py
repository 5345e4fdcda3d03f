"""Encoding with an exported student: tokenizers and onnxruntime, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distilvec.corpus.keys import split_pair
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem, nearest
from distilvec.extras import need
from distilvec.validation import first_problem

if TYPE_CHECKING:
    import onnxruntime
    from tokenizers import Encoding, Tokenizer

CONFIG = "distilvec_onnx.json"
#: Precision -> file, by layout: ours, and the one that transformers.js opens.
LAYOUTS = {
    "plain": {"float32": "model.onnx", "int8": "model_int8.onnx"},
    "web": {"float32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"},
}
Precision = Literal["float32", "int8"]
Engine = Literal["onnxruntime", "openvino"]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: A text, or a pair of two: a tuple, a list, or a joint item of a corpus.
Text = str | Sequence[str]
#: Texts that are cut into tokens together: what the tokenizer says of a long one takes many kilobytes.
_CHUNK = 4096


class ExportSettings(BaseModel):
    """The settings that an export states; see `export_onnx`."""

    model_config = ConfigDict(strict=True)
    inputs: list[Literal["input_ids", "attention_mask", "token_type_ids"]]
    output: str
    add_special_tokens: bool = True
    padding_side: Literal["left", "right"]
    pad_id: int
    pad_type_id: int
    width: int = Field(gt=0)
    max_length: int | None
    truncation_side: Literal["left", "right"] = "right"
    prompts: dict[str, str]
    default_prompt_name: str | None


class OnnxEncoder:
    """An exported student. Made by `load_onnx`.

    Attributes:
        width: of the vectors.
        max_length: tokens that are read of a text; None = all.
        prompts: name -> what is put before a text.
        tokenizer: cuts a text after `max_length`, and pads nothing.
    """

    def __init__(
        self, tokenizer: Tokenizer, session: onnxruntime.InferenceSession | OpenVinoSession, settings: ExportSettings
    ) -> None:
        self.tokenizer, self._session = tokenizer, session
        self._inputs: list[str] = list(settings.inputs)
        self._output = [settings.output]
        self._special, self._left = settings.add_special_tokens, settings.padding_side == "left"
        self._pad = {"input_ids": settings.pad_id, "attention_mask": 0, "token_type_ids": settings.pad_type_id}
        self.width, self.max_length = settings.width, settings.max_length
        self.prompts, self.default_prompt_name = settings.prompts, settings.default_prompt_name

    def encode(
        self, texts: Sequence[Text], *, prompt_name: str | None = None, batch_size: int = 32
    ) -> npt.NDArray[np.float32]:
        """Vectors [n, width] in the order of the texts.

        Args:
            texts: plain texts, or pairs of two that are read as one.
            prompt_name: one of `prompts`; default is the model's own default prompt, if it has one.
            batch_size: texts per run; texts of like length go together.

        Raises:
            DistilvecError: an unknown prompt, one string instead of a list, or a list that is no pair.
        """
        if isinstance(texts, str):
            raise DistilvecError(f"encode takes a list of texts, not the string {texts[:40]!r}", remedy="Write [text].")
        prompt = self._prompt(prompt_name)
        plain = [as_read(text) for text in texts]
        read = [prompt + text if isinstance(text, str) else (prompt + text[0], text[1]) for text in plain]
        order = sorted(range(len(read)), key=lambda row: -len("".join(read[row])))
        vectors = np.empty((len(read), self.width), dtype=np.float32)
        for start in range(0, len(order), _CHUNK):
            chunk = sorted(order[start : start + _CHUNK])
            cut = self.tokenizer.encode_batch([read[row] for row in chunk], add_special_tokens=self._special)
            pieces = sorted(zip(chunk, cut, strict=True), key=lambda piece: -len(piece[1].ids))
            for first in range(0, len(pieces), batch_size):
                chosen, rows = zip(*pieces[first : first + batch_size], strict=True)
                found = self._session.run(self._output, self._batch(rows))[0]
                vectors[list(chosen)] = found.reshape(len(rows), self.width)
        return vectors

    def encode_query(self, texts: Sequence[Text], **options: Any) -> npt.NDArray[np.float32]:
        """As `encode`, with the model's prompt for queries where it has one."""
        return self.encode(texts, prompt_name="query" if "query" in self.prompts else None, **options)

    def encode_document(self, texts: Sequence[Text], **options: Any) -> npt.NDArray[np.float32]:
        """As `encode`, with the model's prompt for documents where it has one."""
        names = (name for name in ("document", "passage", "corpus") if name in self.prompts)
        return self.encode(texts, prompt_name=next(names, None), **options)

    def _prompt(self, name: str | None) -> str:
        chosen = name if name is not None else self.default_prompt_name
        if chosen is None:
            return ""
        if chosen not in self.prompts:
            known = nearest(chosen, self.prompts) if self.prompts else "This model has none."
            raise DistilvecError(f'there is no prompt "{chosen}"', remedy=known)
        return self.prompts[chosen]

    def _batch(self, rows: Sequence[Encoding]) -> dict[str, npt.NDArray[np.int64]]:
        """Padded to the longest row, on the model's own side."""
        length = max(1, *(len(row.ids) for row in rows))
        batch = {name: np.full((len(rows), length), self._pad[name], dtype=np.int64) for name in self._inputs}
        for place, row in enumerate(rows):
            count = len(row.ids)
            where = slice(length - count, length) if self._left else slice(0, count)
            values = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
            for name in self._inputs:
                batch[name][place, where] = values[name]
        return batch


def as_read(text: Text) -> str | tuple[str, str]:
    """A text, or the two of a pair, however it is given; anything else is refused."""
    if isinstance(text, str):
        return split_pair(text)
    if not isinstance(text, list | tuple) or len(text) != 2 or not all(isinstance(part, str) for part in text):
        raise DistilvecError(f"an item is a text or a pair of two, not {text!r:.80}", where="texts")
    first, second = text
    return first, second


class OpenVinoSession:
    """A graph compiled for the processor, with the `run` of onnxruntime's sessions.

    It computes in float32 wherever the graph does: left to itself, OpenVINO takes bfloat16 where the processor has it.
    """

    def __init__(self, file: Path, threads: int | None = None) -> None:
        need("This engine", "openvino", "openvino")
        import openvino

        core = openvino.Core()
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        self._model = core.compile_model(core.read_model(str(file)), "CPU", settings)

    def run(self, outputs: Sequence[str], feed: Mapping[str, npt.NDArray[np.int64]]) -> list[npt.NDArray[Any]]:
        """The named outputs for these inputs."""
        # A request of its own: the one of the model's own call is shared by all threads that are in it.
        tensors = self._model.create_infer_request().infer(dict(feed))
        return [np.array(tensors[name]) for name in outputs]


def _onnxruntime(file: Path, threads: int | None) -> onnxruntime.InferenceSession:
    need("ONNX", "onnx", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


ENGINES = {"onnxruntime": _onnxruntime, "openvino": OpenVinoSession}


def load_onnx(
    path: str | Path, *, precision: Precision = "float32", threads: int | None = None, engine: Engine = "onnxruntime"
) -> OnnxEncoder:
    """Open a folder that `export_onnx` wrote, in either layout.

    Args:
        path: the folder.
        precision: which of its models.
        threads: of the engine; default is its own choice.
        engine: what computes: onnxruntime, or openvino (extra `openvino`).

    Raises:
        DistilvecError: the folder, or the model of this precision, is not there.
        DataError: a file is damaged.
        EnvironmentProblem: the engine is not installed.
    """
    from tokenizers import Tokenizer

    folder = Path(path).expanduser()
    files = LAYOUTS["web" if (folder / LAYOUTS["web"]["float32"]).is_file() else "plain"]
    if precision not in files:
        raise DistilvecError(f'"{precision}" is not a precision', remedy=nearest(precision, files))
    for file in (CONFIG, "tokenizer.json", files[precision]):
        if not (folder / file).is_file():
            remedy = "Give a folder that `distilvec export` has written."
            if file == files["int8"] and (folder / files["float32"]).is_file():
                remedy = "Run `distilvec export` again, without --no-quantize."
            raise DistilvecError(f"there is no {file}", where=str(folder), remedy=remedy)
    if engine not in ENGINES:
        raise DistilvecError(f'"{engine}" is not an engine', remedy=nearest(engine, ENGINES))
    try:
        settings = ExportSettings.model_validate_json((folder / CONFIG).read_bytes())
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        session = ENGINES[engine](folder / files[precision], threads)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if settings.max_length:
            tokenizer.enable_truncation(settings.max_length, direction=settings.truncation_side)
        encoder = OnnxEncoder(tokenizer, session, settings)
        encoder.encode(["a text", "a longer text"])  # settings and graph belong together
        return encoder
    except EnvironmentProblem:
        raise
    except ValidationError as error:
        raise DataError(first_problem(error), where=str(folder / CONFIG), remedy="Export the model again.") from error
    except Exception as error:  # both libraries raise their own kinds, some of them plain Exception
        raise DataError(f"the exported model cannot be opened ({error})", where=str(folder)) from error
