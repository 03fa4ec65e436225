"""Granite 4, of whose Mamba-2 layers and MLPs GGUF files have tensors of other shapes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.derived import Floats, derive
from twostroke.checkpoints.gguf.metadata import HINT, Metadata
from twostroke.core.errors import ModelLoadError

# Pairs of tensors that are one at Hugging Face, which has the rows of the first first.
_PAIRS = {
    ("ffn_gate", "ffn_up"): "shared_mlp.input_linear",
    ("ffn_gate_shexp", "ffn_up_shexp"): "shared_mlp.input_linear",
    ("ffn_gate_exps", "ffn_up_exps"): "block_sparse_moe.input_linear",
}
_FLAT = ("mamba.D", "mamba.norm.weight")


def read_mamba_fields(
    metadata: Metadata, name: str, hidden: int, tensors: Container[str], layers: int
) -> dict[str, Any]:
    """What ``config.json`` says of Mamba-2 layers, and whether attention rotates.

    Args:
        name: That of the architecture.
        tensors: By their names in the file, which tell biases.

    Raises:
        ModelLoadError: A key is missing, or contradicts others.
    """
    heads = metadata.integer(f"{name}.ssm.time_step_rank")
    inner = metadata.integer(f"{name}.ssm.inner_size")
    if heads < 1 or inner < 1 or inner % heads or hidden < 1 or inner % hidden:
        sizes = f"is {inner}, of {heads} heads and of embeddings of {hidden}"
        raise metadata.refusal(f"{name}.ssm.inner_size", sizes)
    rotates = metadata.flag(f"{name}.rope.scaling.finetuned", True)
    blocks = [f"blk.{index}." for index in range(min(layers, 10_000))]
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // hidden,
        "mamba_conv_bias": any(f"{blk}ssm_conv1d.bias" in tensors for blk in blocks),
        "attention_bias": any(f"{blk}attn_q.bias" in tensors for blk in blocks),
        "position_embedding_type": "rope" if rotates else "nope",
    }


def put_mamba_in_order(tensors: dict[str, StoredTensor], config: Mapping[str, Any]) -> None:
    """Replace tensors by those that Hugging Face has.

    Files have ``-exp(A_log)`` and ``D`` as columns, the norm's weights by group, and gate and up
    of MLPs and experts apart.

    Raises:
        ModelLoadError: A tensor has a shape that the metadata do not say.
    """
    heads = config["mamba_n_heads"]
    for name, tensor in list(tensors.items()):
        if name.endswith(_FLAT):
            size = heads * (config["mamba_d_head"] if name.endswith("weight") else 1)
            if int(np.prod(tensor.shape)) != size:
                raise _refusal(name, tensor, (size,))
            tensors[name] = replace(tensor, shape=(size,))
        elif name.endswith("mamba.A_log"):
            if tensor.shape != (heads, 1):
                raise _refusal(name, tensor, (heads, 1))
            tensors[name] = derive((tensor,), (heads,), _logarithms)
        for (gate, up), joined in _PAIRS.items():
            if name.startswith("blk.") and name.endswith(f".{gate}.weight"):
                blk = name.removesuffix(f"{gate}.weight")
                _join(tensors, blk, up, f"model.layers.{blk.removeprefix('blk.')}{joined}.weight")


def _join(tensors: dict[str, StoredTensor], blk: str, up: str, joined: str) -> None:
    """Put one tensor in place of gate and up, of which there is one shape."""
    gate_name, up_name = f"{blk}{up.replace('up', 'gate')}.weight", f"{blk}{up}.weight"
    if up_name not in tensors or joined in tensors:
        return  # loading refuses them by their names
    gate, other = tensors[gate_name], tensors[up_name]
    if gate.shape != other.shape or len(gate.shape) < 2:
        raise _refusal(up_name, other, gate.shape)
    del tensors[gate_name], tensors[up_name]
    *stack, rows, inputs = gate.shape
    tensors[joined] = derive((gate, other), (*stack, 2 * rows, inputs), _one_after_another)


def _refusal(name: str, tensor: StoredTensor, expected: tuple[int, ...]) -> ModelLoadError:
    shapes = f"has shape {tensor.shape}, expected {expected}"
    return ModelLoadError(f"{tensor.path}: {name} {shapes}", hint=HINT)


def _logarithms(sources: Sequence[Floats]) -> Floats:
    least = np.finfo(np.float32).tiny
    return np.log(np.maximum(-sources[0].reshape(-1), least))


def _one_after_another(sources: Sequence[Floats]) -> Floats:
    return np.concatenate(sources, axis=-2)
