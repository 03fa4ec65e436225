"""Tiny random encoders of the BERT family: checkpoints as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertModel": ("bert", {}),
    "BertForMaskedLM": ("bert", {"hidden_act": "gelu_new"}),
    "BertForSequenceClassification": ("bert", {"num_labels": 1}),
    "RobertaModel": ("roberta", {"type_vocab_size": 1, "pad_token_id": 1}),
    "RobertaForSequenceClassification": ("roberta", {"type_vocab_size": 1, "num_labels": 1}),
    "XLMRobertaModel": ("xlm-roberta", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "XLMRobertaForSequenceClassification": ("xlm-roberta", {"num_labels": 1}),
}


def write_encoder(folder: Path, architecture: str, **changes: Any) -> Any:
    """Save a checkpoint with random weights and biases; returns transformers' model of it."""
    import transformers

    model_type, fields = ENCODERS[architecture]
    config = transformers.AutoConfig.for_model(model_type, **{**TINY, **fields, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape)
            is_norm = "LayerNorm.weight" in name
            parameter.copy_(1 + 0.2 * values if is_norm else 0.3 * values)
    model.save_pretrained(folder)
    return model
