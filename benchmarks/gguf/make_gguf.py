"""Turn a safetensors folder into a GGUF file, as llama.cpp's converter does.

    python -m benchmarks.gguf.make_gguf FOLDER OUT.gguf [F32|F16|BF16|Q8_0]

Of the architectures that twostroke reads, with a byte-level tokenizer. Matrices are stored in the
format that is given, vectors in float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import cyclopts
import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from benchmarks.gguf.stored_layers import (
    ends_as_stored,
    layer_metadata,
    rotation_factors_of_gemma4,
    stored_as,
)
from benchmarks.gguf.writer import Value, WrittenTensor, encode, write_gguf
from twostroke.checkpoints.gguf.architecture import Architecture, without
from twostroke.checkpoints.gguf.architectures import ARCHITECTURES, MIXTRAL
from twostroke.checkpoints.gguf.hybrid_architectures import BAMBA
from twostroke.model_spec.model_files import weight_files

# Families whose files are those of another.
_SAME = {
    "mistral": "llama",
    "olmo3": "olmo2",
    "deepseek_v2": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
}
Floats = NDArray[np.float32]
StoredFormat = Literal["F32", "F16", "BF16", "Q8_0"]
# Stored in float32 whatever the format: none of them is multiplied as a matrix.
_PLAIN = ("ssm_a", "ssm_d", "ssm_norm", "ssm_conv1d", "shortconv.conv")
_COMMON = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.freq_base": "rope_theta",
}


_OF_ATTENTION = [key for key in _COMMON if key.startswith(("attention.", "rope.", "feed_"))]


def architecture_for(raw: Mapping[str, Any]) -> tuple[str, Architecture]:
    """llama.cpp's name for the model of a ``config.json``, and what it changes."""
    model_type = raw["model_type"]
    if model_type in ("mixtral", "bamba"):
        return ("llama", MIXTRAL) if model_type == "mixtral" else ("granitehybrid", BAMBA)
    if model_type == "nemotron_h" and "n_routed_experts" in raw:
        return "nemotron_h_moe", ARCHITECTURES["nemotron_h_moe"]
    same = _SAME.get(model_type, model_type)
    return next((name, own) for name, own in ARCHITECTURES.items() if own.model_type == same)


def read_metadata(folder: Path, pre: str = "gpt-2") -> dict[str, Value]:
    """Of a folder's ``config.json`` and tokenizer; ``pre``: how its words are split."""
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    name, own = architecture_for(raw)
    common = _COMMON if own.attends else without(_COMMON, *_OF_ATTENTION)
    fields = {**common, **{key: field for field, key in {**own.integers, **own.numbers}.items()}}
    fields[own.norm_eps[1]] = own.norm_eps[0]
    metadata: dict[str, Value] = {"general.architecture": name, "general.alignment": 32}
    for key, field in fields.items():
        if raw.get(field) is not None:
            metadata[f"{name}.{key}"] = raw[field]
    scaling = raw.get("rope_scaling") or {}
    if (kind := scaling.get("rope_type", scaling.get("type"))) in ("linear", "yarn"):
        metadata[f"{name}.rope.scaling.type"] = kind
        metadata[f"{name}.rope.scaling.factor"] = float(scaling["factor"])
        if kind == "yarn":
            length = scaling["original_max_position_embeddings"]
            metadata[f"{name}.rope.scaling.original_context_length"] = length
    if own.attends and "partial_rotary_factor" in raw:
        size = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        rotated = int(size * raw["partial_rotary_factor"])
        metadata[f"{name}.rope.dimension_count"] = rotated
    metadata |= layer_metadata(raw, name, own)
    if (folder / "tokenizer.json").is_file():
        metadata |= _vocabulary(folder, pre)
    return metadata


def _vocabulary(folder: Path, pre: str) -> dict[str, Value]:
    raw = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    ids = raw["model"]["vocab"] | {each["content"]: each["id"] for each in raw["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = {each["content"]: 3 if each["special"] else 4 for each in raw["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in raw["model"]["merges"]]
    metadata: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": bool(settings.get("add_bos_token", False)),
    }
    for name in ("bos", "eos"):
        if settings.get(f"{name}_token") in ids:
            metadata[f"tokenizer.ggml.{name}_token_id"] = ids[settings[f"{name}_token"]]
    if "chat_template" in settings:
        metadata["tokenizer.chat_template"] = settings["chat_template"]
    return metadata


def read_tensors(folder: Path, format: str) -> Iterator[tuple[str, WrittenTensor]]:
    """All tensors by llama.cpp's names."""
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    _, own = architecture_for(raw)
    ends = {target: name for name, target in own.ends.items()}
    before = re.compile(re.escape(own.layers).replace(r"\{\}", r"(\d+)") + "(.+)")
    experts: dict[str, dict[int, Floats]] = {}
    for path in weight_files(folder):
        for name, tensor in load_file(path).items():
            values: Floats = tensor.float().numpy()
            match = before.fullmatch(name)
            if match is None:
                base, _, part = name.rpartition(".")
                values = ends_as_stored(ends[base], values, raw, own)
                yield f"{ends[base]}.{part}", _encoded(name, values, own, format)
                continue
            index = re.search(r"experts\.(\d+)\.", match[2])
            plain = match[2] if index is None else match[2].replace(index[0], "experts.{}.")
            for stored, each in stored_as(plain, values, raw, own).items():
                target = f"blk.{match[1]}.{stored}"
                if index is not None:
                    experts.setdefault(target, {})[int(index[1])] = each
                else:
                    own_format = "F32" if stored.startswith(_PLAIN) else format
                    yield target, _encoded(name, each, own, own_format)
    for target, matrices in experts.items():
        stacked = np.stack([matrices[index] for index in sorted(matrices)])
        yield target, encode(stacked, format)
    if own.gemma4:
        yield "rope_freqs.weight", encode(rotation_factors_of_gemma4(raw), "F32")


def _encoded(name: str, values: Floats, own: Architecture, format: str) -> WrittenTensor:
    if values.ndim > 1:
        return encode(values, format)
    shift = own.norm_shift if name.endswith("norm.weight") else 0.0
    return encode(values + np.float32(shift), "F32")


def convert(folder: Path, out: Path, format: str = "BF16", **changes: Value) -> Path:
    """Write ``out``; ``changes``: metadata beside the folder's."""
    metadata: Mapping[str, Value] = {**read_metadata(folder), **changes}
    return write_gguf(out, metadata, dict(read_tensors(folder, format)))


def main(folder: Path, out: Path, format: StoredFormat = "BF16", /) -> None:
    """Write a GGUF file.

    Args:
        folder: A checkpoint in safetensors.
        out: The file to write.
        format: What matrices are stored in.
    """
    print(convert(folder, out, format))


if __name__ == "__main__":
    cyclopts.run(main)
