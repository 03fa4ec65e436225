"""What a model is made of, exactly: parameters, bytes, FLOPs. Read from any known ``config.json``,
no weights needed.

Counts are those of the reference implementations in transformers
(``tests/simulator/test_model_sheet.py`` compares them). One multiply and one add are two FLOPs.
Towers for images or sound are left out: the text model is what serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twostroke.core.errors import ConfigError
from twostroke.model_spec.number_formats import cache_bytes, weight_format


@dataclass(frozen=True, slots=True)
class Part:
    """Outputs of a linear layer that tensor parallelism deals out in ``units`` (heads, say), none
    of them split.
    """

    outputs: int
    units: int

    def on_rank(self, ranks: int) -> int:
        return self.outputs // self.units * -(-self.units // ranks)


def whole(outputs: int) -> tuple[Part, ...]:
    """Outputs that every rank computes all of."""
    return (Part(outputs, 1),)


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix product ``[tokens, inputs] x [inputs, outputs]``.

    Attributes:
        parts: What the outputs consist of; layers that servers fuse (query, key and value) are one
            here too.
        input_units: In how many units the inputs are dealt out over ranks; 1 if every rank has all
            of them.
        quantised: Whether a quantised checkpoint stores it in few bits.
    """

    name: str
    parts: tuple[Part, ...]
    inputs: int
    input_units: int = 1
    bias: bool = False
    quantised: bool = True

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs + self.outputs * self.bias

    def on_rank(self, ranks: int) -> tuple[int, int]:
        """(outputs, inputs) of the piece that one of ``ranks`` devices holds."""
        outputs = sum(part.on_rank(ranks) for part in self.parts)
        return outputs, Part(self.inputs, self.input_units).on_rank(ranks)

    def rank_parameters(self, ranks: int) -> int:
        outputs, inputs = self.on_rank(ranks)
        return outputs * inputs + outputs * self.bias


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention of one layer.

    Attributes:
        key_dim: Elements of a query or key head; ``value_dim`` those of a value head.
        window: How many of the latest tokens a token sees, itself included; ``None`` is all.
        latent: Elements that multi-head latent attention caches per token (DeepSeek-V2,
            arXiv:2405.04434): the compressed keys and values and the rotary key. 0 for ordinary
            attention.
        latent_value: Those of them that the values are made of.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    latent: int = 0
    latent_value: int = 0

    def cached_elements(self, ranks: int = 1) -> int:
        """Elements that one token adds to the cache of one device. The latent is kept whole by
        every rank.
        """
        return self.latent or -(-self.kv_heads // ranks) * (self.key_dim + self.value_dim)

    def seen(self, context: int) -> int:
        return context if self.window is None else min(context, self.window)

    def prefill_flops(self) -> int:
        """For one pair of a query and a token that it sees, over all heads."""
        return 2 * self.heads * (self.key_dim + self.value_dim)

    def decode_flops(self) -> int:
        """The same where one token is computed: latent attention then works on the compressed
        form.
        """
        return (
            2 * self.heads * (self.latent + self.latent_value)
            if self.latent
            else self.prefill_flops()
        )


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A layer that keeps a state of fixed size instead of keys and values (linear attention,
    Mamba).

    Attributes:
        heads: What tensor parallelism deals out, none of them split.
        state_elements: Of one request's state, all heads.
        conv: Elements of one request's state of the convolution, bfloat16, as tensor parallelism
            deals them out.
        flops: For one token.
        state_width: Bytes of one element of the state.
    """

    heads: int
    state_elements: int
    conv: tuple[Part, ...]
    flops: int
    state_width: int = 4

    def state_bytes(self, ranks: int = 1) -> int:
        state = Part(self.state_elements, self.heads).on_rank(ranks)
        return self.state_width * state + 2 * sum(part.on_rank(ranks) for part in self.conv)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: ``per_token`` of ``count`` are computed for each token."""

    count: int
    per_token: int
    linears: tuple[Linear, ...]  # of one expert

    def expected_distinct(self, tokens: int) -> float:
        """How many experts ``tokens`` tokens reach if each picks ``per_token`` at random: ``E (1 -
        (1 - k/E)^T)``.
        """
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class Layer:
    """``count`` equal decoder layers.

    Attributes:
        other_parameters: Norms, gates, convolutions and the like of one.
        branches: How often a layer adds to the hidden state; most do so behind attention and behind
            the MLP.
    """

    count: int
    linears: tuple[Linear, ...]
    other_parameters: int
    attention: Attention | None = None
    recurrence: Recurrence | None = None
    experts: Experts | None = None
    branches: int = 2

    @property
    def parameters(self) -> int:
        """Of one layer."""
        experts = (
            self.experts.count * sum(e.parameters for e in self.experts.linears)
            if self.experts
            else 0
        )
        return sum(linear.parameters for linear in self.linears) + experts + self.other_parameters

    @property
    def active_parameters(self) -> int:
        """Of one layer, those that one token is multiplied with."""
        experts = (
            self.experts.per_token * sum(e.parameters for e in self.experts.linears)
            if self.experts
            else 0
        )
        return sum(linear.parameters for linear in self.linears) + experts + self.other_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSheet:
    """A decoder-only model. ``format`` is the one that its checkpoint states; methods take another
    to ask "what if".
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    head: Linear
    tied: bool
    other_parameters: int  # final norm
    max_length: int
    format: str

    @property
    def num_layers(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """All of them; tied embeddings count once."""
        embedding = self.vocab_size * self.hidden_size
        inside = sum(layer.count * layer.parameters for layer in self.layers)
        return (
            embedding + inside + self.other_parameters + (0 if self.tied else self.head.parameters)
        )

    @property
    def active_parameters(self) -> int:
        """Those that one token is multiplied with: the chosen experts only, and the head."""
        return (
            sum(layer.count * layer.active_parameters for layer in self.layers)
            + self.head.parameters
            + self.other_parameters
        )

    def weight_bytes(self, format_: str | None = None, ranks: int = 1) -> int:
        """Bytes of the weights on one of ``ranks`` devices. Embeddings, head, router, norms and
        biases are never quantised, nor what the checkpoint left out."""
        stored = weight_format(format_ or self.format)
        plain = 4 if stored.name == "fp32" else 2
        bits = 0.0
        for layer in self.layers:
            for copies, linear in _linears(layer):
                outputs, inputs = linear.on_rank(ranks)
                width = stored.bits if linear.quantised else 8 * plain
                bits += layer.count * copies * outputs * (inputs * width + linear.bias * 8 * plain)
            bits += layer.count * layer.other_parameters * 8 * plain
        tables = self.head.rank_parameters(ranks) * (1 if self.tied else 2)
        return round(bits / 8) + (tables + self.other_parameters) * plain

    def kv_bytes_per_token(self, format_: str = "auto", ranks: int = 1) -> float:
        """What one more token adds to one device's cache while no window is full."""
        elements = sum(
            layer.count * layer.attention.cached_elements(ranks)
            for layer in self.layers
            if layer.attention
        )
        return elements * cache_bytes(format_)

    def kv_bytes(self, tokens: int, format_: str = "auto", ranks: int = 1) -> float:
        """What a request of ``tokens`` tokens needs at least: full windows grow no more. State
        included.
        """
        elements = sum(
            layer.count * layer.attention.cached_elements(ranks) * layer.attention.seen(tokens)
            for layer in self.layers
            if layer.attention
        )
        return elements * cache_bytes(format_) + self.state_bytes(ranks)

    def state_bytes(self, ranks: int = 1) -> int:
        """What a request needs whatever its length: the states of recurrent layers."""
        return sum(
            layer.count * layer.recurrence.state_bytes(ranks)
            for layer in self.layers
            if layer.recurrence
        )

    def linear_flops(self) -> int:
        """FLOPs of one token but for attention and the head."""
        total = 0
        for layer in self.layers:
            active = sum(linear.inputs * linear.outputs for linear in layer.linears)
            if layer.experts:
                each = sum(linear.inputs * linear.outputs for linear in layer.experts.linears)
                active += layer.experts.per_token * each
            total += layer.count * (
                2 * active + (layer.recurrence.flops if layer.recurrence else 0)
            )
        return total

    def head_flops(self) -> int:
        return 2 * self.head.inputs * self.head.outputs

    def attention_flops(self, new_tokens: int, cached: int = 0) -> int:
        """Of a chunk of ``new_tokens`` after ``cached`` ones: every query sees what precedes it,
        and itself.
        """
        total = 0
        for layer in self.layers:
            if layer.attention:
                pair = (
                    layer.attention.decode_flops()
                    if new_tokens == 1
                    else layer.attention.prefill_flops()
                )
                total += layer.count * pair * seen_pairs(new_tokens, cached, layer.attention.window)
        return total

    def prefill_flops(self, tokens: int) -> int:
        """Of a whole prompt, one token sampled."""
        return tokens * self.linear_flops() + self.attention_flops(tokens) + self.head_flops()

    def decode_flops(self, context: int) -> int:
        """Of one token that sees ``context`` tokens, itself included."""
        return self.linear_flops() + self.attention_flops(1, context - 1) + self.head_flops()

    def check_ranks(self, ranks: int) -> None:
        """Raises ConfigError if heads, of queries or of states, cannot be dealt out evenly."""
        for layer in self.layers:
            found = (("attention", layer.attention), ("recurrent", layer.recurrence))
            for kind, heads in ((kind, part.heads) for kind, part in found if part):
                if heads % ranks:
                    raise ConfigError(
                        f"tensor parallelism {ranks} does not divide the model's {heads} {kind}"
                        " heads",
                        hint="choose a divisor of the number of heads",
                    )


def seen_pairs(new_tokens: int, cached: int, window: int | None = None) -> int:
    """How many (query, key) pairs a causal chunk computes: query i of n sees ``cached + i`` tokens,
    or its window.
    """
    if window is None or cached + new_tokens <= window:
        return new_tokens * cached + new_tokens * (new_tokens + 1) // 2
    growing = max(0, min(new_tokens, window - cached))
    return growing * cached + growing * (growing + 1) // 2 + (new_tokens - growing) * window


def _linears(layer: Layer) -> Iterator[tuple[int, Linear]]:
    for linear in layer.linears:
        yield 1, linear
    if layer.experts:
        for linear in layer.experts.linears:
            yield layer.experts.count, linear
