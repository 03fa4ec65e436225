"""Which layers a quantised checkpoint left in their own precision, as its config says."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from twostroke.model_spec.number_formats import stated_quantization

# Under these names the tools that quantise checkpoints keep their exceptions.
_FIELDS = (
    "modules_to_not_convert",  # transformers: fp8, mxfp4, awq
    "llm_int8_skip_modules",  # bitsandbytes
    "ignored_layers",  # llm-compressor's older fp8
    "ignore",  # compressed-tensors
    "exclude_modules",  # modelopt
)
# Modules in a checkpoint that the products of a layer consist of.
_MODULES = {
    "qkv": ("self_attn.q_proj", "self_attn.qkv_proj", "mixer.q_proj"),
    "attention_output": ("self_attn.o_proj", "mixer.o_proj"),
    "query_kv_down": ("self_attn.kv_a_proj_with_mqa",),
    "query_up": ("self_attn.q_b_proj",),
    "kv_up": ("self_attn.kv_b_proj",),
    "mlp_gate_up": ("mlp.gate_proj", "mlp.gate_up_proj", "feed_forward.gate_proj"),
    "mlp_up": ("mixer.up_proj",),
    "mlp_down": ("mlp.down_proj", "feed_forward.down_proj", "mixer.down_proj"),
    "expert_gate_up": (
        "mlp.experts.0.gate_proj",
        "block_sparse_moe.experts.0.w1",
        "feed_forward.experts.0.gate_proj",
        "block_sparse_moe.input_linear",
    ),
    "expert_up": ("mixer.experts.0.up_proj",),
    "expert_down": (
        "mlp.experts.0.down_proj",
        "block_sparse_moe.experts.0.w2",
        "feed_forward.experts.0.down_proj",
        "block_sparse_moe.output_linear",
        "mixer.experts.0.down_proj",
    ),
    "shared_expert_gate_up": (
        "mlp.shared_expert.gate_proj",
        "mlp.shared_experts.gate_proj",
        "shared_mlp.input_linear",
    ),
    "shared_expert_up": ("mixer.shared_experts.up_proj",),
    "shared_expert_down": (
        "mlp.shared_expert.down_proj",
        "mlp.shared_experts.down_proj",
        "shared_mlp.output_linear",
        "mixer.shared_experts.down_proj",
    ),
    "state_input": ("linear_attn.in_proj_qkvz", "mamba.in_proj", "mixer.in_proj"),
    "state_output": ("linear_attn.out_proj", "mamba.out_proj", "mixer.out_proj"),
}


class Unquantised:
    """The exceptions of one ``config.json``.

    An entry names a module with all that is in it, in full or from some dot on; it may hold ``*``.
    Regular expressions (``re:``) are understood as far as they consist of names and ``.*``.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        stated = stated_quantization(raw)
        listed = [stated.get(field) for field in _FIELDS] if isinstance(stated, Mapping) else []
        entries = {
            _plain(name) for names in listed if isinstance(names, list) for name in names if name
        }
        self._exact = sorted(entry for entry in entries if "*" not in entry)
        self._patterns = sorted(entry for entry in entries if "*" in entry)

    def __bool__(self) -> bool:
        return bool(self._exact or self._patterns)

    def has(self, name: str, layer: int) -> bool:
        """Whether the checkpoint keeps the product ``name`` of a layer in its own precision."""
        modules = _MODULES.get(name, ())
        paths = [
            f".{root}.layers.{layer}.{module}."
            for root in ("model", "backbone")
            for module in modules
        ]
        return any(
            any(f".{entry}." in path for entry in self._exact)
            or any(fnmatchcase(path, f"*.{entry}.*") for entry in self._patterns)
            for path in paths
        )


def _plain(entry: object) -> str:
    text = str(entry).removeprefix("re:").removeprefix("^").removesuffix("$")
    text = (
        text.replace("\\.", ".")
        .replace("language_model.model.", "model.")
        .replace("model.language_model.", "model.")
    )
    return text.replace(".*", "*").removeprefix("*.").removesuffix(".")
