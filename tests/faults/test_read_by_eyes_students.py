"""What was found by reading students, exports, serving and indexes: each as the smallest case that shows it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router, StaticEmbedding
from tests.serving.test_serve import batched, running

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.export import export_onnx
from distilvec.export.encoder import OnnxEncoder
from distilvec.folders import check, check_model
from distilvec.indexes import check_index
from distilvec.indexes.rows import cosines, top
from distilvec.indexes.variants import IndexVariant, Reader
from distilvec.kinds.image.students import fresh_resnet
from distilvec.modules.kernel_head import GaussianKernels
from distilvec.modules.pipeline import set_length
from distilvec.modules.text_ids import TextIds
from distilvec.serving import Batcher, application
from distilvec.students import StudentTap, describe_student, load_student, router, shrink
from distilvec.students.fit_texts import token_batches
from distilvec.students.narrowing import _pooled
from distilvec.students.reshaping import Reshaping
from distilvec.students.shape import Kept, Shape
from distilvec.students.vocabulary import plain_backend
from distilvec.teachers import load_teacher

MIB = 1 << 20


def peak(work: Callable[[], Any]) -> int:
    """Bytes that are taken at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# indexes


def test_a_search_for_many_vectors_takes_no_more_memory_than_one_for_some() -> None:
    vectors = np.random.default_rng(0).normal(size=(4096, 4)).astype(np.float32)
    assert peak(lambda: top(vectors, vectors, 1)) < 1.2 * peak(lambda: top(vectors[:512], vectors, 1)) + MIB


def test_cosines_are_not_taken_of_all_rows_at_once() -> None:
    vectors = np.ones((200_000, 16), np.float16)
    assert peak(lambda: cosines(vectors, vectors)) < 20 * MIB


def unread(texts: Sequence[str], count: int) -> list[str]:
    """The last ones, of which the tiny models know no piece."""
    return [*texts[:-count], *(chr(0x16A0 + number) * 3 for number in range(count))]


def test_texts_that_the_model_cannot_read_let_no_other_models_index_pass(
    tiny_static: Path, sentences: list[str]
) -> None:
    texts = unread(sentences, 20)
    vectors = load_student(tiny_static, device="cpu").encode(texts, show_progress_bar=False)
    assert not vectors[-20:].any()
    noise = np.random.default_rng(0).normal(size=vectors.shape)
    assert check_index(tiny_static, vectors[:-20], texts[:-20], rows=None, device="cpu").belongs
    found = check_index(tiny_static, vectors + 0.2 * noise, texts, rows=None, device="cpu")
    assert found.least > 0.99 and not found.belongs


def test_an_index_of_texts_that_the_model_cannot_read_is_not_judged(tiny_static: Path, sentences: list[str]) -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 16))
    with pytest.raises(DataError, match=r"^texts: the model reads something in 10 of 200 .*language"):
        check_index(tiny_static, vectors, unread(sentences, 190), rows=None, device="cpu")


# routers


@pytest.fixture
def routed(tiny_model_folders: dict[str, Path]) -> Callable[[str, str], SentenceTransformer]:
    """A router over two of the tiny models, query and document."""

    def make(query: str, document: str) -> SentenceTransformer:
        sides = (SentenceTransformer(str(tiny_model_folders[kind]), device="cpu") for kind in (query, document))
        return SentenceTransformer(
            modules=[Router.for_query_document(*(list(side.children()) for side in sides))], device="cpu"
        )

    return make


def lengths(model: SentenceTransformer) -> list[Any]:
    inner: Any = model[0]
    return [route[0].max_seq_length for route in inner.sub_modules.values()]


def test_each_route_has_a_length_of_its_own(routed: Callable[[str, str], SentenceTransformer]) -> None:
    model = routed("bert", "qwen3")
    model[0].sub_modules["query"][0].max_seq_length = 100_000
    set_length(model, None, "routed")
    assert lengths(model) == [128, 256]
    set_length(model, 20, "routed")
    assert lengths(model) == [20, 20]
    with pytest.raises(DistilvecError, match=r"^routed, route query: max_length is 200, .* 128"):
        set_length(model, 200, "routed")


