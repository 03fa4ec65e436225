"""Protects: what cannot be read as it was meant is refused in one line that names it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.quantised.packers import (
    change_config,
    compressed,
    fp8,
    gptq,
    in_words,
    nvfp4,
    write_both,
)
from tests.quantised.test_served import (
    AWQ,
    BLOCKS,
    DECODED,
    FP4,
    FP8,
    GPTQ,
    INT4,
    INT8,
    KEPT,
    OF_BLOCKS,
    load,
)
from twostroke.checkpoints.quantised.read_scheme import read_scheme
from twostroke.core.errors import ModelLoadError

MODULE = "model.layers.1.mlp.up_proj"


def words(**changes: Any) -> dict[str, Any]:
    return compressed("pack-quantized", {**INT4, **changes})


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"quantized \(bitsandbytes\)"),
        ({"quant_method": "aqlm"}, r"quantized \(aqlm\)"),
        ({"bits": 4}, r"quantized \(unknown\)"),
        ([4], "must be an object"),
        ({**GPTQ, "bits": 3}, "gptq: bits is 3, which is not supported"),
        ({**GPTQ, "bits": True}, "gptq: bits is True"),
        ({**GPTQ, "bits": None}, "gptq: bits is missing"),
        ({**GPTQ, "group_size": 0}, "group_size is 0"),
        ({**GPTQ, "group_size": "128"}, "group_size must be an integer"),
        ({**GPTQ, "desc_act": "yes"}, "desc_act must be true or false"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({**GPTQ, "dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic is .* which is not known"),
        ({**GPTQ, "pack_dtype": "int16"}, "pack_dtype is 'int16'"),
        ({**AWQ, "version": "gemv"}, "awq: version is 'gemv'"),
        ({**AWQ, "bits": 8}, "awq: bits is 8"),
        ({**AWQ, "zero_point": False}, "zero_point is False"),
        ({**BLOCKS, "weight_block_size": [128]}, "weight_block_size must be two sizes"),
        ({**BLOCKS, "fmt": "e5m2"}, "fmt is 'e5m2'"),
        ({**BLOCKS, "modules_to_convert": ["model.embed_tokens"]}, "modules_to_convert is"),
        (words(num_bits=3), "weights.num_bits is 3"),
        (words(type="float"), "4 bits of type float in pack-quantized"),
        (
            compressed("float-quantized", {**FP8, **OF_BLOCKS, "symmetric": False}),
            "weights.symmetric is false for numbers of type float",
        ),
        (words(group_size=0), "weights.group_size is 0"),
        (words(dynamic=True), "weights.dynamic is True"),
        (words(strategy="attn_head"), "weights.strategy is 'attn_head'"),
        (words(rotation="hadamard"), "weights.rotation is 'hadamard', which is not known"),
        ({**words(), "format": "marlin-24"}, "format is 'marlin-24'"),
        ({**words(), "config_groups": {}}, "config_groups must be an object"),
        ({**words(), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format"),
        ({**words(), "transform_config": {"config_groups": {"u": 1}}}, "transform_config"),
        (
            {
                **words(),
                "config_groups": {
                    "a": words()["config_groups"]["group_0"],
                    "b": compressed("", INT8)["config_groups"]["group_0"],
                },
            },
            "config_groups are 2 that differ",
        ),
        (compressed("nvfp4-pack-quantized", {**FP4, "group_size": 32}), "group_size 32"),
        ({"quant_method": "modelopt"}, "modelopt: quant_algo is missing"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'w4a8_awq'"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size is 32"),
    ],
)
def test_configurations(stated: object, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said) as failure:
        read_scheme({"quantization_config": stated})
    assert failure.value.message.startswith("config.json: quantization_config: ")
    assert "\n" not in failure.value.message and failure.value.hint


def test_what_says_nothing_of_the_weights_is_no_reason() -> None:
    harmless = {"damp_percent": 0.1, "meta": {"quantizer": ["gptqmodel:2.0"]}, "dynamic": None}
    assert read_scheme({"quantization_config": {**GPTQ, **harmless}}) is not None
    assert read_scheme({"text_config": {"quantization_config": GPTQ}}) is not None
    assert read_scheme({"quantization_config": {"quant_method": "mxfp4"}}) is None
    assert read_scheme({"quantization_config": None}) is None


def changed(folder: Path, **changes: Tensor | None) -> None:
    """Replace tensors of a layer, or remove them."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, values in changes.items():
        tensors.pop(f"{MODULE}.{name}", None)
        if values is not None:
            tensors[f"{MODULE}.{name}"] = values.contiguous()
    save_file(tensors, file)


