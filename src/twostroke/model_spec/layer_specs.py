"""What the layers of a model consist of: one class per kind, with its parameters, bytes and FLOPs.

Counts are those of the reference implementations in transformers
(``tests/model_spec/test_counts.py`` compares them). One multiply and one add are two FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from twostroke.model_spec.factors import Multipliers, TemperatureSpec
from twostroke.model_spec.number_formats import NumberFormat
from twostroke.model_spec.recurrent_forms import RecurrentForm
from twostroke.model_spec.rope import RopeSpec
from twostroke.model_spec.routing import RoutingSpec


@dataclass(frozen=True, slots=True)
class Part:
    """Outputs of a linear layer that tensor parallelism splits between whole ``units`` (heads)."""

    outputs: int
    units: int

    def on_rank(self, ranks: int) -> int:
        return self.outputs // self.units * -(-self.units // ranks)


def whole(outputs: int) -> tuple[Part, ...]:
    """Outputs that every rank computes all of."""
    return (Part(outputs, 1),)


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """A matrix product ``[tokens, inputs] x [inputs, outputs]``.

    Attributes:
        parts: What the outputs consist of; layers that servers fuse (query, key and value) are one
            here too.
        input_units: In how many units the inputs are split over ranks; 1 if every rank has all of
            them.
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


