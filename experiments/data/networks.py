"""The pretrained networks of images and molecules: from the checkpoints of their repositories to safetensors.

Only numbers are taken over; the architectures are the project's own. Kernels go from the order of Keras and TFLite
(height, width, in, out) to torch's (out, in, height, width).
Two kinds of file need a package that distilvec does not: `pip install h5py tflite`.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from experiments.data.formats import tensors
from experiments.data.sources import Missing, Raw

Files = dict[str, bytes]
Named = dict[str, np.ndarray]

RESNETS = {20: "12fca82f", 32: "d509ac18", 44: "014dd654", 56: "4bfd9763"}


def cifar_resnets(raw: Raw) -> Files:
    """ResNet 20 to 56 for CIFAR-10: the names lose the prefix of data parallel training."""
    files = {}
    for depth, mark in RESNETS.items():
        found = _torch(raw.bytes("pytorch_resnet_cifar10", f"pretrained_models/resnet{depth}-{mark}.th"))["state_dict"]
        named = {name.removeprefix("module."): value.numpy() for name, value in found.items()}
        files[f"cifar10_resnet{depth}.safetensors"] = tensors(_without_counters(named))
    return files


def keras_images(raw: Raw) -> Files:
    """MLPerf Tiny's ResNet-8 (CIFAR-10) and MobileNetV1 0.25 (person or not), float32, batch norm kept apart."""
    folder = "benchmark/training"
    file = _keras(raw.bytes("tiny", f"{folder}/image_classification/trained_models/pretrainedResnet.h5"))
    resnet = {**_conv(file, "conv2d", "stem.conv"), **_norm(file, "batch_normalization", "stem.bn")}
    convolution = norm = 0
    for stage in (1, 2, 3):
        for part in (1, 2):
            convolution, norm = convolution + 1, norm + 1
            resnet |= _conv(file, f"conv2d_{convolution}", f"stage{stage}.conv{part}")
            resnet |= _norm(file, f"batch_normalization_{norm}", f"stage{stage}.bn{part}")
        if stage > 1:
            convolution += 1
            resnet |= _conv(file, f"conv2d_{convolution}", f"stage{stage}.shortcut")
    resnet |= _dense(file, "dense", "linear")
    file = _keras(raw.bytes("tiny", f"{folder}/visual_wake_words/trained_models/vww_96.h5"))
    person = {**_conv(file, "conv2d", "stem.conv"), **_norm(file, "batch_normalization", "stem.bn")}
    for block in range(1, 14):
        nth = f"_{block - 1}" if block > 1 else ""
        person |= _conv(file, f"depthwise_conv2d{nth}", f"block{block}.depthwise.conv")
        person |= _norm(file, f"batch_normalization_{2 * block - 1}", f"block{block}.depthwise.bn")
        person |= _conv(file, f"conv2d_{block}", f"block{block}.pointwise.conv")
        person |= _norm(file, f"batch_normalization_{2 * block}", f"block{block}.pointwise.bn")
    person |= _dense(file, "dense", "linear")
    return {
        "cifar10_mlperf_resnet8.safetensors": tensors(resnet),
        "vww_mobilenet_v1_025.safetensors": tensors(person),
    }


def tflite_images(raw: Raw) -> Files:
    """MobileNets with 8-bit weights: the integers with their scale and zero point; biases as real numbers."""
    blocks = [f"block{block}.{part}" for block in range(1, 14) for part in ("depthwise", "pointwise")]
    imagenet = _tflite(
        raw.bytes("coral_test_data", "mobilenet_v1_0.5_160_quant.tflite"), ["stem", *blocks, "classifier"]
    )
    imagenet["classifier.weight_q"] = imagenet["classifier.weight_q"].reshape(1001, 512)
    blocks = [f"block{block}.{part}" for block in range(17) for part in ("expand", "depthwise", "project")][1:]
    birds = _tflite(
        raw.bytes("coral_test_data", "mobilenet_v2_1.0_224_inat_bird_quant.tflite"),
        ["stem", *blocks, "head", "classifier"],
    )
    return {
        "imagenet_mobilenet_v1_050_160.safetensors": tensors(imagenet),
        "inat_birds_mobilenet_v2_224.safetensors": tensors(birds),
    }


