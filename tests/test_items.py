"""Images, molecules and several teachers through the whole job, on small real files."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.jobs import Job

import distilvec
from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError
from distilvec.files import locked
from distilvec.flow.combine import CombinedTeacher
from distilvec.flow.ray import teach_alone
from distilvec.flow.run import run
from distilvec.kinds.image.images import open_image
from distilvec.modules.cifar_resnet import CifarResNet, image_model
from distilvec.recipe import Recipe
from distilvec.recipe.from_python import recipe_of
from distilvec.store import SignalStore
from distilvec.teachers import load_teacher

SMILES = [
    f"{'C' * length}{group}{ring}"
    for length in range(1, 7)
    for group in ("O", "N", "C(=O)O", "Cl")
    for ring in ("", "Cc1ccccc1", "CC1CCNCC1")
    if not (group == "Cl" and ring)
]


def colours(items: list[str]) -> np.ndarray:
    """Mean and deviation of each colour: an embedder of images that is a function."""
    pixels = [np.asarray(open_image(item), dtype=np.float32) / 255 for item in items]
    return np.stack([np.concatenate([p.mean((0, 1)), p.std((0, 1))]) for p in pixels])


def letters(texts: list[str]) -> np.ndarray:
    """Counts of letters."""
    return np.stack([[text.lower().count(letter) for letter in "etaoinshr"] for text in texts]).astype(np.float32) + 0.1


def first_letters(texts: list[str]) -> np.ndarray:
    """Which letters words begin with."""
    return (
        np.stack([[f" {text.lower()}".count(f" {letter}") for letter in "tasowcbhm"] for text in texts]).astype(
            np.float32
        )
        + 0.1
    )


def with_constants(items: list[str]) -> np.ndarray:
    """The same, and two numbers that never change."""
    return np.column_stack([colours(items), np.full(len(items), 1.5), np.full(len(items), -2.0)])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Two folders of small images, and a file that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for kind, shade in (("dark", 60), ("light", 190)):
        (folder / kind).mkdir()
        for number in range(40):
            pixels = np.clip(generator.normal(shade, 40, (12, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    (folder / "light" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    return folder


def image_recipe(pictures: Path, out: Path, **changes) -> dict:
    return {
        "corpus": {"path": str(pictures), "domain": "folder", "holdout": 0.3},
        "teachers": [{"name": "colours", "call": colours}],
        "student": {"resnet": {"depth": 8, "width": 8, "image_size": 12}},
        "method": {"name": "gaussian", "width": 32, "keep_kernels": True},
        "optimizer": {"lr": 1e-3, "heads_lr": 3e-3},
        "training": {"epochs": 6, "batch_size": 8, "seed": 0},
        "output": str(out),
        **changes,
    }


@pytest.fixture(scope="module")
def image_run(pictures, tmp_path_factory):
    """A student of two teachers: a function and a network in a folder."""
    place = tmp_path_factory.mktemp("images")
    image_model(CifarResNet(8, 4, 12)).save(str(place / "network"))
    teachers = [
        {"name": "colours", "call": colours},
        {"name": "network", "model": str(place / "network"), "weight": 0.5},
    ]
    return run(Recipe.build(image_recipe(pictures, place / "out", teachers=teachers)))


def test_images_run_from_a_folder_to_a_report(image_run, pictures) -> None:
    out = image_run.folder
    rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert [Path(row["file"]).name for row in rejected] == ["broken.png"]
    report = (out / "report.md").read_text()
    assert "images per second" in report and "Each teacher, on held-out images" in report
    held = image_run.record["reproduced"].terms
    assert held["explained:colours"] > 0.2, "the colours of an image are easily learnt"
    assert set(held) >= {"nll:colours", "nll:network", "calibration:network"}
    # Weights of 1 and 0.5 are shares of 2/3 and 1/3.
    assert image_run.record.title == "gaussian: colours and network to a student of 19 thousand parameters"


def test_an_image_student_loads_without_distilvec(start, image_run, pictures, tmp_path) -> None:
    image = str(pictures / "dark" / "0.png")
    expected = image_run.student.encode([image])
    script = (
        "import numpy as np\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"model = SentenceTransformer({str(image_run.folder / 'student')!r}, trust_remote_code=True, device='cpu')\n"
        f"np.save({str(tmp_path / 'v.npy')!r}, model.encode([{image!r}]))\n"
    )
    start.elsewhere(script, place=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, rtol=1e-4, atol=1e-5)


def test_a_student_that_kept_its_kernels_explains(image_run, pictures, tmp_path) -> None:
    student = distilvec.load(image_run.folder / "student")
    images = [str(pictures / "dark" / "1.png"), str(pictures / "light" / "1.png")]
    explained = student.explain(images)
    assert [set(each) for each in explained] == [{"colours", "network"}] * 2
    sure, truth = explained[0]["colours"], colours(images)
    assert 0 < sure.uncertainty < 1 and sure.explained == pytest.approx(1 - sure.uncertainty**2)
    means = np.stack([each["colours"].mean for each in explained])
    assert means[0, 0] < means[1, 0], "the dark image is predicted to be darker, in the teacher's own units"
    assert np.abs(means - truth)[:, :3].mean() < 0.25
    with Image.open(images[1]) as opened:  # one item that is neither a list nor a text
        for one in (opened, np.asarray(opened.convert("RGB"))):
            (alone,) = student.explain(one)
            np.testing.assert_allclose(alone["colours"].mean, means[1], atol=1e-5)
    # Saved again it is a student like any other.
    student.save(str(tmp_path / "again"))
    np.testing.assert_allclose(distilvec.load(tmp_path / "again").encode(images), student.encode(images), atol=1e-6)


@pytest.mark.parametrize("vectors", ["raw", "standardised"])
def test_constant_coordinates_are_explained_as_constants(vectors, pictures, tmp_path) -> None:
    method = {"name": "gaussian", "width": 32, "keep_kernels": True, "vectors": vectors}
    changes = {"teachers": [{"name": "seen", "call": with_constants}], "method": method, "training": {"max_steps": 2}}
    done = run(Recipe.build(image_recipe(pictures, tmp_path / "out", **changes)))
    (found,) = distilvec.load(done.folder / "student").explain(str(pictures / "dark" / "1.png"))
    np.testing.assert_allclose(found["seen"].mean[-2:], [1.5, -2.0], atol=1e-5)
    assert (found["seen"].deviation[-2:] == 0).all() and (found["seen"].deviation[:-2] > 0).all()


@pytest.mark.parametrize(
    "kind", ["paths", "Paths", "relative", "bytes", "pillow", "arrays", "rows", "dictionaries", "data set"]
)
def test_images_from_python_are_a_corpus(kind, pictures, tmp_path, monkeypatch) -> None:
    files = sorted(pictures.glob("*/?.png"))
    monkeypatch.chdir(pictures)
    dataset = datasets.Dataset.from_dict({"image": [str(file) for file in files]})
    given = {
        "paths": [str(file) for file in files],
        "Paths": files,
        "relative": [str(file.relative_to(pictures)) for file in files],
        "bytes": [file.read_bytes() for file in files],
        "pillow": [Image.open(file) for file in files],
        "arrays": [np.asarray(Image.open(file)) for file in files],
        "rows": [{"image": str(file.relative_to(pictures))} for file in files],
        "dictionaries": [{"bytes": file.read_bytes(), "path": None} for file in files],
        "data set": dataset.cast_column("image", datasets.Image()),
    }[kind]
    teacher = {"vectors": colours([str(file) for file in files]), "texts": [str(file) for file in files]}
    recipe = recipe_of(teacher, None, {"path": given, "modality": "image", "holdout": 0.0}, None, tmp_path / "out")
    store = Job(recipe).teach(vectors_only=True)[0].store
    assert len(store) == len(files)


def test_molecules_from_python_are_a_corpus(tmp_path) -> None:
    recipe = recipe_of("t", None, {"path": SMILES, "modality": "molecule", "holdout": 0.0}, None, tmp_path / "out")
    assert len(Job(recipe).corpus) == len(SMILES)


def test_a_teacher_that_lacks_items_of_a_task_is_not_judged_on_it(tmp_path, texts_file, tiny_student) -> None:
    """One that has all of the corpus, and one that is combined with vectors of the corpus alone."""

    def picky(items):
        return [None if "nobody" in item else letters([item])[0] for item in items]

    asked = [{"text": f"nobody knows item {n}", "label": str(n % 2)} for n in range(60)]
    task = {"name": "unknown", "kind": "classification", "train": asked, "test": asked}
    texts = texts_file.read_text().splitlines()
    known = {"name": "bought", "vectors": letters(texts), "texts": texts}
    for number, teachers in enumerate(
        ([{"name": "picky", "call": picky}], [known, {"name": "counts", "call": letters}])
    ):
        done = distilvec.distill(
            teachers,
            student=str(tiny_student),
            corpus=str(texts_file),
            method="cosine",
            output=tmp_path / str(number),
            combine="concatenate" if len(teachers) > 1 else None,
            training={"max_steps": 2},
            judging={"tasks": [task], "speed": False},
        )
        assert "| student |" in done.report and (done.folder / "report.md").is_file()


def test_vectors_of_images_in_a_parquet_file(pictures, tmp_path) -> None:
    files = sorted(pictures.glob("*/?.png"))
    names = [file.relative_to(pictures).as_posix() for file in files]
    table = pa.table({"path": names, "vector": colours([str(file) for file in files]).tolist()})
    pq.write_table(table, pictures / "vectors.parquet")
    teacher = load_teacher(vectors=pictures / "vectors.parquet", texts="path", modality="image")
    assert teacher.has([str(file) for file in files]).all()
    (pictures / "vectors.parquet").unlink()


@pytest.mark.parametrize("kind", ["parquet", "data set"])
def test_images_that_a_table_names_may_change(kind, tmp_path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(file)
    names = [str(file) for file in files]
    pq.write_table(pa.table({"image": names}), tmp_path / "table.parquet")
    source = str(tmp_path / "table.parquet") if kind == "parquet" else datasets.Dataset.from_dict({"image": names})
    before = read_corpus(source, tmp_path / "prepared", modality="image", holdout=0.0)
    Image.new("RGB", (4, 4), (99, 0, 0)).save(files[2])
    after = read_corpus(source, tmp_path / "prepared", modality="image", holdout=0.0)
    assert (np.asarray(before.keys) != np.asarray(after.keys)).any(axis=1).tolist() == [False, False, True, False]


def test_salts_of_the_corpus_are_found_among_a_tasks(tmp_path) -> None:
    smiles = [*SMILES[:8], "CCN.Cl", "CC(=O)[O-].[Na+]"]
    for components in ("keep", "largest"):
        corpus = read_corpus(smiles, tmp_path / components, modality="molecule", components=components, holdout=0.0)
        assert corpus.overlap(smiles) == len(corpus)


@pytest.mark.parametrize("key", ["max_length", "pooling", "dropout", "router_balance", "revision"])
def test_keys_without_meaning_for_an_image_network_are_refused(key, pictures, tmp_path) -> None:
    value = {"max_length": 20, "pooling": "cls", "dropout": 0.3, "router_balance": 0.5, "revision": "abc"}[key]
    with pytest.raises(DistilvecError, match=rf"^student: {key} says nothing"):
        Recipe.build(image_recipe(pictures, tmp_path, student={"resnet": {"depth": 8}, key: value}))


@pytest.mark.parametrize("method", [{"name": "talas", "anchored_layers": 1}, {"name": "multi_mse", "width": 16}])
def test_a_vision_transformer_is_a_student(pictures, tmp_path, method) -> None:
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=12, patch_size=4
    )
    ViTModel(config).save_pretrained(tmp_path / "vit")
    ViTImageProcessor(size={"height": 12, "width": 12}).save_pretrained(tmp_path / "vit")
    recipe = image_recipe(pictures, tmp_path / "out", student={"model": str(tmp_path / "vit")}, method=method)
    recipe |= {"judging": {"speed": False}}
    recipe["training"]["epochs"] = 1
    finished = run(Recipe.build(recipe))
    assert finished.student.encode([str(pictures / "dark" / "0.png")]).shape == (1, 16)
    assert not finished.record["lineage"].student.remote_code


def test_a_resumed_image_run_equals_an_uninterrupted_one(pictures, tmp_path) -> None:
    """Running means of batch normalisation included."""

    def recipe(name: str) -> Recipe:
        changed = image_recipe(pictures, tmp_path / name, judging={"tasks": [], "agreement": False, "speed": False})
        changed["training"] |= {"epochs": 1, "save_every": 3, "use_cpu": True}
        return Recipe.build(changed)

    whole = run(recipe("whole"))
    run(recipe("half"))
    for folder in (tmp_path / "half" / "checkpoints").glob("checkpoint-*"):
        if folder.name != "checkpoint-6":
            shutil.rmtree(folder)
    assert [each.name for each in (tmp_path / "half" / "checkpoints").glob("checkpoint-*")] == ["checkpoint-6"]
    again = run(recipe("half"), resume=True)
    first, second = (load_file(each.folder / "student/0_CifarResNet/model.safetensors") for each in (whole, again))
    assert first.keys() == second.keys() and "bn1.running_mean" in first
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    ("method", "sharpness"),
    [
        ({"name": "talas", "anchored_layers": 1}, None),
        ({"name": "relational"}, None),
        ({"name": "matryoshka", "dims": [8], "of": {"name": "gaussian", "width": 16}}, {"kind": "asam"}),
    ],
    ids=["talas", "relational", "gaussian-matryoshka-asam"],
)
def test_several_teachers_with_other_methods(method, sharpness, tmp_path, texts_file, tiny_student) -> None:
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out", method=method)
    recipe["optimizer"] = {"lr": 1e-3, "heads_lr": 1e-3, "sharpness": sharpness}
    recipe["teachers"][1]["weight"] = 3.0
    recipe["judging"] = {"tasks": [], "agreement": False, "speed": False}
    held = run(Recipe.build(recipe)).record["reproduced"].terms
    assert any(name.partition("@")[0].endswith(":letters") for name in held)
    assert any(name.partition("@")[0].endswith(":first") for name in held)


def test_a_text_model_reads_smiles(tmp_path, tiny_student) -> None:
    pytest.importorskip("rdkit")
    file = tmp_path / "molecules.smi"
    file.write_text("\n".join(SMILES) + "\n")
    recipe = text_recipe(file, tiny_student, tmp_path / "out", teachers=[{"name": "letters", "model": tiny_student}])
    done = run(Recipe.build(recipe))
    assert done.record.items == "molecules" and done.record["lineage"].student.vocabulary is not None


def test_molecules_run_from_a_file_to_a_report(tmp_path) -> None:
    pytest.importorskip("rdkit")
    file = tmp_path / "molecules.smi"
    file.write_text("\n".join([*SMILES, "not a molecule(", "CCO.Cl", "OCC"]) + "\n")
    recipe = {
        "corpus": {"path": str(file), "holdout": 0.3},
        "teachers": [
            {"name": "morgan", "call": "distilvec.teachers.molecule:morgan"},
            {"name": "properties", "call": "distilvec.teachers.molecule:descriptors"},
        ],
        "student": {"molecule": {"layers": 2, "width": 24}},
        "method": {"name": "gaussian", "width": 32},
        "optimizer": {"lr": 3e-3, "heads_lr": 3e-3},
        "training": {"epochs": 15, "batch_size": 8, "seed": 0},
        "output": str(tmp_path / "out"),
    }
    finished = run(Recipe.build(recipe))
    assert finished.record.items == "molecules"
    reasons = finished.record["corpus"].rejected
    assert reasons["not a valid SMILES"] == 1
    assert finished.record["corpus"].duplicates == 2, "ethanol is there without its salt, and written otherwise"
    assert all(np.isfinite(value) for value in finished.record["reproduced"].terms.values())
    one, other = finished.student.encode(["CCO", "OCC"])
    np.testing.assert_allclose(one, other, atol=1e-5)
    again = distilvec.load(finished.folder / "student").encode(["CCO"])
    np.testing.assert_allclose(again[0], one, atol=1e-5)


def test_a_text_student_is_refused_for_images(pictures, tmp_path) -> None:
    from distilvec.flow.demo import demo_teacher

    recipe = image_recipe(pictures, tmp_path / "out", student={"model": demo_teacher()})
    with pytest.raises(DistilvecError, match=r"^student: .*\btexts\b.*\bimages\b.*corpus\.modality"):
        run(Recipe.build(recipe))
    with pytest.raises(DistilvecError, match=r"^teacher: .*\btext items\b.*\bimages\b.*corpus\.modality"):
        load_teacher(model=demo_teacher(), modality="image")


@pytest.mark.parametrize(
    ("key", "value"), [("max_length", 8), ("pooling", "cls"), ("dtype", "float16"), ("prompt", "a")]
)
def test_keys_that_a_teacher_of_images_has_no_use_for_are_refused(tmp_path, key, value) -> None:
    from distilvec.modules.cifar_resnet import CifarResNet, image_model

    image_model(CifarResNet(depth=8, width=4)).save(str(tmp_path / "teacher"))
    with pytest.raises(DistilvecError, match=f"^teacher: {key} .*images"):
        load_teacher(model=tmp_path / "teacher", modality="image", trust_remote_code=True, **{key: value})


@pytest.mark.parametrize("how", ["concatenate", "average"])
def test_combined_teachers_are_one_teacher(tmp_path, how, texts_file, tiny_student) -> None:
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out", combine=how)
    finished = run(Recipe.build(recipe))
    assert [teacher.card.name for teacher in finished.record["lineage"].teachers] == ["letters+first"]
    (folder,) = (tmp_path / "out" / "stores").glob(f"letters+first-{how}-*")
    assert SignalStore.open(folder).width == (18 if how == "concatenate" else 9)
    recipe["teachers"][0]["weight"] = 2
    run(Recipe.build(recipe | {"output": str(tmp_path / "other"), "cache": str(tmp_path / "out")}))
    assert len(list((tmp_path / "out" / "stores").glob(f"letters+first-{how}-*"))) == 2, "another weight, another store"
    teacher = CombinedTeacher(
        [load_teacher(name="a", call=letters), load_teacher(name="b", call=first_letters)], [3.0, 1.0], how
    )
    texts = ["the rain in Spain", "a cat and a hat"]
    a, b = letters(texts), first_letters(texts)
    a, b = a / np.linalg.norm(a, axis=1, keepdims=True), b / np.linalg.norm(b, axis=1, keepdims=True)
    found = teacher.encode(texts)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    if how == "concatenate":
        assert found[0] @ found[1] == pytest.approx(0.75 * a[0] @ a[1] + 0.25 * b[0] @ b[1], abs=1e-5)
    assert finished.student.encode(texts).shape[0] == 2


def test_vectors_combined_by_another_process_are_used(tmp_path, texts_file, tiny_student) -> None:
    job = Job(Recipe.build(text_recipe(texts_file, tiny_student, tmp_path / "out", combine="concatenate")))
    (first,) = job.taught
    for part in first.store.path.glob("sentence-*"):
        part.rename(tmp_path / part.name)
    with ThreadPoolExecutor() as pool:
        with locked(first.store.path / "teaching.lock", wait=False):
            waiting = pool.submit(job.teach)
            time.sleep(0.5)
            assert not waiting.done()
            for part in tmp_path.glob("sentence-*"):
                part.rename(first.store.path / part.name)
        (second,) = waiting.result(60)
    assert second.filled.taught == 0 and second.filled.present == first.filled.taught


@pytest.mark.parametrize("method", ["talas", "relational", "leaf"])
def test_combined_teachers_teach_by_any_method_on_sentence_vectors(method, tmp_path, texts_file, tiny_student) -> None:
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out", combine="concatenate", method={"name": method})
    finished = run(Recipe.build(recipe))
    terms = [key for entry in finished.record["training"].log for key in entry if key.startswith("term/")]
    assert terms and not [term for term in terms if ":" in term], "one teacher's terms name none"
    separate = recipe | {"combine": "separate", "output": str(tmp_path / "two"), "cache": str(tmp_path / "out")}
    apart = {
        key for entry in run(Recipe.build(separate)).record["training"].log for key in entry if key.startswith("term/")
    }
    assert {name for _, _, name in (term.partition(":") for term in apart) if name} == {"letters", "first"}


def test_combined_teachers_go_with_a_method_that_could_look_inside_and_does_not(
    tmp_path, texts_file, tiny_student, tiny_bert
) -> None:
    method = {"name": "distillmoe", "width": 16, "moe_weight": 1}
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out", combine="concatenate", method=method)
    finished = run(Recipe.build(recipe))
    assert [teacher.card.name for teacher in finished.record["lineage"].teachers] == ["letters+first"]
    twice = [{"name": name, "model": str(tiny_bert)} for name in ("one", "two")]
    method |= {"moe_weight": 0.8, "layers": 2}
    recipe |= {"teachers": twice, "method": method, "output": str(tmp_path / "other")}
    with pytest.raises(DistilvecError, match="^combine: .*distillmoe .*combine: separate.*moe_weight: 1"):
        run(Recipe.build(recipe))


def test_averaging_needs_one_width(tmp_path) -> None:
    narrow, wide = load_teacher(name="a", call=letters), load_teacher(name="b", call=lambda t: np.ones((len(t), 4)))
    with pytest.raises(DistilvecError, match=r"^combine: .*\(9, 4\).*combine: concatenate"):
        CombinedTeacher([narrow, wide], [1, 1], "average")


def test_teachers_that_cannot_be_averaged_are_not_asked_first(tmp_path, texts_file, tiny_student) -> None:
    called = [{"name": "letters", "call": letters}, {"name": "ones", "call": lambda texts: np.ones((len(texts), 4))}]
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out", combine="average", teachers=called)
    with pytest.raises(DistilvecError, match=r"^combine: .*\(9, 4\).*combine: concatenate"):
        teach_alone(Recipe.build(recipe))
    assert not (tmp_path / "out" / "stores").exists()


def test_a_store_of_another_teacher_is_refused_before_any_is_asked(tmp_path, texts_file, tiny_student) -> None:
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out")
    teach_alone(Recipe.build(recipe))
    more = tmp_path / "more.txt"
    more.write_text(texts_file.read_text() + "one text more\n")
    recipe["corpus"]["path"], recipe["teachers"][1]["prompt"] = str(more), "query: "
    with pytest.raises(DistilvecError, match=r"/stores/first: the store holds vectors of the teacher with fingerprint"):
        teach_alone(Recipe.build(recipe))
    assert len(SignalStore.open(tmp_path / "out/stores/letters")) == len(texts_file.read_text().splitlines())


def test_the_names_of_many_combined_teachers_may_be_long(tmp_path, texts_file, tiny_student) -> None:
    called = [
        {"name": f"{letter * 90}", "call": call} for letter, call in zip("abc", (letters, first_letters, letters))
    ]
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out", combine="average", teachers=called)
    (taught,) = Job(Recipe.build(recipe)).teach()
    assert taught.teacher.card.name == "+".join(each["name"] for each in called) and len(taught.store)


def test_a_teacher_may_lack_items(tmp_path, texts_file, tiny_student) -> None:
    """Vectors from elsewhere for half of the texts: the others still learn from the other teacher."""
    texts = texts_file.read_text().splitlines()
    np.save(tmp_path / "half.npy", letters(texts[::2]))
    (tmp_path / "half.txt").write_text("\n".join(texts[::2]) + "\n")
    recipe = text_recipe(texts_file, tiny_student, tmp_path / "out", method={"name": "gaussian", "width": 16})
    recipe["teachers"][0] = {"name": "half", "vectors": str(tmp_path / "half.npy"), "texts": str(tmp_path / "half.txt")}
    finished = run(Recipe.build(recipe))
    assert any("have no vector" in note for note in finished.record["notes"].lines)
    assert {"nll:half", "nll:first"} <= set(finished.record["reproduced"].terms)


def test_figures_of_an_incomplete_teacher_are_over_its_items(tmp_path, texts_file, tiny_student) -> None:
    """In small batches most have none of its items: as in one batch of all, nothing is added for them."""
    texts = texts_file.read_text().splitlines()
    np.save(tmp_path / "few.npy", letters(texts[::8]))
    (tmp_path / "few.txt").write_text("\n".join(texts[::8]) + "\n")
    found = []
    for size in (2, 200):
        recipe = text_recipe(texts_file, tiny_student, tmp_path / f"out-{size}")
        recipe |= {"method": {"name": "gaussian", "width": 16}, "optimizer": {"lr": 1e-12, "heads_lr": 1e-12}}
        recipe["training"] |= {"batch_size": size, "logging_steps": 1}
        recipe["teachers"][0] = {
            "name": "few",
            "vectors": str(tmp_path / "few.npy"),
            "texts": str(tmp_path / "few.txt"),
        }
        finished = run(Recipe.build(recipe))
        found.append(finished.record["reproduced"].terms)
    assert found[0].keys() == found[1].keys() and {"nll:few", "calibration:few", "explained:few"} <= found[0].keys()
    assert list(found[0].values()) == pytest.approx(list(found[1].values()), rel=1e-3, abs=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "out-2/run.jsonl").read_text().splitlines()]
    said = [line["term/explained:few"] for line in lines if "term/explained:few" in line]
    assert 0 < len(said) < sum("term/explained:first" in line for line in lines) and 0 not in said


def text_recipe(texts: Path, student: str, out: Path, **changes) -> dict:
    return {
        "corpus": {"path": str(texts), "holdout": 0.2},
        "teachers": [{"name": "letters", "call": letters}, {"name": "first", "call": first_letters}],
        "student": {"model": student},
        "method": {"name": "cosine"},
        "training": {"epochs": 1, "batch_size": 16, "seed": 0},
        "judging": {"speed": False},
        "output": str(out),
        **changes,
    }


@pytest.fixture(scope="module")
def texts_file(tmp_path_factory, sentences) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(sentences[:200]) + "\n")
    return file


@pytest.fixture(scope="module")
def tiny_student(tmp_path_factory, texts_file) -> str:
    from distilvec.students import fresh

    folder = tmp_path_factory.mktemp("student")
    student = fresh(layers=2, width=16, vocabulary=400, texts=texts_file.read_text().splitlines())
    student.save(str(folder))
    return str(folder)