def refused(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as failure:
        load(folder)
    message = failure.value.message
    assert "\n" not in message and len(message) < 400 and failure.value.hint
    return message


CASES = {
    "words": (words(symmetric=False, actorder="group"), in_words(symmetric=False, ordered=True)),
    "gptq": ({**GPTQ, "desc_act": True}, gptq(ordered=True)),
    "awq": KEPT["awq"][1],
    "integers": DECODED["w8-zeros"],
    "fp8": (BLOCKS, fp8("block", "weight_scale_inv")),
    "nvfp4": (compressed("nvfp4-pack-quantized", FP4), nvfp4(divides=True)),
}


def parts_of(folder: Path) -> dict[str, Tensor]:
    tensors = load_file(folder / "model.safetensors")
    prefix = f"{MODULE}."
    return {name[len(prefix) :]: own for name, own in tensors.items() if name.startswith(prefix)}


@pytest.mark.parametrize("name", CASES)
def test_tensors_that_are_missing_or_of_another_form(name: str, tmp_path: Path) -> None:
    """Each in turn: without it, one row short, of another type."""
    folder, _, _ = write_both(tmp_path, *CASES[name])
    parts = parts_of(folder)
    load(folder)
    for part, values in parts.items():
        is_only_one = values.numel() == 1
        others: list[Tensor | None] = [
            None,
            torch.zeros(3, 5, 7).to(values.dtype),
            values.view(torch.uint8).to(torch.bool),
        ]
        if not is_only_one:
            others.append(values[: len(values) - 1])
        for other in others:
            changed(folder, **{part: other})
            assert MODULE in refused(folder)
        changed(folder, **{part: values})
    load(folder)


@pytest.mark.parametrize("name", CASES)
def test_random_changes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Whatever the bytes, shapes and types: a model, or one line that names a tensor."""
    chance = random.Random(name)
    folder, _, _ = write_both(tmp_path, *CASES[name])
    parts = parts_of(folder)
    dtypes = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.float16, torch.float32)
    for _ in range(40):
        part = chance.choice(list(parts))
        values = parts[part]
        octets = torch.tensor(list(chance.randbytes(values.nbytes)), dtype=torch.uint8)
        other = octets.view(values.dtype).view(values.shape)
        if chance.random() < 0.5:
            other = octets[: octets.numel() // 8 * 8].view(chance.choice(dtypes))
            if chance.random() < 0.5 and other.numel() % 4 == 0:
                other = other.view(4, -1)
        changed(folder, **{part: other})
        try:
            load(folder)
        except ModelLoadError as error:
            assert MODULE in error.message and "\n" not in error.message
        changed(folder, **{part: values})


def test_groups_that_are_not_there(tmp_path: Path) -> None:
    folder, _, _ = write_both(tmp_path, *CASES["gptq"])
    order = parts_of(folder)["g_idx"]
    for wrong in (-1, 2):
        changed(folder, g_idx=order.index_fill(0, torch.tensor([5]), wrong))
        assert f"{MODULE}.g_idx" in refused(folder)


def test_what_no_layer_uses_is_named(tmp_path: Path) -> None:
    folder, _, _ = write_both(tmp_path, *KEPT["w4a16"][1])
    changed(folder, weight_zero_point=torch.zeros(12, 2, dtype=torch.int32))
    assert f"does not have: {MODULE}.weight_zero_point" in refused(folder)
    changed(folder, weight_zero_point=None, bias=torch.ones(96))
    assert f"does not have: {MODULE}.bias" in refused(folder)


def test_a_weight_that_is_there_twice(tmp_path: Path) -> None:
    folder, _, _ = write_both(tmp_path, *KEPT["gptq"][1])
    changed(folder, weight=torch.ones(96, 64))
    assert f"{MODULE}.weight" in refused(folder)


def test_a_layer_that_is_said_to_be_left_alone(tmp_path: Path) -> None:
    folder, _, _ = write_both(tmp_path, *KEPT["w4a16"][1])
    change_config(folder, ignore=["lm_head", MODULE])
    assert f"{MODULE}.weight_packed" in refused(folder)


def test_a_shape_that_is_not_the_values(tmp_path: Path) -> None:
    folder, _, _ = write_both(tmp_path, *KEPT["w4a16"][1])
    for wrong in ([96, 128], [-96, 64], [96, 0], [96, 2**62]):
        changed(folder, weight_shape=torch.tensor(wrong))
        assert f"{MODULE}.weight_shape" in refused(folder)


def test_a_group_size_that_is_not_the_scales(tmp_path: Path) -> None:
    folder, _, _ = write_both(tmp_path, *KEPT["gptq"][1])
    change_config(folder, group_size=64)
    assert ".scales in model.safetensors has shape" in refused(folder)


def test_scales_of_the_cache_are_left_out(tmp_path: Path) -> None:
    """Keys and values are kept in the cache's own format."""
    folder, _, _ = write_both(tmp_path, *DECODED["modelopt-fp8"])
    file = folder / "model.safetensors"
    scale = {"model.layers.0.self_attn.k_proj.k_scale": torch.tensor(0.5)}
    save_file({**load_file(file), **scale}, file)
    load(folder)