def molecule_graphs(raw: Raw) -> Files:
    """Four graph networks: what has two axes or more becomes float16, the rest stays float32."""
    sources = {
        "mol_gat_contextpred": ("pretrain-gnns", "chem/model_architecture/gat_contextpred.pth"),
        "mol_gcn_supervised_contextpred": ("pretrain-gnns", "chem/model_architecture/gcn_supervised_contextpred.pth"),
        "mol_graphsage_contextpred": ("pretrain-gnns", "chem/model_architecture/graphsage_contextpred.pth"),
        "mol_molclr_gcn": ("MolCLR", "ckpt/pretrained_gcn/checkpoints/model.pth"),
    }
    files = {}
    for name, (repository, path) in sources.items():
        found = {key: value.numpy() for key, value in _torch(raw.bytes(repository, path)).items()}
        found = {key: value for key, value in found.items() if not key.startswith("out_lin")}
        halved = {key: value.astype(np.float16) if value.ndim > 1 else value for key, value in found.items()}
        files[f"{name}.safetensors"] = tensors(_without_counters(halved))
    return files


def molecule_strings(raw: Raw) -> Files:
    """The encoder of the variational autoencoder on SMILES, without its head for the log-variance."""
    file = _keras(raw.bytes("chemical_vae", "models/zinc_properties/zinc_encoder.h5"))
    named: Named = {}
    for layer in range(3):
        named |= _conv(file, f"encoder_conv{layer}", f"conv{layer}") | _norm(file, f"encoder_norm{layer}", f"bn{layer}")
    named |= _dense(file, "encoder_dense0", "dense") | _norm(file, "encoder_dense0_norm", "bn_dense")
    named |= _dense(file, "z_mean_sample", "z_mean")
    return {"mol_chemvae_zinc_properties.safetensors": tensors(named)}


def _torch(data: bytes) -> dict[str, Any]:
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _without_counters(named: Named) -> Named:
    return {name: value for name, value in named.items() if not name.endswith("num_batches_tracked")}


def _keras(data: bytes) -> dict[str, Named]:
    """The weights of a Keras file by layer and name."""
    try:
        import h5py
    except ImportError as error:
        raise Missing("this set needs h5py to be read: pip install h5py") from error
    found: dict[str, Named] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            layer, weight = name.split("/")[-2:]
            found.setdefault(layer, {})[weight.removesuffix(":0")] = item[()]

    with h5py.File(io.BytesIO(data)) as file:
        file["model_weights"].visititems(take)
    return found


def _conv(file: dict[str, Named], layer: str, name: str) -> Named:
    """A convolution over one axis or two; a depthwise kernel (height, width, channels, 1) has its channels in front."""
    weights = file[layer]
    if "depthwise_kernel" in weights:
        kernel = weights["depthwise_kernel"].transpose(2, 3, 0, 1)
    else:
        kernel = np.moveaxis(weights["kernel"], (-1, -2), (0, 1))
    return {f"{name}.weight": kernel, f"{name}.bias": weights["bias"]}


def _dense(file: dict[str, Named], layer: str, name: str) -> Named:
    return {f"{name}.weight": file[layer]["kernel"].T, f"{name}.bias": file[layer]["bias"]}


def _norm(file: dict[str, Named], layer: str, name: str) -> Named:
    weights = file[layer]
    return {
        f"{name}.weight": weights["gamma"],
        f"{name}.bias": weights["beta"],
        f"{name}.running_mean": weights["moving_mean"],
        f"{name}.running_var": weights["moving_variance"],
    }


def _tflite(data: bytes, names: list[str]) -> Named:
    """The weights of the convolutions and of the linear layer of a TFLite file, in the order of its operators."""
    try:
        import tflite
    except ImportError as error:
        raise Missing("this set needs tflite to be read: pip install tflite") from error
    model = tflite.Model.GetRootAsModel(data, 0)
    graph = model.Subgraphs(0)
    kinds = {
        tflite.BuiltinOperator.CONV_2D: (0, 3, 1, 2),
        tflite.BuiltinOperator.DEPTHWISE_CONV_2D: (3, 0, 1, 2),
        tflite.BuiltinOperator.FULLY_CONNECTED: (0, 1),
    }
    named: Named = {}
    waiting = iter(names)
    for number in range(graph.OperatorsLength()):
        operator = graph.Operators(number)
        axes = kinds.get(model.OperatorCodes(operator.OpcodeIndex()).DeprecatedBuiltinCode())
        if axes is None:
            continue
        name = next(waiting)
        weight, bias = (graph.Tensors(operator.Inputs(place)) for place in (1, 2))
        held = [model.Buffers(tensor.Buffer()).DataAsNumpy() for tensor in (weight, bias)]
        named[f"{name}.weight_q"] = held[0].reshape(weight.ShapeAsNumpy()).transpose(axes)
        named[f"{name}.weight_scale"] = np.float32(weight.Quantization().Scale(0)).reshape(())
        named[f"{name}.weight_zero"] = np.uint8(weight.Quantization().ZeroPoint(0)).reshape(())
        named[f"{name}.bias"] = held[1].view(np.int32).astype(np.float32) * np.float32(bias.Quantization().Scale(0))
    if next(waiting, None) is not None:
        raise RuntimeError("the TFLite file has fewer layers than expected")
    return named
