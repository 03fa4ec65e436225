"""Quantised layers by the published layouts, packed value by value, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint

Packed = tuple[dict[str, Tensor], Tensor]  # tensors of a layer, and its weight in float32
Pack = Callable[[np.random.Generator, int, int], Packed]

RAW = tiny_config(
    "llama", hidden_size=64, intermediate_size=96, vocab_size=331, torch_dtype="bfloat16"
)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def words(rows: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """``[rows, n]`` unsigned values in int32 words; ``order`` lists what each place holds."""
    per_word = 32 // bits
    order = tuple(range(per_word)) if order is None else order
    count = -(-rows.shape[1] // per_word)
    packed = np.zeros((len(rows), count), np.uint32)
    for row in range(len(rows)):
        for word in range(count):
            number = 0
            for place, own in enumerate(order):
                column = word * per_word + own
                if column < rows.shape[1]:
                    number |= int(rows[row, column]) << (bits * place)
            packed[row, word] = number
    return packed.view(np.int32)


def tensor(values: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(
        dtype or torch.from_numpy(values).dtype
    )


def scales_of(generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(generator.uniform(0.002, 0.02, shape)).to(dtype)


def dense(codes: np.ndarray, zeros: np.ndarray, scales: Tensor, group_of: np.ndarray) -> Tensor:
    """Weights ``[outputs, inputs]``, one after the other; zeros, scales ``[outputs, groups]``."""
    weight = torch.empty(codes.shape)
    for output, row in enumerate(codes.tolist()):
        for column, code in enumerate(row):
            group = int(group_of[column])
            weight[output, column] = (code - int(zeros[output, group])) * scales[output, group]
    return weight


def in_words(
    bits: int = 4, group: int = 32, *, symmetric: bool = True, ordered: bool = False
) -> Pack:
    """compressed-tensors ``pack-quantized``; group 0: each output has one scale."""

    def pack(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        size, middle = group or inputs, 1 << (bits - 1)
        groups = -(-inputs // size)
        codes = generator.integers(0, 1 << bits, (outputs, inputs))
        zeros = np.full((outputs, groups), middle)
        group_of = np.arange(inputs) // size
        scales = scales_of(generator, (outputs, groups), torch.bfloat16)
        tensors = {
            "weight_packed": tensor(words(codes, bits)),
            "weight_scale": scales,
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if not symmetric:
            zeros = generator.integers(0, 1 << bits, (outputs, groups))
            tensors["weight_zero_point"] = tensor(words(zeros.T, bits).T)
        if ordered:
            group_of = generator.permutation(group_of)
            tensors["weight_g_idx"] = tensor(group_of, torch.int32)
        return tensors, dense(codes, zeros, scales.float(), group_of)

    return pack


def gptq(
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = True,
    ordered: bool = False,
    less: int = 1,
    biased: bool = False,
) -> Pack:
    """``less``: how much is taken from stored zero points."""

    def pack(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        size, middle = group if group > 0 else inputs, 1 << (bits - 1)
        groups = -(-inputs // size)
        codes = generator.integers(0, 1 << bits, (outputs, inputs))
        zeros = np.full((outputs, groups), middle)
        if not symmetric:
            zeros = generator.integers(less, 1 << bits, (outputs, groups))
        group_of = np.arange(inputs) // size
        if ordered:
            group_of = generator.permutation(group_of)
        scales = scales_of(generator, (groups, outputs), torch.float16)
        tensors = {
            "qweight": tensor(words(codes, bits).T),
            "qzeros": tensor(words(zeros.T - less, bits)),
            "scales": scales,
            "g_idx": tensor(group_of, torch.int32),
        }
        if biased:
            tensors["bias"] = torch.zeros(outputs, dtype=torch.float16)
        return tensors, dense(codes, zeros, scales.float().T, group_of)

    return pack


def awq(group: int = 32, *, symmetric: bool = False) -> Pack:
    def pack(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        size = group if group > 0 else inputs
        groups = inputs // size
        codes = generator.integers(0, 16, (outputs, inputs))
        zeros = np.full((outputs, groups), 8)
        if not symmetric:
            zeros = generator.integers(0, 16, (outputs, groups))
        scales = scales_of(generator, (groups, outputs), torch.float16)
        tensors = {
            "qweight": tensor(words(codes.T, 4, AWQ_ORDER)),
            "qzeros": tensor(words(zeros.T, 4, AWQ_ORDER)),
            "scales": scales,
        }
        return tensors, dense(codes, zeros, scales.float().T, np.arange(inputs) // size)

    return pack


def integers(
    strategy: str = "channel", group: int = 32, *, symmetric: bool = True, static: bool = False
) -> Pack:
    """compressed-tensors ``int-quantized``: an int8 an element; blocks are of 16 by 32."""

    def pack(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        codes = generator.integers(-128, 128, (outputs, inputs))
        size = group if strategy in ("group", "block") else inputs
        rows = {"tensor": outputs, "block": 16}.get(strategy, 1)  # that share a scale
        shape = (-(-outputs // rows), -(-inputs // size))
        scales = scales_of(generator, shape, torch.bfloat16) / 8
        stored = scales.reshape(1) if strategy == "tensor" else scales
        tensors = {"weight": tensor(codes, torch.int8), "weight_scale": stored}
        zeros = np.zeros(shape, np.int64)
        if not symmetric:
            zeros = generator.integers(-128, 128, shape)
            own = zeros.reshape(1) if strategy == "tensor" else zeros
            tensors["weight_zero_point"] = tensor(own, torch.int8)
        if static:
            tensors["input_scale"] = torch.tensor([0.1])
        row_of, group_of = np.arange(outputs) // rows, np.arange(inputs) // size
        return tensors, dense(codes, zeros[row_of], scales.float()[row_of], group_of)

    return pack


def fp8(
    strategy: str = "tensor",
    name: str = "weight_scale",
    *,
    static: bool = False,
    exponent: bool = False,
) -> Pack:
    """Floats of 8 bits; blocks are of 16 by 32. ``exponent``: scales are powers of two in E8M0."""

    def pack(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        values = torch.from_numpy(generator.normal(0, 40, (outputs, inputs)))
        values = values.to(torch.float8_e4m3fn)
        blocks = (-(-outputs // 16), -(-inputs // 32))
        shape = {"tensor": (), "channel": (outputs, 1), "block": blocks}[strategy]
        scales = scales_of(generator, shape, torch.float32) / 8
        if exponent:
            scales = torch.exp2(scales.log2().round())
        weight = values.float()
        for output in range(outputs):
            for column in range(inputs):
                at = (output // 16, column // 32) if strategy == "block" else (output, 0)
                weight[output, column] *= scales if strategy == "tensor" else scales[at]
        stored = scales.to(torch.float8_e8m0fnu) if exponent else scales
        tensors = {"weight": values, name: stored}
        if static:
            tensors["input_scale"] = torch.tensor(0.25)
        return tensors, weight

    return pack


def nvfp4(*, divides: bool) -> Pack:
    """ModelOpt's, or compressed-tensors', whose overall scale is the other way round."""

    def pack(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        codes = generator.integers(0, 16, (outputs, inputs))
        scales = torch.from_numpy(generator.uniform(20, 400, (outputs, inputs // 16)))
        scales = scales.to(torch.float8_e4m3fn)
        overall = torch.tensor(5000.0 if divides else 0.0003)
        weight = torch.empty(outputs, inputs)
        for output in range(outputs):
            for column in range(inputs):
                code = int(codes[output, column])
                scale = scales[output, column // 16].float()
                scale = scale / overall if divides else scale * overall
                weight[output, column] = E2M1[code & 7] * (-1.0 if code > 7 else 1.0) * scale
        octets = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        names = (
            ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
        )
        tensors = {
            names[0]: tensor(octets),
            "weight_scale": scales,
            names[1]: overall.reshape(1) if divides else overall,
        }
        return tensors, weight

    return pack


def compressed(format: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A ``quantization_config`` of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": weights, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def write_both(
    folder: Path,
    quantization: dict[str, Any] | None,
    pack: Pack,
    raw: dict[str, Any] = RAW,
    *,
    seed: int = 0,
) -> tuple[Path, Path, dict[str, Tensor]]:
    """A quantised checkpoint, and the same with its weights in float32, which are returned, too."""
    generator = np.random.Generator(np.random.PCG64(seed))
    plain = random_tensors(raw, dtype=torch.bfloat16)
    tensors, weights = dict[str, Tensor](), dict[str, Tensor]()
    for name, values in plain.items():
        if values.ndim == 2 and "_proj" in name:
            parts, weights[name] = pack(generator, *values.shape)
            base = name.removesuffix(".weight")
            tensors |= {f"{base}.{part}": value for part, value in parts.items()}
        else:
            tensors[name] = values
    stated = {} if quantization is None else {"quantization_config": quantization}
    quantised = write_checkpoint(folder / "quantised", {**raw, **stated}, _own(tensors))
    exact = write_checkpoint(folder / "exact", raw, _own({**plain, **weights}))
    return quantised, exact, weights


def _own(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.contiguous().clone() for name, values in tensors.items()}


def change_config(folder: Path, **changes: Any) -> None:
    """Change values of a checkpoint's ``quantization_config``."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] = {**config["quantization_config"], **changes}
    file.write_text(json.dumps(config))
