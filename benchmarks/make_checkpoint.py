"""Write a random-weight checkpoint for benchmarks.

    python benchmarks/make_checkpoint.py 350m OUT
    python benchmarks/make_checkpoint.py qwen3.5-300m OUT

The sizes are those of the measurements in the docs. Weights are normal with standard deviation
0.02, in bfloat16. The tokenizer is byte-level with one merge, of two bytes that no text has side by
side; the rest of the vocabulary is filled up with tokens such as ``<|pad_300|>``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cyclopts
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from twostroke.models.registry import decoder_family
from twostroke.models.support import parse_runnable

SIZES: dict[str, dict[str, Any]] = {
    "350m": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2816,
        "vocab_size": 32000,
    },
    "270m": {  # beside qwen3.5-300m
        "hidden_size": 1024,
        "num_hidden_layers": 17,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2816,
        "vocab_size": 32000,
    },
    "10m": {
        "hidden_size": 320,
        "num_hidden_layers": 6,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "intermediate_size": 864,
        "vocab_size": 8192,
    },
    "qwen3.5-10m": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 320,
        "num_hidden_layers": 8,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "intermediate_size": 640,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "vocab_size": 8192,
        "tie_word_embeddings": True,
    },
    # About 300 M parameters of what people run, in proportions of the published models.
    "qwen3.5-300m": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 3072,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
    "qwen3-moe-300m": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 2304,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
    "gemma3-300m": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 1024,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 4096,
        "sliding_window": 512,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
    "gpt-oss-300m": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 256,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "vocab_size": 32000,
    },
}
NEVER = "ÿ"  # how a byte-level vocabulary writes 0xFF
SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content']"
    " }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def model_json(size: dict[str, Any]) -> dict[str, Any]:
    """Contents of ``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 256,
        "eos_token_id": 257,
        **size,
    }


def write_weights(raw: dict[str, Any], path: Path, seed: int = 0) -> int:
    """Random weights; returns their number."""
    generator = torch.Generator().manual_seed(seed)
    spec = parse_runnable(raw)
    tensors = {}
    for parameter in decoder_family(spec.model_type).parameters(spec):
        for name, shape in parameter.parts:
            ones = name.endswith("norm.weight")
            values = torch.ones(shape) if ones else 0.02 * torch.randn(shape, generator=generator)
            tensors[name] = values.to(torch.bfloat16)
    save_file(tensors, path, metadata={"format": "pt"})
    return spec.num_parameters


def write_tokenizer(vocab_size: int, folder: Path) -> None:
    """256 bytes, the special tokens, and filler up to ``vocab_size``."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL_TOKENS]
    # Filler is ordinary vocabulary that no merge reaches: as added tokens, 30,000 of them would
    # slow down encoding.
    words += [f"<|pad_{index}|>" for index in range(len(words), vocab_size - 1)]
    # llama.cpp refuses a vocabulary without merges. Byte 0xFF is in no UTF-8 text.
    words.append(2 * NEVER)
    tokenizer = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[(NEVER, NEVER)])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def main(name: str, out: str) -> None:
    """Write a checkpoint.

    Args:
        name: Its size, one of SIZES.
        out: The folder to write.
    """
    if name not in SIZES:
        sys.exit(f"no size {name!r}; there are {', '.join(SIZES)}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    raw = model_json(SIZES[name])
    (folder / "config.json").write_text(json.dumps(raw, indent=2))
    generation = {"bos_token_id": 256, "eos_token_id": 257}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    write_tokenizer(raw["vocab_size"], folder)
    count = write_weights(raw, folder / "model.safetensors")
    print(f"{folder}: {count / 1e6:.1f} M parameters")


if __name__ == "__main__":
    cyclopts.run(main)
