"""Writes a Llama checkpoint as a bf16 GGUF file; llama.cpp's own quantizer rounds it.

Token ids are all that most benchmarks need, so the file has a vocabulary only where
``--vocabulary`` asks for it (of byte-level tokenizers). Run in the environment of llama.cpp, which
has ``gguf`` and ``numpy``. Queries and keys are reordered as llama.cpp's rotation wants them
(``convert_hf_to_gguf.py``, ``LlamaModel.permute``).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
FORMATS = {
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q6_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
    "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}


def tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and bfloat16 values, as uint16, of a safetensors file."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = struct.unpack("<Q", data[:8])[0]
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise SystemExit(f"error: {name} is {entry['dtype']}, not BF16")
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        yield name, np.frombuffer(data[begin:end], np.uint16).reshape(entry["shape"])


def target_name(name: str) -> str:
    """A tensor's name in GGUF."""
    base = name.removesuffix(".weight")
    if base in ENDS:
        return f"{ENDS[base]}.weight"
    _, _, layer, rest = base.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Tokens and merges of a byte-level ``tokenizer.json``."""
    raw = json.loads((folder / "tokenizer.json").read_text())
    if (model := raw["model"])["type"] != "BPE":
        raise SystemExit(f"error: a {model['type']} vocabulary cannot be converted")
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = {added["content"] for added in raw["added_tokens"]}
    config = json.loads((folder / "config.json").read_text())
    unused = [f"[PAD{token}]" for token in range(len(tokens), config["vocab_size"])]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + unused)
    types = [kinds.CONTROL if t in special else kinds.NORMAL for t in tokens]
    writer.add_token_types(types + [kinds.UNUSED] * len(unused))
    merges = model["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(config["eos_token_id"])


def convert(folder: Path, target: Path, vocabulary: bool = False) -> None:
    """Write the checkpoint in ``folder`` as bf16; norms become float32, as llama.cpp keeps them."""
    raw = json.loads((folder / "config.json").read_text())
    heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_rope_dimension_count(raw["head_dim"])
    writer.add_key_length(raw["head_dim"])
    writer.add_value_length(raw["head_dim"])
    writer.add_rope_freq_base(raw["rope_theta"])
    writer.add_vocab_size(raw["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    if vocabulary:
        add_vocabulary(writer, folder)
    else:
        writer.add_tokenizer_model("no_vocab")
    for name, values in tensors(folder / "model.safetensors"):
        if values.ndim == 1:
            writer.add_tensor(target_name(name), (values.astype(np.uint32) << 16).view(np.float32))
            continue
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:
                pairs = values.reshape(count, 2, len(values) // count // 2, values.shape[1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        data = np.ascontiguousarray(values).view(np.uint8)
        writer.add_tensor(target_name(name), data, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: Path, target: Path, format: str, threads: int) -> None:
    """As ``llama-quantize`` does it without options: Q4_0 keeps the output matrix in Q6_K."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = FORMATS[format], threads
    if (
        llama_cpp.llama_model_quantize(
            str(source).encode(), str(target).encode(), ctypes.byref(params)
        )
        != 0
    ):
        raise SystemExit(f"error: llama.cpp could not quantize {source}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, help="folder for bf16.gguf, and a file by format")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-bf16", action="store_true", help="round nothing")
    parser.add_argument("--vocabulary", action="store_true", help="with the tokens' texts")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    plain = args.out / "bf16.gguf"
    if not plain.exists():
        convert(args.checkpoint, plain, args.vocabulary)
    for format in () if args.only_bf16 else FORMATS:
        if not (args.out / f"{format}.gguf").exists():
            quantize(plain, args.out / f"{format}.gguf", format, args.threads)


if __name__ == "__main__":
    main()
