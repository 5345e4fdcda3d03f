"""Students as ONNX: equal to torch, free in both axes, usable without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.disk import full_beyond

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.export import ExportReport, export_onnx, load_onnx
from distilvec.export.encoder import CONFIG, ExportSettings, OnnxEncoder
from distilvec.judging import CachedEncoder
from distilvec.students import load_student, ship, shrink

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def one_layer(folder: Path, target: Path) -> Path:
    """The model cut to its first layer: the exporter's work grows with their number, and not what is seen of it."""
    ship(shrink(load_student(folder, device="cpu"), layers=[1])[0], target)
    return target


def with_head(folder: Path, target: Path) -> Path:
    """The tiny model with Dense and Normalize behind its pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Normalize

    model = SentenceTransformer(str(folder), device="cpu")
    torch.manual_seed(3)
    head = Dense(32, 20, activation_function=None)
    student = SentenceTransformer(modules=[*model.children(), head, Normalize()], device="cpu")
    student.save(str(target), create_model_card=False)
    return target


@pytest.fixture(scope="module")
def student(one_layer_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_head(one_layer_bert, tmp_path_factory.mktemp("student") / "model")


@pytest.fixture(scope="module")
def exported(
    student: Path, sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ExportReport]:
    folder = tmp_path_factory.mktemp("exported")
    return folder, export_onnx(student, folder, texts=sentences[:24])


def expected(folder: Path, texts: list[Any], prompt_name: str | None = None) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return np.asarray(model.encode(texts, prompt_name=prompt_name, show_progress_bar=False))


def test_head_and_normalisation_are_in_the_graph(
    exported: tuple[Path, ExportReport], student: Path, sentences: list[str]
) -> None:
    encoder = load_onnx(exported[0])
    found = encoder.encode(sentences, batch_size=7)
    assert found.dtype == np.float32 and found.shape == (len(sentences), 20) == (len(sentences), encoder.width)
    np.testing.assert_allclose(found, expected(student, sentences), atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_both_axes_are_free_and_named(exported: tuple[Path, ExportReport]) -> None:
    import onnx
    import onnxruntime

    file = exported[0] / "model.onnx"
    model = onnx.load(str(file))
    for value in model.graph.input:
        assert [axis.dim_param for axis in value.type.tensor_type.shape.dim] == ["batch", "sequence"]
    output = model.graph.output[0].type.tensor_type.shape.dim
    assert (output[0].dim_param, output[1].dim_value) == ("batch", 20)
    assert model.opset_import[0].version >= 17
    session = onnxruntime.InferenceSession(str(file))
    names = [value.name for value in session.get_inputs()]
    assert names == json.loads((exported[0] / CONFIG).read_text())["inputs"]
    for rows, length in ((1, 1), (1, 90), (5, 3), (9, 128)):
        shape = np.ones((rows, length), dtype=np.int64)
        assert session.run(None, dict.fromkeys(names, shape))[0].shape == (rows, 20)


def test_batches_and_order_do_not_matter(exported: tuple[Path, ExportReport], sentences: list[str]) -> None:
    encoder = load_onnx(exported[0], threads=1)
    together = encoder.encode(sentences[:30])
    alone = np.concatenate([encoder.encode([text]) for text in sentences[:30]])
    np.testing.assert_allclose(together, alone, atol=2e-6)
    np.testing.assert_allclose(encoder.encode(sentences[:30][::-1]), together[::-1], atol=2e-6)
    assert encoder.encode([]).shape == (0, 20)


def test_pairs_are_read_as_one(exported: tuple[Path, ExportReport], student: Path) -> None:
    encoder, pairs = load_onnx(exported[0]), [("where is it?", "behind the door"), ("who?", "nobody knows")]
    plain = expected(student, pairs)
    np.testing.assert_allclose(encoder.encode(pairs), plain, atol=2e-6)
    np.testing.assert_allclose(CachedEncoder(encoder)(["\x1e".join(pair) for pair in pairs]), plain, atol=2e-6)


def test_the_report_says_size_agreement_and_speed(exported: tuple[Path, ExportReport]) -> None:
    folder, report = exported
    assert [variant.name for variant in report.variants] == ["torch", "onnx float32", "onnx int8"]
    whole, small = report.variant("onnx float32"), report.variant("onnx int8")
    assert whole.cosine_min > 0.99999
    assert small.size_bytes == (folder / "model_int8.onnx").stat().st_size < whole.size_bytes
    assert whole.size_bytes == (folder / "model.onnx").stat().st_size
    assert all(variant.texts_per_second > 0 and variant.latency_p50_ms > 0 for variant in report.variants)
    shown = report.table()
    assert all(word in shown for word in ("onnx float32", "model_int8.onnx", "p50 / p95 ms", "Agreement over 24 texts"))


def test_int8_is_close_and_really_other_numbers(exported: tuple[Path, ExportReport], sentences: list[str]) -> None:
    whole = load_onnx(exported[0]).encode(sentences)
    small = load_onnx(exported[0], precision="int8").encode(sentences)
    cosines = (whole * small).sum(1) / np.linalg.norm(small, axis=1)
    assert cosines.mean() > 0.95
    assert np.abs(whole - small).max() > 1e-4


def test_the_folder_can_be_used_without_torch(exported: tuple[Path, ExportReport], sentences: list[str]) -> None:
    folder, _ = exported
    assert {"tokenizer.json", "tokenizer_config.json", "modules.json", "pooling.json", CONFIG} <= {
        file.name for file in folder.iterdir()
    }
    assert not any(file.name.startswith(".export") for file in folder.iterdir())
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from distilvec.export import load_onnx\n"
        f"print(load_onnx({str(folder)!r}).encode([{sentences[0]!r}])[0, 0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(load_onnx(folder).encode([sentences[0]])[0, 0]), abs=1e-6)


def test_decoder_with_left_padding_last_token_and_prompts(
    tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    source, out = one_layer(tiny_model_folders["qwen3"], tmp_path / "source"), tmp_path / "out"
    export_onnx(source, out, quantize=False, texts=sentences[:12])
    encoder = load_onnx(out)
    np.testing.assert_allclose(encoder.encode(sentences[:40]), expected(source, sentences[:40]), atol=5e-6)
    asked = expected(source, sentences[:8], prompt_name="query")
    np.testing.assert_allclose(encoder.encode(sentences[:8], prompt_name="query"), asked, atol=5e-6)
    np.testing.assert_allclose(encoder.encode_query(sentences[:8]), asked, atol=5e-6)
    documents = expected(source, sentences[:8])
    np.testing.assert_allclose(encoder.encode_document(sentences[:8]), documents, atol=5e-6)
    judged = CachedEncoder(encoder)  # by whom it is evaluated
    np.testing.assert_allclose(judged.query(sentences[:8]), asked, atol=5e-6)
    assert encoder.prompts == load_student(source, device="cpu").prompts
    with pytest.raises(DistilvecError, match='"querry".*"query"'):
        encoder.encode(["x"], prompt_name="querry")
    with pytest.raises(DistilvecError, match=re.escape(f"{out}: ") + r".*model_int8\.onnx.*`distilvec export`"):
        load_onnx(out, precision="int8")


def test_documents_have_no_prompt_if_the_student_has_none(
    tmp_path: Path, exported_once: Path, sentences: list[str]
) -> None:
    """sentence-transformers gives every model an empty prompt for documents, and puts that before them."""
    model = load_student(exported_once, device="cpu")
    model.prompts = {"query": "query: ", "passage": "passage: "}
    model.save(str(tmp_path / "source"), create_model_card=False)
    student = load_student(tmp_path / "source", device="cpu")
    export_onnx(tmp_path / "source", tmp_path / "out", quantize=False, texts=sentences[:12])
    encoder = load_onnx(tmp_path / "out")
    told = np.asarray(student.encode_document(sentences[:8], show_progress_bar=False))
    np.testing.assert_allclose(encoder.encode_document(sentences[:8]), told, atol=5e-6)
    own, exported = (CachedEncoder(each) for each in (student, encoder))
    assert own.has_side("document") == exported.has_side("document")


def test_real_teacher(tmp_path: Path, real_teacher_folder: Path, sentences: list[str]) -> None:
    source = one_layer(real_teacher_folder, tmp_path / "source")
    report = export_onnx(source, tmp_path / "out", texts=sentences[:12])
    assert report.variant("onnx float32").cosine_min > 0.99999
    assert report.variant("onnx int8").cosine_mean > 0.97
    assert report.variant("onnx int8").size_bytes < 0.3 * report.variant("onnx float32").size_bytes


def test_a_graph_that_disagrees_is_refused_and_nothing_is_left(
    tmp_path: Path, student: Path, exported: tuple[Path, ExportReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    import onnx
    from onnx import numpy_helper

    from distilvec.export import convert

    (tmp_path / "kept.txt").write_text("mine")

    def damaged(model: object, file: Path, *, states: bool) -> list[str]:
        shutil.copyfile(exported[0] / "model.onnx", file)
        graph = onnx.load(str(file))
        rng = np.random.default_rng(0)
        for weight in graph.graph.initializer:
            values = numpy_helper.to_array(weight)
            if values.dtype == np.float32 and values.ndim == 2:
                noise = (values + 0.3 * rng.normal(size=values.shape)).astype(np.float32)
                weight.CopyFrom(numpy_helper.from_array(noise, weight.name))
        onnx.save(graph, str(file))
        return json.loads((exported[0] / CONFIG).read_text())["inputs"]

    monkeypatch.setattr(convert, "write_graph", damaged)
    with pytest.raises(DistilvecError, match=r"/model: .*'(a text|another one)'.*0\.999"):
        export_onnx(student, tmp_path, quantize=False, texts=["a text", "another one"])
    assert [file.name for file in tmp_path.iterdir()] == ["kept.txt"]


def test_missing_packages_name_the_extra(tmp_path: Path, student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxscript" else real(name, *rest)
    )
    with pytest.raises(EnvironmentProblem, match=r"distilvec\[onnx\]"):
        export_onnx(student, tmp_path)


def test_a_full_disk_is_not_reported_as_a_fault_of_the_model(tmp_path: Path, student: Path) -> None:
    with full_beyond(20_000), pytest.raises(EnvironmentProblem, match=r"/out: .*\(File too large\)"):
        export_onnx(student, tmp_path / "out", quantize=False)
    assert not (tmp_path / "out").exists()


def test_openvino_gives_the_same_vectors(exported: tuple[Path, ExportReport], sentences: list[str]) -> None:
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    folder = exported[0]
    wanted = load_onnx(folder).encode(sentences[:50])
    found = load_onnx(folder, engine="openvino", threads=1).encode(sentences[:50])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    encoder = load_onnx(folder, engine="openvino", threads=1)
    with ThreadPoolExecutor(4) as pool:  # each thread has a request of its own
        for row, vectors in zip(
            wanted[:40], pool.map(lambda text: encoder.encode([text]), sentences[:40]), strict=True
        ):
            np.testing.assert_allclose(vectors[0], row, atol=1e-5)
    small = load_onnx(folder, precision="int8", engine="openvino").encode(sentences[:50])
    assert 1e-4 < np.abs(small - wanted).max() < 0.5
    with pytest.raises(DistilvecError, match='"openvin".*"openvino"'):
        load_onnx(folder, engine="openvin")  # type: ignore[arg-type]


def test_exports_that_cannot_be_opened_are_refused(tmp_path: Path, exported: tuple[Path, ExportReport]) -> None:
    import shutil

    with pytest.raises(
        DistilvecError, match=re.escape(f"{tmp_path}: ") + r".*distilvec_onnx\.json.*`distilvec export`"
    ):
        load_onnx(tmp_path)
    broken = shutil.copytree(exported[0], tmp_path / "broken")
    (broken / "model.onnx").write_bytes((broken / "model.onnx").read_bytes()[:500])
    with pytest.raises(DataError, match=r"/broken: .*model\.onnx"):
        load_onnx(broken)
    with pytest.raises(DistilvecError, match="'a text'"):
        load_onnx(exported[0]).encode("a text")


def test_a_model_that_starts_with_neither_is_refused(tmp_path: Path, tiny_bert: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from distilvec.students import router

    router(SentenceTransformer(str(tiny_bert)), SentenceTransformer(str(tiny_bert))).save(
        str(tmp_path / "router"), create_model_card=False
    )
    with pytest.raises(DistilvecError, match=r"/router: .*\bRouter\b"):
        export_onnx(tmp_path / "router", tmp_path / "out")


def test_a_static_table_is_exported(tmp_path: Path, tiny_static: Path, sentences: list[str]) -> None:
    """Texts of unknown pieces only, no piece at all and more pieces than are read too."""
    texts = [*sentences[:40], "", "漢字かな", "the cat " * 40]
    report = export_onnx(tiny_static, tmp_path / "out", texts=sentences[:24])
    wanted = expected(tiny_static, texts)
    np.testing.assert_allclose(load_onnx(tmp_path / "out").encode(texts), wanted, atol=2e-6)
    np.testing.assert_allclose(load_onnx(tmp_path / "out").encode([""]), np.zeros((1, wanted.shape[1])))
    assert report.variant("onnx int8").cosine_min > 0.99


def test_mixtures_of_experts_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    from distilvec.students import upcycle

    ship(upcycle(load_student(tiny_bert), experts=2, every=1), tmp_path / "mixture")
    with pytest.raises(DistilvecError, match="/mixture: .*dense student"):
        export_onnx(tmp_path / "mixture", tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_hub_model_is_exported_with_its_size_and_files(
    exported_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    from distilvec.cli.measures import export

    SentenceTransformer(str(exported_once), device="cpu").save_pretrained(str(tmp_path / "small"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "small"))
    export("me/small", tmp_path / "onnx", quantize=False)
    told = capsys.readouterr().out
    assert "torch" in told and " 0 B" not in told
    assert (tmp_path / "onnx" / "modules.json").exists()


class Words:
    """One token of length 1 for each character; remembers how many texts came together."""

    def __init__(self) -> None:
        self.together: list[int] = []

    def encode_batch(self, texts: Sequence[Any], add_special_tokens: bool) -> list[Any]:
        self.together.append(len(texts))
        joint = ["|".join(text) if isinstance(text, tuple) else text for text in texts]
        return [
            SimpleNamespace(ids=list(map(ord, text)), attention_mask=[1] * len(text), type_ids=[0] * len(text))
            for text in joint
        ]


def counting_encoder() -> tuple[OnnxEncoder, Words]:
    """Its vectors are the sums of the characters."""
    config = {
        "inputs": ["input_ids", "attention_mask"],
        "output": "sentence_embedding",
        "padding_side": "right",
        "pad_id": 0,
        "pad_type_id": 0,
        "width": 1,
        "max_length": None,
        "prompts": {},
        "default_prompt_name": None,
    }
    session: Any = SimpleNamespace(run=lambda _, batch: [batch["input_ids"].sum(1, keepdims=True).astype(np.float32)])
    words: Any = Words()
    return OnnxEncoder(words, session, ExportSettings.model_validate(config)), words


def test_export_tokenizes_few_texts_at_a_time() -> None:
    encoder, words = counting_encoder()
    texts = [chr(97 + number % 26) * (1 + number % 7) for number in range(9000)]
    assert encoder.encode(texts)[:, 0].tolist() == [sum(map(ord, text)) for text in texts]
    assert sum(words.together) == 9000 and max(words.together) <= 4096


def test_export_takes_a_pair_as_a_list() -> None:
    encoder, _ = counting_encoder()
    pairs: list[Any] = [["a", "b"], ("a", "b"), "a\x1eb"]
    assert encoder.encode(pairs)[:, 0].tolist() == [sum(map(ord, "a|b"))] * 3
    wrong: list[Any] = [["a", "b", "c"]]
    with pytest.raises(DistilvecError, match=r"a pair of two, not \['a', 'b', 'c'\]"):
        encoder.encode(wrong)


def test_export_is_compared_on_joint_texts_as_pairs(exported_once: Path, tmp_path: Path) -> None:
    texts = ["where is it?\x1ebehind the door", "who?\x1enobody knows", "a single text"]
    report = export_onnx(exported_once, tmp_path / "export", texts=texts, quantize=False)
    assert report.variant("onnx float32").cosine_min > 0.9999
