"""Students of images and molecules that start from a file of weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tests.elsewhere import opened_saved_and_opened
from tests.shared import SHARED, needs_shared
from tests.teachers.test_molecule import NAMES, SMILES, tensors_of, vae_tensors
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


def test_a_graph_student_opens_where_distilvec_cannot_be_imported(start: Starter, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    student = load_student(write(tmp_path / "mol_molclr_gcn.safetensors", "molclr"), device="cpu")
    expected, folder = student.encode(SMILES), tmp_path / "student"
    student.save_pretrained(str(folder), create_model_card=False)
    np.testing.assert_array_equal(load_student(folder, device="cpu").encode(SMILES), expected)
    read = opened_saved_and_opened(start, folder, SMILES, tmp_path)
    np.testing.assert_allclose(read["first"], expected, atol=1e-5)
    assert np.array_equal(read["second"], read["first"])


def test_what_is_no_student_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.safetensors"):
        load_student(tmp_path / "gone.safetensors")
    save_file(vae_tensors(), tmp_path / "chemvae.safetensors")
    with pytest.raises(DistilvecError, match=r"chemvae\.safetensors.*chemvae"):
        load_student(tmp_path / "chemvae.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match=r"other\.safetensors.*weight"):
        load_student(tmp_path / "other.safetensors")


@needs_shared
def test_the_pretrained_networks_are_those_of_the_goldens() -> None:
    goldens = np.load(SHARED / "models/goldens.npz")
    pictures = list(np.load(SHARED / "data/images/cifar10.npz")["test_images"][:8])
    for name in ("cifar10_resnet20", "cifar10_resnet56"):
        student: SentenceTransformer = load_student(SHARED / f"models/{name}.safetensors", device="cpu")
        np.testing.assert_allclose(student.encode(pictures), goldens[f"{name}/features"], rtol=1e-4, atol=1e-4)