Linears = tuple[LinearSpec, ...]


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """The compressed cache of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).

    Attributes:
        cached: Elements per token: the compressed keys and values, and the rotary key.
        value: Those of them that the values are made of.
        query_rank: Elements that queries are made of; ``None``: of the hidden state.
    """

    cached: int
    value: int
    query_rank: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Softmax attention of one layer.

    Attributes:
        key_dim: Elements of a query or key head.
        value_dim: Elements of a value head.
        window: How many of the latest tokens a token sees, itself included; ``None`` is all.
        chunked: Windows do not slide: a token sees its part of the text, of ``window`` tokens from
            a multiple of that on.
        latent: What is cached instead of keys and values, where the attention is latent.
        shares: The index of the layer whose keys and values it reads; ``None``: it has its own.
        linears: Its matrix products.
        other_parameters: Norms of heads, sinks and the like.
        sinks: Whether each query head has a score of its own that takes part in the softmax and
            has no value (gpt-oss).
        qk_norm: Whether each query and key head is normalized before the rotation.
        whole_norm: Whether all query heads are normalized together, and all key heads.
        unit_norm: Whether each query and key head is normalized, by no weight.
        qkv_bias: Whether queries, keys and values have a bias.
        output_bias: Whether the output has a bias.
        soft_cap: Bound of the scores, ``cap * tanh(score / cap)``; ``None`` is none.
        scale: What scores are multiplied by; ``None`` is ``key_dim ** -0.5``.
        rope: How queries and keys are rotated; ``None``: they are not.
        temperature: How queries grow with their position; ``None``: they do not.
        gated: Whether a sigmoid of the hidden state weighs what each query head attends to.
        value_norm: Whether each value head is normalized, by no weight.
        keys_as_values: Whether values are what keys are before their norm and rotation, with no
            product of their own.
        rotary_fraction: Share of a head's elements that are rotated, the first ones.
        interleaved: Rotation pairs neighbours, not element i with i + rotated / 2.
        index: What finds the ``chosen`` tokens that a query attends to, where it is sparse.
        index_format: Set of such an index, which has no values: the format of its keys. Every rank
            computes and keeps all of it.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    latent: LatentSpec | None = None
    shares: int | None = field(default=None, kw_only=True)
    linears: Linears = field(default=(), kw_only=True)
    other_parameters: int = field(default=0, kw_only=True)
    qk_norm: bool = field(default=False, kw_only=True)
    whole_norm: bool = field(default=False, kw_only=True)
    unit_norm: bool = field(default=False, kw_only=True)
    chunked: bool = field(default=False, kw_only=True)
    temperature: TemperatureSpec | None = field(default=None, kw_only=True)
    qkv_bias: bool = field(default=False, kw_only=True)
    output_bias: bool = field(default=False, kw_only=True)
    soft_cap: float | None = field(default=None, kw_only=True)
    scale: float | None = field(default=None, kw_only=True)
    gated: bool = field(default=False, kw_only=True)
    sinks: bool = field(default=False, kw_only=True)
    value_norm: bool = field(default=False, kw_only=True)
    keys_as_values: bool = field(default=False, kw_only=True)
    rope: RopeSpec | None = field(default=None, kw_only=True)
    rotary_fraction: float = field(default=1.0, kw_only=True)
    interleaved: bool = field(default=False, kw_only=True)
    index: AttentionSpec | None = field(default=None, kw_only=True)
    chosen: int | None = field(default=None, kw_only=True)
    index_format: NumberFormat | None = field(default=None, kw_only=True)

    @property
    def passes(self) -> tuple[AttentionSpec, ...]:
        """The index, if there is one, and the attention itself: each reads what it cached."""
        return (self,) if self.index is None else (self.index, self)

    @property
    def attended(self) -> int | None:
        """Most tokens that a query attends to; ``None`` is all."""
        return self.window if self.chosen is None else self.chosen

    @property
    def rotated(self) -> int:
        """Elements of a query or key head that are rotated."""
        # A fraction that was a quotient may lie just below its whole number.
        return int(self.key_dim * self.rotary_fraction + 1e-6) if self.rope else 0

    def cached_elements(self, ranks: int = 1) -> int:
        """Elements of a token in the cache that it reads. Every rank keeps a latent whole."""
        if self.latent:
            return self.latent.cached
        return -(-self.kv_heads // ranks) * (self.key_dim + self.value_dim)

    def cached_bits(self, format_: NumberFormat, ranks: int = 1) -> int:
        """Bits that one device keeps of a token, with the format's scales and an index's keys."""
        return sum(each.read_bits(format_, ranks) for each in self.passes)

    def read_bits(self, format_: NumberFormat, ranks: int = 1) -> int:
        """Bits of a token that it reads itself, without its index."""
        if self.index_format:
            return self.index_format.bits_of(self.key_dim)
        if self.latent:
            return format_.bits_of(self.latent.cached)
        head = format_.bits_of(self.key_dim) + format_.bits_of(self.value_dim)
        return -(-self.kv_heads // ranks) * head

    def cached_bytes(self, format_: NumberFormat, ranks: int = 1) -> float:
        """Bytes of one cached element, with its share of the scales."""
        return self.read_bits(format_, ranks) / 8 / self.cached_elements(ranks)

    def seen(self, context: int) -> int:
        return context if self.window is None else min(context, self.window)

    def prefill_flops(self) -> int:
        """FLOPs of one pair of a query and a token that it sees, over all heads.

        Sparse attention works on the compressed form in prefill as well.
        """
        if self.index is not None:
            return self.decode_flops()
        return 2 * self.heads * (self.key_dim + self.value_dim)

    def decode_flops(self) -> int:
        """FLOPs of such a pair in decode: latent attention then works on the compressed form."""
        if self.latent:
            return 2 * self.heads * (self.latent.cached + self.latent.value)
        return self.prefill_flops()


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A part with a state of fixed size instead of keys and values (linear attention, Mamba).

    Attributes:
        heads: What tensor parallelism splits the state between, each of them whole.
        state_elements: Elements of one request's state, all heads.
        conv: Elements of one request's state of the convolution, bfloat16, as tensor parallelism
            splits them.
        flops: For one token.
        state_width: Bytes of one element of the state.
        linears: Its matrix products.
        other_parameters: Convolution, decays, norms.
        form: What it computes; ``None`` where only its size is known.
    """

    heads: int
    state_elements: int
    conv: tuple[Part, ...]
    flops: int
    state_width: int = 4
    linears: Linears = ()
    other_parameters: int = 0
    form: RecurrentForm | None = None

    def state_bytes(self, ranks: int = 1) -> int:
        state = Part(self.state_elements, self.heads).on_rank(ranks)
        return self.state_width * state + 2 * sum(part.on_rank(ranks) for part in self.conv)


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """A feed-forward part that every token goes through.

    Attributes:
        size: Elements between its products.
        activation: Its name in ``config.json`` (``silu``, ``gelu_pytorch_tanh`` ...).
        gated: Whether one half of the first product's outputs is multiplied with the other.
    """

    size: int
    linears: Linears
    activation: str = "silu"
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts: ``per_token`` of ``count`` are computed for each token.

    Attributes:
        linears: The products of one expert.
        shared: What every token goes through: the router and shared experts.
        activation: See ``MlpSpec``; for each expert.
        gated: See ``MlpSpec``; for each expert.
        size: Elements between an expert's products.
        shared_size: Elements between the shared experts' products, 0 where there are none.
        bias: Whether the products of an expert, and the router, have one.
        shared_gate: Whether a sigmoid of the hidden state weighs the shared experts.
        narrow: Elements of the copy of the hidden state that experts work on; 0: on itself.
    """

    count: int
    per_token: int
    linears: Linears
    shared: Linears = ()
    activation: str = "silu"
    gated: bool = True
    size: int = field(default=0, kw_only=True)
    shared_size: int = field(default=0, kw_only=True)
    bias: bool = field(default=False, kw_only=True)
    shared_gate: bool = field(default=False, kw_only=True)
    narrow: int = field(default=0, kw_only=True)
    routing: RoutingSpec = field(default=RoutingSpec(), kw_only=True)

    def has_bias(self, name: str) -> bool:
        """Whether one of ``shared`` whose name begins like this has a bias."""
        return any(linear.bias for linear in self.shared if linear.name.startswith(name))

    def expected_distinct(self, tokens: int) -> float:
        """How many experts ``tokens`` tokens reach if each picks ``per_token`` at random.

        That is ``E (1 - (1 - k/E)^T)`` for E experts, k per token and T tokens.
        """
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class LayerInputSpec:
    """What a layer adds from an embedding of its own of each token (Gemma 3n, Gemma 4).

    Attributes:
        size: Elements of a row of that embedding.
        linears: Its share of the product that makes as much of the hidden state before the layers,
            the gate, and the product that leads back.
    """

    size: int
    activation: str
    linears: Linears


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """``count`` equal decoder layers, each of the parts that are not ``None``.

    Attributes:
        norm_parameters: Parameters of the norms of the hidden state in one layer.
        branches: How often a layer adds to the hidden state; most do so after attention and after
            the MLP.
        residual_scale: What is added is multiplied with it.
        inputs: What it adds at last of an embedding of its own.
        multipliers: Factors inside its parts; ``None``: all are 1.
    """

    count: int
    norm_parameters: int
    attention: AttentionSpec | None = None
    recurrent: RecurrentSpec | None = None
    mlp: MlpSpec | None = None
    experts: ExpertsSpec | None = None
    branches: int = 2
    residual_scale: float = 1.0
    inputs: LayerInputSpec | None = None
    multipliers: Multipliers | None = None

    @property
    def caching(self) -> AttentionSpec | None:
        """Its attention, if that keeps something of each token; not where it shares a cache."""
        return self.attention if self.attention and self.attention.shares is None else None

    @property
    def linears(self) -> Linears:
        """The products that every token goes through, in the order of the layer."""
        attention = self.attention.linears if self.attention else ()
        recurrent = self.recurrent.linears if self.recurrent else ()
        mlp = self.mlp.linears if self.mlp else ()
        shared = self.experts.shared if self.experts else ()
        return (
            *attention,
            *recurrent,
            *mlp,
            *shared,
            *(self.inputs.linears if self.inputs else ()),
        )

    @property
    def other_parameters(self) -> int:
        """Parameters of one layer's norms, gates, convolutions and the like."""
        attention = self.attention.other_parameters if self.attention else 0
        recurrent = self.recurrent.other_parameters if self.recurrent else 0
        return self.norm_parameters + attention + recurrent

    @property
    def parameters(self) -> int:
        """All parameters of one layer."""
        return self._parameters(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Parameters of one layer that one token is multiplied with."""
        return self._parameters(self.experts.per_token if self.experts else 0)

    def _parameters(self, num_experts: int) -> int:
        expert = _parameters_of(self.experts.linears) if self.experts else 0
        return _parameters_of(self.linears) + num_experts * expert + self.other_parameters


def seen_pairs(new_tokens: int, cached: int, window: int | None = None) -> int:
    """How many (query, key) pairs a causal chunk computes.

    Query i of n sees ``cached + i`` tokens, or its window.
    """
    if window is None or cached + new_tokens <= window:
        return new_tokens * cached + new_tokens * (new_tokens + 1) // 2
    growing = max(0, min(new_tokens, window - cached))
    return growing * cached + growing * (growing + 1) // 2 + (new_tokens - growing) * window


def _parameters_of(linears: Iterable[LinearSpec]) -> int:
    return sum(linear.parameters for linear in linears)