def test_a_router_with_a_static_route_is_a_teacher(tiny_bert: Path, tiny_static: Path, tmp_path: Path) -> None:
    bert = load_student(tiny_bert, device="cpu")
    words = StaticEmbedding(bert.tokenizer, embedding_dim=32)
    bert[0].max_seq_length = 1000
    made = SentenceTransformer(modules=[Router.for_query_document([words], list(bert.children()))], device="cpu")
    made.save(str(tmp_path / "routed"))
    teacher = load_teacher(name="routed", model=tmp_path / "routed", device="cpu")
    assert np.allclose(teacher.encode(["a cat"]), bert.encode(["a cat"]), atol=1e-5)
    for model in (tmp_path / "routed", tiny_static):
        with pytest.raises(DistilvecError, match="static embeddings read whole texts"):
            load_teacher(name="short", model=model, max_length=20, device="cpu")


def test_a_reader_gives_every_route_its_length_back(
    routed: Callable[[str, str], SentenceTransformer], tmp_path: Path
) -> None:
    routed("bert", "qwen3").save(str(tmp_path / "routed"))
    reader = Reader(tmp_path / "routed", device="cpu")
    assert reader.lengths == [64, 128]
    reader.read(["a cat"], IndexVariant(length=64))
    assert lengths(reader._model) == [128, 256]


