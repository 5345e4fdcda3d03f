"""Students of images and molecules that start from a file of weights."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tests.elsewhere import opened_saved_and_opened
from tests.modules.networks import network as image_network
from tests.modules.networks import tensors_of as image_tensors
from tests.modules.pictures import data_uri
from tests.shared import SMALL
from tests.teachers.molecules import NAMES, SMILES, tensors_of, vae_tensors
from tests.training.starting import Starter

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.cifar_resnet import CifarResNet
from distilvec.students import load_student
from distilvec.teachers import load_teacher


def write(file: Path, kind: str) -> Path:
    save_file(tensors_of(kind), file)
    return file


def images() -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8))


def test_a_cifar_network_is_a_student_of_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = CifarResNet(8, 4)
    file = tmp_path / "classifier.safetensors"
    tensors = {name: value for name, value in network.state_dict().items() if "num_batches" not in name}
    save_file(tensors | {"linear.weight": torch.randn(10, 16), "linear.bias": torch.randn(10)}, file)
    student = load_student(file, device="cpu")
    expected = network.eval()(network.preprocess(images()))["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(student.encode(images()), expected, atol=1e-5)
    student.train()(student.preprocess(images()))["sentence_embedding"].sum().backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    with pytest.raises(DistilvecError, match="max_length"):
        load_student(file, max_length=8)


@pytest.mark.parametrize("kind", NAMES)
def test_a_graph_network_is_a_student_of_molecules(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    file = write(tmp_path / f"{NAMES[kind]}.safetensors", kind)
    student, teacher = load_student(file, device="cpu"), load_teacher(model=file, modality="molecule")
    expected = teacher.encode(SMILES)
    np.testing.assert_allclose(student.encode(SMILES), expected, rtol=1e-5, atol=1e-5)
    assert student.get_embedding_dimension() == expected.shape[1]
    one = student[0]
    two = student(one.repeat(one.preprocess(SMILES), 2))["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(two, np.concatenate([expected, expected]), rtol=1e-5, atol=1e-4)
    student.train()(one.preprocess(SMILES))["sentence_embedding"].square().sum().backward()
    assert all(parameter.grad is not None for parameter in student.parameters())


def opened_elsewhere(start: Starter, student: SentenceTransformer, items: list[str], place: Path) -> None:
    """Saved, and opened by us and where distilvec cannot be imported."""
    expected, folder = student.encode(items), place / "student"
    student.save_pretrained(str(folder), create_model_card=False)
    np.testing.assert_array_equal(load_student(folder, device="cpu").encode(items), expected)
    read = opened_saved_and_opened(start, folder, items, place)
    np.testing.assert_allclose(read["first"], expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(read["second"], read["first"])


def test_a_graph_student_opens_where_distilvec_cannot_be_imported(start: Starter, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    file = write(tmp_path / "mol_molclr_gcn.safetensors", "molclr")
    opened_elsewhere(start, load_student(file, device="cpu"), SMILES, tmp_path)


def test_a_vae_student_opens_where_distilvec_cannot_be_imported(start: Starter, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    save_file(vae_tensors(), tmp_path / "vae.safetensors")
    opened_elsewhere(start, load_student(tmp_path / "vae.safetensors", device="cpu"), SMILES, tmp_path)


@pytest.mark.parametrize("kind", ["resnet8", "v2_eight_bits"])
def test_a_network_of_images_opens_where_distilvec_cannot_be_imported(
    start: Starter, kind: str, tmp_path: Path
) -> None:
    save_file(image_tensors(kind), tmp_path / "net.safetensors")
    pictures = [data_uri(picture) for picture in images()[:3]]
    opened_elsewhere(start, load_student(tmp_path / "net.safetensors", device="cpu"), pictures, tmp_path)


@pytest.mark.parametrize("kind", ["resnet8", "v2_eight_bits"])
def test_other_networks_of_images_are_students_and_teachers(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "classifier.safetensors"
    save_file(image_tensors(kind), file)
    student, teacher = load_student(file, device="cpu"), load_teacher(model=file, modality="image")
    pictures = [data_uri(picture) for picture in images()[:3]]
    expected = image_network(kind)
    expected = expected(expected.preprocess(pictures))["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(student.encode(pictures), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(teacher.encode(pictures), expected, rtol=1e-4, atol=1e-5)


def test_the_chemical_vae_is_a_student_of_molecules(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    file = tmp_path / "vae.safetensors"
    save_file(vae_tensors(), file)
    student, teacher = load_student(file, device="cpu"), load_teacher(model=file, modality="molecule")
    strings = [*SMILES, "[Pt]", "OCC", "C" * 150]  # a character that is unknown, no canonical form, and too long
    expected = teacher.encode(strings)
    np.testing.assert_allclose(student.encode(strings), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(expected[-2], expected[1], rtol=1e-5, atol=1e-5)
    assert student.get_embedding_dimension() == expected.shape[1] == 196
    one = student[0]
    features = one.repeat(one.preprocess(SMILES), 2)
    assert (features["codes"].dtype, features["codes"].shape) == (torch.uint8, (2 * len(SMILES), 120))
    two = student(features)["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(two, np.tile(expected[: len(SMILES)], (2, 1)), rtol=1e-5, atol=1e-5)
    student.train()(one.preprocess(SMILES))["sentence_embedding"].square().sum().backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    copied = pickle.loads(pickle.dumps(student[0])).eval()
    assert torch.equal(copied.network.z_mean.weight, one.network.z_mean.weight)
    with pytest.raises(ValueError, match="'C1CC'"):
        student.encode(["C1CC"])
    with pytest.raises(ValueError, match="prompt 'query: '"):
        student.encode(["CCO"], prompt="query: ")


def test_weight_files_without_a_student_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.safetensors"):
        load_student(tmp_path / "gone.safetensors")
    (tmp_path / "prose.safetensors").write_text("nothing of the kind")
    with pytest.raises(DataError, match=r"prose\.safetensors"):
        load_student(tmp_path / "prose.safetensors")
    save_file(
        {"stem.conv.bias": torch.zeros(4), "block1.project.weight_q": torch.zeros(1)}, tmp_path / "v2.safetensors"
    )
    with pytest.raises(DataError, match=r"v2\.safetensors.*missing.*block1\.project"):
        load_student(tmp_path / "v2.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match=r"other\.safetensors.*weight"):
        load_student(tmp_path / "other.safetensors")


def test_a_published_network_is_the_student_of_its_goldens() -> None:
    """Its weights lie in half precision in tests/data; the other files are held against theirs as networks."""
    golden = np.load(SMALL / "models" / "goldens.npz")["cifar10_mlperf_resnet8/features"]
    pictures = list(np.load(SMALL / "data" / "images" / "cifar10.npz")["test_images"][:8])
    student: SentenceTransformer = load_student(SMALL / "models" / "cifar10_mlperf_resnet8.safetensors", device="cpu")
    np.testing.assert_allclose(student.encode(pictures), golden, rtol=0.02, atol=0.02)
