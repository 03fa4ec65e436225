"""Encoders of the BERT family as their ``config.json`` describes them.

Devlin et al., BERT, NAACL 2019; Liu et al., RoBERTa, 2019; Conneau et al., XLM-R, ACL 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short
from twostroke.model_spec.vectors.score_head import (
    CLASSIFICATION,
    has_score_head,
    read_score_activation,
)

# ``model_type`` to what the names of its tensors begin with where it has a head.
ENCODER_TYPES: Mapping[str, str] = {
    "bert": "bert.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
MAX_LAYERS = 1024  # no encoder is near it, and each makes a list of names
_HEADS = ("Model", "ForMaskedLM", CLASSIFICATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """A bidirectional encoder with learnt positions and norms after each addition.

    Attributes:
        num_positions: Rows of the position table.
        first_position: The row of a prompt's first token. RoBERTa's rows begin after the padding
            token's id, which is ``padding_id``.
        num_types: Rows of the table of token types.
        ranks: Whether it has a ranking head: one number for a pair of texts.
        score_activation: What is applied to that number: ``Sigmoid`` or ``Identity``.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: int
    vocab_size: int
    num_positions: int
    first_position: int
    padding_id: int
    num_types: int
    norm_eps: float
    activation: str
    dtype: str | None
    ranks: bool
    score_activation: str

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def max_length(self) -> int:
        """Most tokens of a prompt."""
        return self.num_positions - self.first_position


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` describes an encoder of this family."""
    model_type = config.get("model_type")
    return isinstance(model_type, str) and model_type in ENCODER_TYPES


def parse_encoder(config: Mapping[str, Any]) -> EncoderSpec:
    """Parse the contents of ``config.json``.

    Raises:
        ModelLoadError: A value is missing or makes no sense, or is not supported.
    """
    fields = ConfigFields(config)
    model_type = str(config.get("model_type"))
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if hidden % heads:
        raise _refusal(f"hidden_size ({hidden}) is no multiple of num_attention_heads ({heads})")
    position_kind = config.get("position_embedding_type") or "absolute"
    if position_kind != "absolute":
        raise _refusal(f"position_embedding_type {short(position_kind)} is not supported")
    if fields.flag("is_decoder") or fields.flag("add_cross_attention"):
        raise _refusal("only encoders are supported: is_decoder must be false")
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise _refusal(f"hidden_act {short(activation)} is not supported")
    ranks = _ranks(fields)
    is_roberta = model_type != "bert"
    padding = fields.integer("pad_token_id", 1, minimum=0) if is_roberta else 0
    positions = fields.integer("max_position_embeddings", 512)
    if is_roberta and positions <= padding + 1:
        raise _refusal(f"max_position_embeddings ({positions}) leaves no position for a token")
    dtype = str(config.get("dtype", config.get("torch_dtype"))).removeprefix("torch.")
    return EncoderSpec(
        model_type=model_type,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
        heads=heads,
        vocab_size=fields.integer("vocab_size"),
        num_positions=positions,
        first_position=padding + 1 if is_roberta else 0,
        padding_id=padding,
        num_types=fields.integer("type_vocab_size", 2),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=str(activation),
        dtype=dtype if dtype in ("float32", "float16", "bfloat16") else None,
        ranks=ranks,
        score_activation=read_score_activation(fields),
    )


def _ranks(fields: ConfigFields) -> bool:
    names = fields.items("architectures")
    name = str(names[0]) if names else "Model"
    if not name.endswith(_HEADS):
        raise ModelLoadError(
            f"unsupported head: config.json names the architecture {short(name)}",
            hint="supported: " + ", ".join(f"...{head}" for head in _HEADS),
        )
    return has_score_head(fields.raw)


def _refusal(message: str) -> ModelLoadError:
    return ModelLoadError(f"config.json: {message}", hint=CHECK)
