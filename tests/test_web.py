"""The web layout and the search page: what lies where, and refusals.

That Node and Chromium give the same vectors, and what the page does there, is `benchmarks/web.py`'s, which needs npm.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from distilvec.api import load
from distilvec.cli.measures import export
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.export import export_web, library
from distilvec.export.browser import pipeline_options
from distilvec.export.encoder import CONFIG, load_onnx
from distilvec.export.page import packed_index

pytest.importorskip("onnx", reason="the extra onnx is not installed")
TEXTS = ["<b>Bread & butter</b>", "שלום עולם", "The train leaves at noon. 🚂", '"quoted" text\nof two lines']


def archives(folder: Path) -> tuple[library.Package, ...]:
    """Stand-ins for the registry's two archives, and what describes them."""
    folder.mkdir()
    found = []
    for package in library.PACKAGES:
        file = folder / package.archive
        with tarfile.open(file, "w:gz") as archive:
            for path in package.files:
                content = f"// {path}\n".encode()
                entry = tarfile.TarInfo(f"package/{path}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        digest = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
        found.append(library.Package(package.name, package.version, digest, package.files, package.licence))
    return tuple(found)


@pytest.fixture(scope="module")
def exported(one_layer_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny BERT for the web, with a page."""
    place = tmp_path_factory.mktemp("web")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "PACKAGES", archives(place / "archives"))
        (place / "texts.jsonl").write_text("".join(json.dumps({"words": text}) + "\n" for text in TEXTS))
        with contextlib.redirect_stdout(io.StringIO()) as told:
            export(
                one_layer_bert,
                place / "out",
                web=True,
                texts=place / "texts.jsonl",
                text="words",
                library=place / "archives",
            )
    assert re.search(r"/out/page: 4 texts, \d\.\d MB\n.*http\.server", told.getvalue())
    return place / "out"


def test_files_lie_where_transformers_js_looks(exported: Path, one_layer_bert: Path) -> None:
    import onnx

    names = {file.relative_to(exported).as_posix() for file in exported.rglob("*") if file.is_file()}
    wanted = {"config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx", "onnx/model_quantized.onnx"}
    assert wanted | {"encoder.js", "README.md", CONFIG} <= names
    graph = onnx.load(str(exported / "onnx" / "model.onnx")).graph
    assert [value.name for value in graph.output] == ["sentence_embedding", "last_hidden_state"]
    assert json.loads((exported / "config.json").read_text())["model_type"] == "bert"
    tokenizer = json.loads((exported / "tokenizer_config.json").read_text())
    assert (tokenizer["pad_token"], tokenizer["model_max_length"]) == ("[PAD]", 128)
    assert '{ pooling: "mean", normalize: false }' in (exported / "README.md").read_text()


def test_python_opens_it_too(exported: Path, one_layer_bert: Path, sentences: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    wanted = SentenceTransformer(str(one_layer_bert), device="cpu").encode(sentences[:30])
    np.testing.assert_allclose(load(exported).encode(sentences[:30]), wanted, atol=1e-5)
    small = load_onnx(exported, precision="int8").encode(sentences[:30])
    assert np.abs(small - wanted).max() > 1e-4


def test_the_page_holds_all_that_it_needs(exported: Path, one_layer_bert: Path) -> None:
    from sentence_transformers import SentenceTransformer

    page = exported / "page"
    about = json.loads((page / "page.json").read_text())
    assert json.loads(gzip.decompress((page / "texts.bin").read_bytes())) == TEXTS
    packed = (page / "vectors.bin").read_bytes()
    scales = np.frombuffer(packed[: 4 * len(TEXTS)], dtype="<f4")
    rows = np.frombuffer(packed[4 * len(TEXTS) :], dtype=np.int8).reshape(len(TEXTS), -1) * scales[:, None]
    exact = SentenceTransformer(str(one_layer_bert), device="cpu").encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(rows @ rows.T, exact @ exact.T, atol=0.02)
    assert about == {"count": 4, "similarity": "cosine", "prompt": None, "bytes": about["bytes"]}
    assert gzip.decompress((page / "library" / "onnxruntime-wasm.bin").read_bytes()).startswith(b"// dist/ort-wasm")
    assert (page / "library" / "transformers.js").read_text() == "// dist/transformers.web.min.js\n"
    assert {file.name for file in (page / "library").glob("*LICENSE*")} == {
        "transformers-LICENSE.txt",
        "onnxruntime-web-LICENSE.txt",
    }
    for name in ("encoder.js", "config.json", "onnx/model_quantized.onnx", CONFIG):
        assert (page / "model" / name).read_bytes() == (exported / name).read_bytes()
    assert not (page / "model" / "onnx" / "model.onnx").exists()


def test_the_page_may_ask_no_other_machine(exported: Path) -> None:
    html = (exported / "page" / "index.html").read_text()
    assert "connect-src 'self'" in html and "default-src 'none'" in html
    inline = re.search(r'<script type="importmap">(.*?)</script>', html, re.DOTALL)
    assert inline is not None
    digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in html
    for target in json.loads(inline[1])["imports"].values():
        assert (exported / "page" / target).is_file()
    assert not re.search(r"https?://(?!localhost)", html)


def test_a_page_whose_script_does_not_start_says_why(exported: Path) -> None:
    """The words are part of the document, and the first thing that the script does is to remove them."""
    html, script, style = ((exported / "page" / name).read_text() for name in ("index.html", "page.js", "page.css"))
    missing = re.search(r'<section id="missing">(.*?)</section>', html, re.DOTALL)
    assert missing is not None and "file://" in missing[1] and "python3 -m http.server 8000" in missing[1]
    assert 'getElementById("missing").remove()' in script.split("function")[0]
    assert re.search(r"#missing \{[^}]*animation: appear", style)


def test_a_vector_of_zeros_stays_one() -> None:
    packed = packed_index(np.array([[0.0, 0.0], [3.0, -4.0]]), unit=True)
    numbers = np.frombuffer(packed[8:], dtype=np.int8).reshape(2, 2)
    assert numbers[0].tolist() == [0, 0] and numbers[1].tolist() == [95, -127]


def test_students_beyond_the_pipeline_of_transformers_js(
    tiny_model_folders: dict[str, Path], tiny_static: Path, tmp_path: Path
) -> None:
    """It finds no token states to read then, instead of leaving a part out."""
    import onnx
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense

    def opened(kind: str) -> SentenceTransformer:
        return SentenceTransformer(str(tiny_model_folders[kind]), device="cpu")

    assert pipeline_options(opened("xlmr")) == {"pooling": "first_token", "normalize": True}
    assert pipeline_options(opened("qwen3")) == {"pooling": "last_token", "normalize": True}
    assert pipeline_options(opened("gpt2")) is None  # padded on the right, where the last token is a pad
    asked = opened("bert")
    asked.prompts, asked.default_prompt_name = {"query": "find: "}, "query"
    assert pipeline_options(asked) is None
    headed = SentenceTransformer(modules=[*opened("bert"), Dense(32, 20)], device="cpu")
    assert pipeline_options(headed) is None
    export_web(tiny_static, tmp_path / "static", quantize=False)
    graph = onnx.load(str(tmp_path / "static" / "onnx" / "model.onnx")).graph
    assert [value.name for value in graph.output] == ["sentence_embedding"]
    assert "`sentence_embedding`" in (tmp_path / "static" / "README.md").read_text()


def test_the_library_is_the_one_that_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = archives(tmp_path / "archives")
    monkeypatch.setattr(library, "PACKAGES", packages)
    target = tmp_path / "library"
    target.mkdir()
    first = tmp_path / "archives" / packages[0].archive
    first.write_bytes(first.read_bytes() + b"x")
    with pytest.raises(DataError, match=rf"/{packages[0].archive}: .*{packages[0].version}.*`npm pack"):
        library.fetch_library(target, tmp_path / "archives")
    first.unlink()
    with pytest.raises(DistilvecError, match=rf"/archives: .*{packages[0].archive}.*`npm pack"):
        library.fetch_library(target, tmp_path / "archives")


def test_npm_is_missing_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="npm is not installed.*`npm pack .*--library"):
        library.fetch_library(tmp_path)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(EnvironmentProblem, match=r"npm error code ENOTFOUND.*--library"):
        library.fetch_library(tmp_path)


def test_wishes_that_contradict(one_layer_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match="--texts: .*--web"):
        export(one_layer_bert, tmp_path / "out", texts=tmp_path / "a.txt")
    with pytest.raises(DistilvecError, match="--library: .*--texts"):
        export(one_layer_bert, tmp_path / "out", web=True, library=tmp_path)
    with pytest.raises(DistilvecError, match="--texts: .*--no-quantize"):
        export_web(one_layer_bert, tmp_path / "out", quantize=False, search=["a text"])
    with pytest.raises(DistilvecError, match="--texts: .*no texts"):
        export_web(one_layer_bert, tmp_path / "out", search=[])


def test_the_other_layout_goes_and_what_is_not_ours_stays(exported: Path, tiny_static: Path, tmp_path: Path) -> None:
    from distilvec.export import export_onnx

    out = Path(shutil.copytree(exported, tmp_path / "out"))
    (out / "page" / "mine.txt").write_text("mine")
    export_onnx(tiny_static, out, quantize=False)
    left = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    assert "model.onnx" in left and "page/mine.txt" in left
    assert not {name for name in left if name.startswith(("onnx/", "page/")) and name != "page/mine.txt"}
    taken = tmp_path / "taken"
    (taken / "onnx").mkdir(parents=True)
    (taken / "onnx" / "mine.txt").write_text("mine")
    with pytest.raises(DistilvecError, match="/taken: .*onnx"):
        export_web(tiny_static, taken)
