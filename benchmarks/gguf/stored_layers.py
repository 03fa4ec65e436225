"""A layer's tensors, and what describes them, as llama.cpp's converter stores them.

Of families whose files hold something else than the folder's tensors by other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gguf.writer import Value
from twostroke.checkpoints.gguf.architecture import MLP, Architecture
from twostroke.model_spec.config.gemma4 import fields_of_layer
from twostroke.model_spec.config.layer_kinds import read_layer_kinds
from twostroke.model_spec.config.recurrent_layers import MAMBA2
from twostroke.model_spec.config_fields import ConfigFields

Floats = NDArray[np.float32]
Raw = Mapping[str, Any]
# What tensors that are no weight or bias of a layer end with; the others have a part of their own.
_ENDINGS = {"ssm_a": "", "ssm_d": "", "ssm_dt": ".bias", "exp_probs_b": ".bias"}


def stored_as(own: str, values: Floats, raw: Raw, row: Architecture) -> dict[str, Floats]:
    """One of a layer's tensors by its names in the file, without ``blk.`` and an index.

    Args:
        own: Its name at Hugging Face, without what the layer's names begin with; ``{}`` is the
            index of an expert.
        raw: The contents of ``config.json``.
    """
    if row.model_type == "llama4_text" and own.startswith("feed_forward.experts."):
        values = values.swapaxes(-1, -2)
        if own.endswith("down_proj"):
            return {"ffn_down_exps.weight": values}
        gate, up = np.split(values, 2, axis=-2)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    for (first, second), target in row.pairs.items():
        if own == target and target not in row.layer.values() and _is_there(first, raw):
            halves = np.split(values, 2, axis=-2)
            both = (f"{first}.weight", f"{second}.weight")
            return dict(zip(both, halves, strict=True))
    for name, target in row.scales.items():
        if own == target:
            return {f"{name}.scale": values}
    names = {target: name for name, target in row.layer.items() if _is_there(name, raw)}
    base, _, part = own.rpartition(".")
    name = names[own] if own in names else names[base]
    ending = _ENDINGS.get(name, ".weight" if own in names else f".{part}")
    if row.model_type == "falcon_h1" and name == "ffn_norm":
        ending = ""
    return {name + ending: _reshaped(name, ending, values, raw, row)}


def _is_there(name: str, raw: Raw) -> bool:
    """Whether a model has this tensor, of those by which files tell MLPs from shared experts."""
    if raw["model_type"] != "granitemoehybrid":
        return True
    if name.endswith("_shexp"):
        return bool(raw["num_local_experts"])
    return name not in MLP or not raw["num_local_experts"]


def _reshaped(name: str, ending: str, values: Floats, raw: Raw, row: Architecture) -> Floats:
    if name == "ssm_a":
        return -np.exp(values)[:, None]
    if name == "ssm_d":
        return values[:, None]
    if name == "ssm_norm" and row.mamba:
        return values.reshape(int(raw.get(MAMBA2[row.model_type].groups[0], 1)), -1)
    if name in row.taps and ending == ".weight":
        return values.squeeze(1)
    if row.interleaved and name in ("attn_q", "attn_k"):
        return interleaved(values, int(raw[_HEADS[name]]))
    if row.model_type == "falcon_h1":
        return _multiplied(name, values, raw)
    return values


_HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


def interleaved(values: Floats, heads: int) -> Floats:
    """Rows of each head's halves in turns."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _multiplied(name: str, values: Floats, raw: Raw) -> Floats:
    """What Falcon-H1's files have in place of its multipliers; tensors outside layers, too."""
    gate, down = raw["mlp_multipliers"]
    inputs, state = raw["attention_in_multiplier"], raw["ssm_in_multiplier"]
    factors: dict[str, float] = {
        "ffn_gate": gate,
        "ffn_down": down,
        "attn_q": inputs,
        "attn_k": inputs * raw["key_multiplier"],
        "attn_v": inputs,
        "attn_output": raw["attention_out_multiplier"],
        "ssm_out": raw["ssm_out_multiplier"],
        "token_embd": raw["embedding_multiplier"],
        "output": raw["lm_head_multiplier"],
    }
    if name != "ssm_in":
        return values * np.float32(factors.get(name, 1.0))
    heads = raw["mamba_n_heads"]
    inner, shared = raw["mamba_d_ssm"], raw["mamba_n_groups"] * raw["mamba_d_state"]
    rows = np.repeat(raw["ssm_multipliers"], [inner, inner, shared, shared, heads]) * state
    multiplied: Floats = values * rows.astype(np.float32)[:, None]
    return multiplied