# tokenizers without a core in Rust


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with the tokenizer of protein models, which is written in Python."""
    from transformers import BertConfig, BertModel, EsmTokenizer

    folder = tmp_path_factory.mktemp("slow") / "model"
    config = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(folder)
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *"ABCDEFGHIKLMNPQRSTVWY", "<mask>"]
    (folder / "pieces.txt").write_text("\n".join(pieces))
    made: Any = EsmTokenizer
    made(str(folder / "pieces.txt")).save_pretrained(folder)
    return folder


def test_a_student_with_a_tokenizer_in_python_is_refused_before_anything_is_taught(slow: Path) -> None:
    model = load_student(slow, device="cpu")
    told = r"EsmTokenizer, is written in Python.*tokenizer\.json"
    with pytest.raises(DistilvecError, match=f"^model: .*{told}"):
        StudentTap(model)  # what a run looks at first
    for refused in (lambda: plain_backend(model.tokenizer), lambda: TextIds(model.tokenizer, 10)):
        with pytest.raises(DistilvecError, match=told):
            refused()


def test_a_model_with_a_tokenizer_in_python_teaches_and_is_described(slow: Path) -> None:
    described = describe_student(load_student(slow, device="cpu"))
    assert described["tokenizer"] == "EsmTokenizer" and described["vocabulary"] == 26
    assert load_teacher(name="slow", model=slow, device="cpu").encode(["A C D", "W"]).shape == (2, 16)


# cutting


def test_a_table_is_cut_again_wherever_its_model_lies(tiny_bert: Path, sentences: list[str]) -> None:
    """Beside a model on a GPU stands one of another dtype: what is fitted is float32 on the CPU."""
    once, _ = shrink(load_student(tiny_bert, device="cpu"), embedding=16, texts=sentences[:20])
    model: Any = once[0].model
    state = {name: value.double() for name, value in model.state_dict().items()}
    cut: Any = SimpleNamespace(
        shape=Shape(embedding=8), report=Kept(), _count=lambda pieces, _: (torch.ones(pieces), torch.tensor([5, 9]))
    )
    Reshaping._factorise(cut, state, model.config)
    assert state["embeddings_project.weight"].shape == (32, 8) and cut.report.embedding > 0


def test_texts_that_are_padded_in_front_lose_their_padding(tiny_model_folders: dict[str, Path]) -> None:
    model = load_student(tiny_model_folders["qwen3"], device="cpu")
    assert model.tokenizer.padding_side == "left"
    texts = ["a cat", "a cat sleeps under the table " * 5]
    (batch,) = token_batches(model, texts, 6)
    assert batch["input_ids"].shape == (2, 6) and batch["attention_mask"].any(dim=1).all()
    whole = model.preprocess(texts[:1])["input_ids"][0]
    assert torch.equal(batch["input_ids"][0][batch["attention_mask"][0].bool()], whole[-6:])


def test_a_source_in_training_is_read_without_dropout(tiny_bert: Path) -> None:
    model, texts = load_student(tiny_bert, device="cpu"), ["a cat", "a dog that barks"]
    model.train()
    model[0].model.embeddings.eval()
    with torch.no_grad():
        first, again = (_pooled(model, list(model.children()), texts) for _ in range(2))
    assert torch.equal(first, again)
    assert model.training and model[0].model.encoder.training and not model[0].model.embeddings.training


# shipping


@pytest.mark.parametrize(
    ("prompts", "default", "queries", "documents"),
    [
        ({"query": "", "document": "", "mine": "own: "}, "mine", "", ""),
        ({"query": "ask: ", "corpus": "text: "}, None, "ask: ", "text: "),
    ],
)
def test_the_router_reads_as_its_models_do(
    prompts: dict[str, str], default: str | None, queries: str, documents: str, tiny_bert: Path
) -> None:
    model = load_student(tiny_bert, device="cpu")
    model.prompts, model.default_prompt_name = prompts, default
    made = router(model, model)
    assert made.prompts == {"query": queries, "document": documents}
    assert np.allclose(made.encode_query(["a cat"]), model.encode_query(["a cat"]), atol=1e-5)
    if "document" in prompts:  # sentence-transformers takes "corpus" from this version on, others do not
        assert np.allclose(made.encode_document(["a cat"]), model.encode_document(["a cat"]), atol=1e-5)


@pytest.mark.parametrize("look", [check_model, lambda place: check(place, "export", ["a"])])
def test_a_place_that_nobody_may_look_at_is_none_to_write_to(
    look: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **options: Any) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(EnvironmentProblem, match=r"/closed: .*Permission denied.*choose another place"):
        look(tmp_path / "closed")


# kernels


def test_kernels_take_no_memory_that_their_weights_do_not_have(tmp_path: Path) -> None:
    GaussianKernels(8, ["a"], [4], depth=1, hidden=4).save(tmp_path)
    file = tmp_path / "kernels" / "kernels.json"
    content = json.loads(file.read_text())
    assert GaussianKernels.load(tmp_path)[0].names == ["a"]
    for wrong in ({"hidden": 4_000}, {"depth": 10**12}, {"components": 10**15}, {"width": None}, {"width": 16}):
        file.write_text(json.dumps({"kernels": content["kernels"] | wrong}))
        made: list[int] = []
        handle = torch.nn.modules.module.register_module_parameter_registration_hook(
            lambda module, name, value: made.append(value.numel() if value.device.type == "cpu" else 0)  # noqa: B023
        )
        try:
            with pytest.raises(DataError, match="the kernels cannot be read"):
                GaussianKernels.load(tmp_path)
        finally:
            handle.remove()
        assert sum(made) == 0, wrong


@pytest.mark.parametrize("linked", ["kernels/kernels.safetensors", "kernels"])
def test_kernels_are_not_read_from_elsewhere(linked: str, tmp_path: Path) -> None:
    GaussianKernels(8, ["a"], [4], depth=1, hidden=4).save(tmp_path / "model")
    (tmp_path / "model" / linked).rename(tmp_path / "elsewhere")
    (tmp_path / "model" / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="leads out of the model's folder"):
        GaussianKernels.load(tmp_path / "model")


# exports


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
    return OnnxEncoder(words, session, config), words


def test_an_export_cuts_few_texts_at_a_time() -> None:
    encoder, words = counting_encoder()
    texts = [chr(97 + number % 26) * (1 + number % 7) for number in range(9000)]
    assert encoder.encode(texts)[:, 0].tolist() == [sum(map(ord, text)) for text in texts]
    assert sum(words.together) == 9000 and max(words.together) <= 4096


def test_an_export_takes_a_pair_as_a_list() -> None:
    encoder, _ = counting_encoder()
    pairs: list[Any] = [["a", "b"], ("a", "b"), "a\x1eb"]
    assert encoder.encode(pairs)[:, 0].tolist() == [sum(map(ord, "a|b"))] * 3
    wrong: list[Any] = [["a", "b", "c"]]
    with pytest.raises(DistilvecError, match=r"a pair of two, not \['a', 'b', 'c'\]"):
        encoder.encode(wrong)


def test_an_export_is_compared_on_joint_texts_as_pairs(one_layer_bert: Path, tmp_path: Path) -> None:
    texts = ["where is it?\x1ebehind the door", "who?\x1enobody knows", "a single text"]
    report = export_onnx(one_layer_bert, tmp_path / "export", texts=texts, quantize=False)
    assert report.variant("onnx float32").cosine_min > 0.9999


# serving


def posted(address: str, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{address}/v1/embeddings", json=body)


def test_clients_name_no_files_and_no_addresses(tmp_path: Path) -> None:
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(written, "png")
    (tmp_path / "secret.png").write_bytes(written.getvalue())
    uri = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    with running(application(fresh_resnet(), "images")) as address:
        assert posted(address, input=[uri]).status_code == 200
        for place in (str(tmp_path / "secret.png"), "http://localhost:1/a.png", "file:///etc/passwd"):
            refused = posted(address, input=[uri, place])
            assert refused.status_code == 400 and "input 1 is no data URI" in refused.json()["error"]["message"]
        broken = posted(address, input=["data:image/png;base64,AAAA"])
        assert broken.status_code == 400 and "cannot read" in broken.json()["error"]["message"]


def test_a_photograph_may_be_longer_than_a_text() -> None:
    from PIL import Image

    written = io.BytesIO()
    noise = np.random.default_rng(0).integers(256, size=(300, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(written, "png")
    uri = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    assert len(uri) > 200_000
    with running(application(fresh_resnet(), "images")) as address:
        assert posted(address, input=[uri]).status_code == 200
        assert posted(address, input=["x" * 200_001]).status_code == 413


def test_of_a_model_of_texts_and_images_neither(tiny_bert: Path, tmp_path: Path) -> None:
    model = load_student(tiny_bert, device="cpu")

    class Both:
        modalities = ["text", "image"]

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

    both: Any = Both()
    with running(application(both, "both")) as address:
        assert posted(address, input=["a cat on a sofa"]).status_code == 200
        for place in (str(tmp_path / "a.JPG"), "https://localhost:1/x"):
            assert posted(address, input=[place]).status_code == 400


def test_the_batch_size_reaches_the_model(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu")
    encode, sizes = model.encode, []

    def counted(texts: list[str], **options: Any) -> Any:
        sizes.append(options.get("batch_size"))
        return encode(texts, **options)

    model.encode = counted  # type: ignore[method-assign, assignment]
    with running(application(model, "small", batch=7)) as address:
        assert posted(address, input="a cat").status_code == 200
    assert sizes == [7]


def test_a_bad_input_fails_its_own_request_alone() -> None:
    def encode(texts: Sequence[str], _: str | None) -> Any:
        if "bad" in texts:
            raise ValueError("bad text")
        return np.array([[len(text)] for text in texts], np.float32)

    async def work(batcher: Batcher) -> list[Any]:
        asked = [["first"], ["a", "bc"], ["bad"], ["def"]]
        return await asyncio.gather(*(batcher.vectors(texts) for texts in asked), return_exceptions=True)

    first, good, bad, other = batched(work, encode=encode, batch=8)
    assert first[0, 0] == 5 and good[:, 0].tolist() == [1, 2] and isinstance(bad, ValueError) and other[0, 0] == 3


# chat templates


@pytest.fixture
def chatty(tiny_model_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A bare decoder whose tokenizer has a chat template."""
    folder = tmp_path / "chatty"
    student = load_student(tiny_model_folders["qwen3"], device="cpu")
    student[0].model.save_pretrained(str(folder))
    tokenizer = student.tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(str(folder))
    return folder


