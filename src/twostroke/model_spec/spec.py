"""One description of a model, which the runtime runs and the simulator counts.

Read from any known ``config.json`` (``reader``), no weights needed. Towers for images or sound are
left out: the text model is what serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from twostroke.core.errors import ConfigError
from twostroke.core.kv_formats import STATE_WIDTHS, StateDtype
from twostroke.model_spec.layer_specs import LayerSpec, LinearSpec, seen_pairs
from twostroke.model_spec.number_formats import cache_format, weight_format
from twostroke.model_spec.rope import RopeSpec
from twostroke.model_spec.weight_parts import WeightPart, layer_parts, plain_part


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only model.

    Attributes:
        layers: Runs of equal layers, in order; see ``each_layer``.
        tied: Whether embedding and head share their weights.
        other_parameters: Parameters of the norms before and after the layers.
        stated_length: Context in tokens, as the file says it; see ``context_length``.
        default_length: Context of a model whose file says nothing.
        rope: The rotation of queries and keys, as the file states it; ``None`` where no layer has
            attention. ``AttentionSpec.rope`` is that of a layer.
        embedding_scale: Embeddings are multiplied with it, ``logit_scale``: the logits.
        logit_soft_cap: Bound of the logits; ``None`` is none.
        format: Number format of the weights that the file states. Methods take another to ask "what
            if".
        dtype: Precision of the stored weights (``float32``, ``float16``, ``bfloat16``), where the
            file says one of these.
        quantization: Method by which the checkpoint was quantised; empty if it was not.
        layer_vocab: Rows of the embedding that has a part for each layer (``LayerSpec.inputs``).
        eos_token_ids: From ``generation_config.json`` and ``config.json``, in that order.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    head: LinearSpec
    tied: bool
    other_parameters: int
    norm_eps: float
    stated_length: int | None
    default_length: int
    rope: RopeSpec | None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None
    format: str
    dtype: str | None
    quantization: str
    layer_vocab: int = 0
    eos_token_ids: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        return sum(layer.count for layer in self.layers)

    def each_layer(self) -> Iterator[LayerSpec]:
        """The layers one by one; equal ones are one object."""
        for layer in self.layers:
            for _ in range(layer.count):
                yield layer

    @property
    def is_unscaled(self) -> bool:
        """Whether embeddings and logits are what the tables and the head say."""
        return self.embedding_scale == self.logit_scale == 1.0 and self.logit_soft_cap is None

    @property
    def head_dim(self) -> int:
        """Elements of a head of the first layer that has attention; 0 where none has."""
        attending = (layer.attention for layer in self.layers if layer.attention)
        return next((attention.key_dim for attention in attending), 0)

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """Per layer, how many of the latest tokens a token sees; ``None`` is all."""
        return tuple(
            layer.attention.window if layer.attention else None for layer in self.each_layer()
        )

    @property
    def context_length(self) -> int:
        """Longest request in tokens.

        Files of models stretched by yarn may state the length before; this is the one after.
        """
        length = self.stated_length or self.default_length
        if self.rope is not None and self.rope.kind == "yarn":
            return max(length, int(self.rope.original_length * self.rope.factor))
        return length

    @property
    def num_parameters(self) -> int:
        """All of them; tied embeddings count once."""
        head = 0 if self.tied else self.head.parameters
        layers = sum(layer.count * layer.parameters for layer in self.layers)
        tables = self.vocab_size * self.hidden_size + self.layer_table
        return tables + layers + self.other_parameters + head

    @property
    def layer_inputs(self) -> int:
        """Elements of all layers' embeddings of a token together."""
        return sum(layer.count * layer.inputs.size for layer in self.layers if layer.inputs)

    @property
    def layer_table(self) -> int:
        """Parameters of the embedding that has a part for each layer."""
        return self.layer_vocab * self.layer_inputs

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with: the chosen experts only, and the head."""
        layers = sum(layer.count * layer.active_parameters for layer in self.layers)
        return layers + self.head.parameters + self.other_parameters

    def weight_bytes(self, format_: str | None = None, ranks: int = 1) -> int:
        """Bytes of the weights on one of ``ranks`` devices: the sum of ``weight_parts``."""
        return round(sum(part.all_bits for part in self.weight_parts(format_, ranks)) / 8)

    def weight_parts(self, format_: str | None = None, ranks: int = 1) -> Iterator[WeightPart]:
        """The parts in the order of the model.

        Embeddings, head, router, norms and biases are never quantised, nor what the checkpoint left
        out. A tied head has no part of its own.

        Args:
            format_: Number format of the weights; by default the checkpoint's.
            ranks: Devices that share each layer; parameters and bits are of one of them.

        Raises:
            ConfigError: The format is unknown.
        """
        stored = weight_format(format_ or self.format)
        plain = 32 if stored.name == "fp32" else 16
        head = self.head
        table = head.rank_parameters(ranks)
        yield plain_part(None, 1, "embedding", "embedding", head.outputs, head.inputs, table, plain)
        if self.layer_table:
            yield plain_part(
                None,
                1,
                "embedding",
                "layer_embedding",
                inputs=self.layer_vocab,
                outputs=self.layer_inputs,
                parameters=self.layer_table,
                plain=plain,
            )
        for run, layer in enumerate(self.layers):
            yield from layer_parts(run, layer, stored, plain, ranks)
        other = self.other_parameters
        yield plain_part(None, 1, "other", "final_norm", 0, 0, other, plain)
        if not self.tied:
            yield plain_part(None, 1, "head", head.name, head.inputs, head.outputs, table, plain)

    def kv_bytes_per_token(self, format_: str = "auto", ranks: int = 1) -> float:
        """What one more token adds to one device's cache while no window is full."""
        cached = cache_format(format_)
        bits = sum(
            layer.count * layer.caching.cached_bits(cached, ranks)
            for layer in self.layers
            if layer.caching
        )
        return bits / 8

    def kv_bytes(self, tokens: int, format_: str = "auto") -> float:
        """What a request of ``tokens`` tokens needs at least, its states included.

        Windows that are full grow no more.
        """
        cached = cache_format(format_)
        bits = sum(
            layer.count * layer.caching.cached_bits(cached) * layer.caching.seen(tokens)
            for layer in self.layers
            if layer.caching
        )
        return bits / 8 + self.state_bytes()

    def state_bytes(self, ranks: int = 1) -> int:
        """What a request needs whatever its length: the states of recurrent layers."""
        return sum(
            layer.count * layer.recurrent.state_bytes(ranks)
            for layer in self.layers
            if layer.recurrent
        )

    def with_states_in(self, dtype: StateDtype) -> ModelSpec:
        """This model with recurrent states stored in a format; ``auto`` is that of its file."""
        if dtype == "auto":
            return self
        layers = [
            replace(layer, recurrent=replace(layer.recurrent, state_width=STATE_WIDTHS[dtype]))
            if layer.recurrent
            else layer
            for layer in self.layers
        ]
        return replace(self, layers=tuple(layers))

    def linear_flops(self) -> int:
        """FLOPs of one token but for attention and the head."""
        total = 0
        for layer in self.layers:
            active = sum(linear.inputs * linear.outputs for linear in layer.linears)
            if layer.experts:
                expert = sum(linear.inputs * linear.outputs for linear in layer.experts.linears)
                active += layer.experts.per_token * expert
            recurrent = layer.recurrent.flops if layer.recurrent else 0
            total += layer.count * (2 * active + recurrent)
        return total

    def head_flops(self) -> int:
        return 2 * self.head.inputs * self.head.outputs

    def attention_flops(self, new_tokens: int, cached: int = 0) -> int:
        """FLOPs of attention for a chunk of ``new_tokens`` after ``cached`` ones.

        Every query sees what precedes it, and itself.
        """
        total = 0
        for layer in self.layers:
            for each in layer.attention.passes if layer.attention else ():
                pair = each.decode_flops() if new_tokens == 1 else each.prefill_flops()
                total += layer.count * pair * seen_pairs(new_tokens, cached, each.attended)
        return total

    def prefill_flops(self, tokens: int) -> int:
        """FLOPs of a whole prompt, one token sampled."""
        return tokens * self.linear_flops() + self.attention_flops(tokens) + self.head_flops()

    def decode_flops(self, context: int) -> int:
        """FLOPs of one token that sees ``context`` tokens, itself included."""
        return self.linear_flops() + self.attention_flops(1, context - 1) + self.head_flops()

    def check_ranks(self, ranks: int) -> None:
        """Raises ConfigError if heads, of queries or of states, cannot be split evenly."""
        for layer in self.layers:
            parts = (("attention", layer.attention), ("recurrent", layer.recurrent))
            for kind, heads in ((kind, part.heads) for kind, part in parts if part):
                if heads % ranks:
                    raise ConfigError(
                        f"tensor parallelism {ranks} does not divide the model's {heads} {kind}"
                        " heads",
                        hint="choose a divisor of the number of heads",
                    )
