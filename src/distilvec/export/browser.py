"""A student in the layout that transformers.js opens, for browsers and Node."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.export.convert import ExportReport, write_export
from distilvec.export.graph import INSIDE_LIMIT, backend_tokenizer, is_static, weight_bytes
from distilvec.export.library import fetch_library
from distilvec.export.page import PAGE, write_page
from distilvec.folders import check
from distilvec.modules.opening import locate
from distilvec.modules.pipeline import default_prompt, token_limit
from distilvec.progress import at_work

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ENCODER = "encoder.js"
#: What this layout has beside the plain one.
NAMES = ("onnx", "config.json", "package.json", "README.md", ENCODER, PAGE)


@at_work
def export_web(
    model_folder: str | Path,
    out_folder: str | Path,
    *,
    quantize: bool = True,
    search: Sequence[str] | None = None,
    title: str = "Search",
    library: str | Path | None = None,
) -> ExportReport:
    """Write a student as transformers.js opens it: `onnx/model.onnx`, `onnx/model_quantized.onnx` and its tokenizer.

    The graphs hold everything after the tokenizer, as `export_onnx` writes them; the output `sentence_embedding` is
    what encode() gives. `encoder.js` beside them reads texts as encode() does: prompts, length and special tokens
    included.
    Where transformers.js' own `feature-extraction` can do the rest (mean, first or last token, length 1; no Dense and
    no default prompt), the graphs also give `last_hidden_state`, which it reads; elsewhere it finds nothing to read and
    says so.

    With texts to search, `page/` is a static page that finds them by meaning, for any web server. It is complete in
    itself: the int8 graph, an index of one byte a number, the texts, and transformers.js from the npm registry.

    Args:
        model_folder, out_folder, quantize: as for `export_onnx`.
        search: texts that the page searches; None = no page.
        title: of the page.
        library: folder with the archives of transformers.js (`fetch_library`); None = npm fetches them.

    Raises:
        DistilvecError: as for `export_onnx`; the weights are too many for a browser; a page of no texts, or without the
            int8 graph.
        EnvironmentProblem: as for `export_onnx`; or npm cannot fetch transformers.js.
    """
    if search is not None and not (quantize and search):
        what = "there are no texts to search" if quantize else "the page runs the int8 model"
        raise DistilvecError(what, where="--texts", remedy=None if not search else "Leave --no-quantize out.")
    check(Path(out_folder).expanduser(), "export", NAMES)
    with tempfile.TemporaryDirectory(prefix="distilvec-library-") as place:
        if search is not None:  # first: whoever has no npm should know at once
            fetch_library(Path(place), None if library is None else Path(library))

        def beside(student: SentenceTransformer, made: Path) -> None:
            _write_layout(student, locate(model_folder), made)
            if search is not None:
                write_page(made, student, search, title, Path(place))

        return write_export(
            model_folder,
            out_folder,
            layout="web",
            names=NAMES,
            states=lambda student: pipeline_options(student) is not None,
            quantized=quantize,
            beside=beside,
        )


def pipeline_options(student: SentenceTransformer) -> dict[str, Any] | None:
    """Return the options by which transformers.js' `feature-extraction` does what the student does; None if none do."""
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling

    rest = list(student.children())[1:]
    if is_static(student) or not rest or not isinstance(rest[0], Pooling):
        return None
    if default_prompt(student) or not all(isinstance(each, Normalize) for each in rest[1:]):
        return None
    mode = {"mean": "mean", "cls": "first_token", "lasttoken": "last_token"}.get(str(rest[0].pooling_mode))
    if mode is None or (mode == "last_token" and student.tokenizer.padding_side != "left"):
        return None
    return {"pooling": mode, "normalize": len(rest) > 1}


def _write_layout(student: SentenceTransformer, source: Path, made: Path) -> None:
    """Write what transformers.js reads besides the graphs, `encoder.js`, and a page that says how to use both."""
    if weight_bytes(student) > INSIDE_LIMIT:
        raise DistilvecError(
            f"{weight_bytes(student):,} bytes of weights are too many for a browser", where=str(source)
        )
    _write_json(made / "config.json", _model_config(student))
    _write_json(made / "tokenizer_config.json", _tokenizer_config(student))
    # Without it, older versions of Node take encoder.js for a script of their old kind.
    _write_json(made / "package.json", {"private": True, "type": "module"})
    code = files("distilvec.export") / "web" / ENCODER
    (made / ENCODER).write_text(code.read_text(encoding="utf-8"), encoding="utf-8")
    (made / "README.md").write_text(_readme(student, source), encoding="utf-8")


def _model_config(student: SentenceTransformer) -> dict[str, Any]:
    if is_static(student):
        return {"model_type": "static", "hidden_size": student.get_embedding_dimension()}
    inner: Any = student[0]
    return dict(json.loads(inner.model.config.to_json_string(use_diff=False)))


def _tokenizer_config(student: SentenceTransformer) -> dict[str, Any]:
    """As transformers.js reads it: tokens as words, and the student's own length."""
    tokenizer: Any = student.tokenizer
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizer"}
    length = token_limit(student)
    if length is not None:
        config["model_max_length"] = length
    if is_static(student):
        config["pad_token"] = backend_tokenizer(student).id_to_token(0)
        return config
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        if getattr(tokenizer, name, None) is not None:
            config[name] = str(getattr(tokenizer, name))
    return config | {"padding_side": tokenizer.padding_side, "truncation_side": tokenizer.truncation_side}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _readme(student: SentenceTransformer, source: Path) -> str:
    """The student's own card, where it has one, and how to use it from JavaScript."""
    card = source / "README.md"
    before = card.read_text(encoding="utf-8") if card.is_file() else f"# {source.resolve().name}\n"
    options = pipeline_options(student)
    prompts = {name: text for name, text in student.prompts.items() if text}
    lines = [
        "## In the browser and in Node",
        "",
        "```js",
        'import * as transformers from "@huggingface/transformers";',
        'import { open } from "./encoder.js";',
        "",
        'const student = await open(transformers);  // { dtype: "fp32" } for the float model',
        'const [vector] = await student.encode(["a text"]);',
        "```",
        "",
    ]
    if prompts:
        listed = ", ".join(f"`{name}` ({text!r})" for name, text in prompts.items())
        lines += [f"Prompts are named in the second argument, `encode(texts, name)`: {listed}.", ""]
    if options is None:
        lines += [
            "The graph's output `sentence_embedding` is the vector. The pipeline `feature-extraction` cannot do what "
            "this student does after its transformer, and finds nothing to read.",
        ]
    else:
        told = f'{{ pooling: "{options["pooling"]}", normalize: {str(options["normalize"]).lower()} }}'
        lines += [
            f"The pipeline `feature-extraction` gives the same vectors with `{told}`, except of texts that are too "
            "long, from which it cuts the last special token too.",
        ]
    return f"{before.rstrip()}\n\n" + "\n".join(lines) + "\n"