def test_a_bare_decoder_with_a_chat_template_is_a_student_of_plain_texts(
    chatty: Path, tmp_path: Path, sentences: list[str]
) -> None:
    import distilvec

    student = load_student(chatty, device="cpu")
    ids = student.preprocess(["a text"])["input_ids"]
    assert ids.tolist() == [student.tokenizer("a text")["input_ids"]]
    distilvec.distill(
        str(chatty),
        student=str(chatty),
        corpus={"path": sentences, "holdout": 0.0},
        method="cosine",
        output=tmp_path / "out",
        training={"max_steps": 1, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    shipped = SentenceTransformer(str(tmp_path / "out" / "student"), device="cpu")
    assert shipped.preprocess(["a text"])["input_ids"].tolist() == ids.tolist()


def test_a_bare_decoder_with_a_chat_template_is_a_teacher_of_plain_texts(
    chatty: Path, tmp_path: Path, sentences: list[str]
) -> None:
    """Its vectors are those of the same folder without the template."""
    plain = tmp_path / "plain"
    shutil.copytree(chatty, plain)
    (plain / "chat_template.jinja").unlink()
    teacher, other = load_teacher(model=chatty, device="cpu"), load_teacher(model=plain, device="cpu")
    vectors = teacher.together(sentences[:4])
    assert np.array_equal(vectors, other.together(sentences[:4]))
    assert not np.allclose(vectors, SentenceTransformer(str(chatty), device="cpu").encode(sentences[:4]), atol=1e-3)
    assert teacher.tokens is not None


def test_a_student_with_a_chat_template_is_refused_before_anything_is_taught(
    chatty: Path, tmp_path: Path, sentences: list[str]
) -> None:
    import distilvec

    SentenceTransformer(str(chatty), device="cpu").save(str(tmp_path / "saved"), create_model_card=False)
    asked: list[str] = []

    def teacher(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.random.default_rng(0).normal(size=(len(texts), 8))

    with pytest.raises(DistilvecError, match='every text into the chat template.*Take "message" out'):
        distilvec.distill(
            teacher,
            student=str(tmp_path / "saved"),
            corpus={"path": sentences},
            method="cosine",
            output=tmp_path / "out",
        )
    assert len(asked) < len(sentences) / 4  # a probe alone


# code that comes with a model

OWN_CODE = """
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

class OwnTransformer(Transformer):
    pass

class OwnPooling(Pooling):
    def forward(self, features, **more):
        features = super().forward(features, **more)
        features["sentence_embedding"] = 2 * features["sentence_embedding"]
        return features
"""


def with_code(tiny_bert: Path, folder: Path, number: int, kind: str) -> Path:
    """The model with another class for one of its modules."""
    shutil.copytree(tiny_bert, folder)
    (folder / "own_code.py").write_text(OWN_CODE, encoding="utf-8")
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[number]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("number", "kind"), [(0, "own_code.OwnTransformer"), (1, "own_code.OwnPooling")])
def test_a_student_with_modules_of_its_own_ships_with_their_code(
    number: int, kind: str, tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    import distilvec

    distilvec.distill(
        str(tiny_bert),
        student={"model": str(with_code(tiny_bert, tmp_path / "own", number, kind)), "trust_remote_code": True},
        corpus={"path": sentences, "holdout": 0.0},
        method="cosine",
        output=tmp_path / "out",
        training={"max_steps": 1, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    shipped = SentenceTransformer(str(tmp_path / "out" / "student"), device="cpu", trust_remote_code=True)
    assert type(shipped[number]).__name__ == kind.partition(".")[2]
    loaded = distilvec.load(tmp_path / "out" / "student", trust_remote_code=True)
    np.testing.assert_allclose(shipped.encode(sentences[:5]), loaded.encode(sentences[:5]), atol=1e-6)


def test_a_student_whose_code_would_not_ship_is_refused_before_anything_is_taught(
    tiny_bert: Path, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import distilvec

    (tmp_path / "package_elsewhere.py").write_text(OWN_CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = with_code(tiny_bert, tmp_path / "own", 1, "package_elsewhere.OwnPooling")
    asked: list[str] = []

    def teacher(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.random.default_rng(0).normal(size=(len(texts), 8))

    with pytest.raises(DistilvecError, match="module 1 is a OwnPooling"):
        distilvec.distill(
            teacher,
            student={"model": str(folder), "trust_remote_code": True},
            corpus={"path": sentences},
            method="cosine",
            output=tmp_path / "out",
        )
    assert len(asked) < len(sentences) / 4  # a probe alone