def ends_as_stored(name: str, values: Floats, raw: Raw, row: Architecture) -> Floats:
    """A tensor outside the layers."""
    return _multiplied(name, values, raw) if row.model_type == "falcon_h1" else values


def layer_metadata(raw: Raw, name: str, row: Architecture) -> dict[str, Value]:
    """Keys that say of layers what ``config.json`` says otherwise; ``name`` is the architecture's.

    Shapes of states, lists with a number for each layer, and how tokens find experts.
    """
    metadata: dict[str, Value] = {}
    if row.mamba:
        metadata |= _state_sizes(raw, name, row)
    if row.unattending:
        metadata |= _lists(raw, name, row)
    if row.sigmoid:
        metadata |= {
            f"{name}.expert_gating_func": 2,
            f"{name}.expert_weights_norm": raw.get("norm_topk_prob", True),
            f"{name}.expert_weights_scale": raw["routed_scaling_factor"],
            f"{name}.expert_group_count": raw["n_group"],
            f"{name}.expert_group_used_count": raw["topk_group"],
        }
    if row.gemma4:
        metadata |= _sizes_of_gemma4(raw, name)
    return metadata


def _state_sizes(raw: Raw, name: str, row: Architecture) -> dict[str, Value]:
    names = MAMBA2[row.model_type]
    heads = raw[names.heads[0]]
    inner = raw.get(names.inner[0]) if names.inner else None
    if inner is None:
        size = raw.get(names.head_dim)
        inner = heads * size if size else raw.get(names.expand, 2) * raw["hidden_size"]
    return {
        f"{name}.ssm.conv_kernel": raw.get(names.kernel, 4),
        f"{name}.ssm.state_size": raw[names.state[0]],
        f"{name}.ssm.group_count": raw.get(names.groups[0], 1),
        f"{name}.ssm.time_step_rank": heads,
        f"{name}.ssm.inner_size": inner,
    }


def _lists(raw: Raw, name: str, row: Architecture) -> dict[str, Value]:
    kinds = read_layer_kinds(ConfigFields(raw), row.model_type)
    heads: list[int] = [
        raw["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds
    ]
    metadata: dict[str, Value] = {f"{name}.attention.head_count_kv": heads}
    if row.mamba:
        rotates = row.model_type == "bamba" or raw.get("position_embedding_type") == "rope"
        metadata[f"{name}.rope.scaling.finetuned"] = rotates
    if row.feeding:
        size = raw["intermediate_size" if row.feeding == "mlp" else "moe_intermediate_size"]
        sizes: list[int] = [size if kind == row.feeding else 0 for kind in kinds]
        metadata[f"{name}.feed_forward_length"] = sizes
    return metadata


def _sizes_of_gemma4(raw: Raw, name: str) -> dict[str, Value]:
    fields = ConfigFields(raw)
    kinds = read_layer_kinds(fields, "gemma4_text")
    layers = [fields_of_layer(fields, kinds, index).raw for index in range(len(kinds))]
    is_local: list[bool] = [kind == "sliding_attention" for kind in kinds]
    kv_heads: list[int] = [layer["num_key_value_heads"] for layer in layers]
    sizes: list[int] = [layer["intermediate_size"] for layer in layers]
    whole, local = raw["global_head_dim"], raw["head_dim"]
    return {
        f"{name}.attention.head_count_kv": kv_heads,
        f"{name}.attention.sliding_window_pattern": is_local,
        f"{name}.attention.shared_kv_layers": raw.get("num_kv_shared_layers", 0),
        **{f"{name}.attention.{part}_length": whole for part in ("key", "value")},
        **{f"{name}.attention.{part}_length_swa": local for part in ("key", "value")},
        f"{name}.rope.dimension_count": whole,
        f"{name}.rope.dimension_count_swa": local,
        f"{name}.rope.freq_base": 1e6,
        f"{name}.rope.freq_base_swa": 1e4,
        f"{name}.embedding_length_per_layer_input": raw["hidden_size_per_layer_input"],
        f"{name}.feed_forward_length": sizes,
    }


def rotation_factors_of_gemma4(raw: Raw) -> Floats:
    """1 for a quarter of a global head's pairs, as its family does by default."""
    pairs = raw["global_head_dim"] // 2
    return np.where(np.arange(pairs) < pairs // 4, 1.0, 1e30).astype(np.float32)
