"""The roofline: how long a step takes, from data sheets or measured tables.

It is the ``CostModel`` (``cost/estimate.py``) that the simulated executor asks.

A step is the sum over its kernels of compute and memory time (``gemm``, ``attention_cost``), their
starts, communication, and the host's share. What depends on the number of tokens alone is computed
once per number and kept, so that a decode step costs a few multiplications.
"""

from __future__ import annotations

from math import ceil

from twostroke.model_spec.layer_specs import AttentionSpec, LayerSpec, LinearSpec
from twostroke.model_spec.number_formats import cache_format, weight_format
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.attention_cost import (
    CONTEXT_KERNELS,
    DecodeAttention,
    DeviceShare,
    PrefillAttention,
    context_bytes,
)
from twostroke.simulator.cost.communication import all_gather_time, all_reduce_time
from twostroke.simulator.cost.configuration import Drafting, Dtypes, Parallel
from twostroke.simulator.cost.device_products import DeviceProducts
from twostroke.simulator.cost.efficiencies import Efficiencies
from twostroke.simulator.cost.estimate import Estimate
from twostroke.simulator.cost.expert_parallel import (
    Dispatch,
    SpreadExperts,
    batch_of_stage,
    moves_between_stages,
    num_tokens,
    share_of_group,
)
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.simulator.cost.kernel_tables import KernelTables
from twostroke.simulator.cost.kernel_time import ACTIVATION_BYTES, KernelTime, Parts
from twostroke.simulator.cost.layer_sizes import LayerSizes, merged_layers, sizes_of
from twostroke.timing.step_shape import StepShape

# Passes over float32 logits: copy, temperature, softmax, draw.
LOGIT_PASSES, SAMPLING_KERNELS = 5, 6


class RooflineCostModel:
    """Time of a step from data sheets and coefficients, or from measured tables if there are any.

    Args:
        hardware: One device; all devices that share the model are equal.
        parallel: How the model is split over devices.
        dtypes: Formats of weights and KV cache.
        efficiencies: Coefficients (``load_efficiencies``).
        tables: Measured kernels, used in place of the coefficients for the formats they cover.
        drafting: What makes the drafts that a step's shape counts; by default it costs nothing.

    Raises:
        ConfigError: The devices are more than a node joins, do not divide the model, or lack its
            number format.
    """

    def __init__(
        self,
        hardware: HardwareSheet,
        model: ModelSpec,
        parallel: Parallel,
        dtypes: Dtypes,
        efficiencies: Efficiencies,
        *,
        tables: KernelTables | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        model.check_ranks(parallel.tensor)
        self.hardware, self.model = hardware, model
        self.ranks, self.parallel = parallel.tensor, parallel
        self.efficiencies, self.tables = efficiencies, tables
        self.weights = weight_format(model.format if dtypes.weights == "auto" else dtypes.weights)
        self.cache_format = cache_format(dtypes.kv_cache)
        self.link = hardware.bandwidth_between(self.ranks)
        spans_nodes = self.ranks > hardware.link_domain
        self._network_start = spans_nodes * efficiencies.all_reduce.network
        products = DeviceProducts(hardware, self.weights, efficiencies, tables)
        self._gemm = products.time
        self.plain_format, self.plain_bytes = products.plain_format, products.plain_bytes
        self.compute_format = products.compute_format
        self.interval = efficiencies.interval_for(
            few_bits=self.weights.bits < 16,
            has_experts=any(layer.experts for layer in model.layers),
        )
        self._drafting = drafting or Drafting()
        self._draft = None
        if self._drafting.model is not None:
            draft_dtypes = Dtypes(kv_cache=dtypes.kv_cache)
            self._draft = RooflineCostModel(
                hardware, self._drafting.model, parallel, draft_dtypes, efficiencies
            )
        # In layers of two branches, the usual kind: a layer of one starts half as many kernels.
        self._depth = sum(layer.count * layer.branches for layer in model.layers) / 2
        self._with_experts = sum(layer.count for layer in model.layers if layer.experts)
        without = (each.count * each.branches for each in model.layers if not each.experts)
        self._without_experts = sum(without) / 2
        kinds = merged_layers(model)
        self._recurrences = [(layer.count, layer.recurrent) for layer in kinds if layer.recurrent]
        sizes = [sizes_of(layer, model.hidden_size, parallel) for layer in kinds]
        grouped = [products.grouped(each.experts) for each in sizes]
        self._kinds = [
            (layer, each, experts is not None)
            for layer, each, experts in zip(kinds, sizes, grouped)
        ]
        self._set_attention(kinds)
        self._experts = SpreadExperts(zip(kinds, sizes, grouped), parallel, self._gemm)
        self._dispatch = Dispatch(model, parallel, hardware, efficiencies)
        self._layers: dict[int, Parts] = {}
        self._heads: dict[int, Parts] = {}
        self._decodes: dict[tuple[int, int, int], Parts] = {}

    def _set_attention(self, kinds: list[LayerSpec]) -> None:
        """What attends in each kind of layer, and what finds the tokens for it."""
        attention = [
            (layer.count, each, layer.linears)
            for layer in kinds
            for each in (layer.attention.passes if layer.attention else ())
        ]
        self._attention = [
            (
                count,
                layer,
                DecodeAttention(layer, self.efficiencies.decode_of(layer), self._share(layer)),
                PrefillAttention(layer, self.efficiencies.prefill_of(layer), self._share(layer)),
            )
            for count, layer, _ in attention
        ]
        # Products that expand cached tokens of latent attention to keys and values; where it is
        # sparse, it works on the compressed form.
        self._latent = [
            (count, layer, next(linear for linear in linears if linear.name == "kv_up"))
            for count, layer, linears in attention
            if layer.latent and layer.index is None
        ]

    def step(self, shape: StepShape) -> Estimate:
        if self.parallel.splits_tensors_only:
            return self._estimate(self._parts(shape), shape, shape)
        batch = batch_of_stage(shape, self.parallel.pipeline)
        share = share_of_group(batch, self.parallel.data)
        parts = self._parts(share)
        if self.parallel.data > 1:
            parts.add_parts(self._experts.parts(num_tokens(batch)))
            parts.communication += self._dispatch.seconds(num_tokens(share))
        parts.communication += moves_between_stages(
            num_tokens(share) * self.model.hidden_size,
            self.parallel,
            self.hardware,
            self.efficiencies,
        )
        return self._estimate(parts, share, shape)

    def _parts(self, shape: StepShape) -> Parts:
        """The kernels of one device, but experts that get tokens of other groups."""
        requests, drafts = shape.decode_requests, shape.drafts
        new_tokens = 0
        for new, _ in shape.prefill:
            new_tokens += new
        if new_tokens:
            parts = self._tokens(requests + drafts + new_tokens).copy()
            parts.add_parts(self._head(shape.sampled + drafts))
        else:
            parts = self._decode_fixed(requests, shape.sampled, drafts).copy()
        if requests:
            queries = 1.0 + drafts / requests if drafts else 1.0
            self._add_decode_attention(parts, requests, shape.decode_context, queries)
        if new_tokens:
            self._add_prefill_attention(parts, shape.prefill)
        if self._recurrences:
            self._add_recurrence(
                parts, requests + len(shape.prefill), requests + drafts + new_tokens
            )
        return parts

    def _estimate(self, parts: Parts, shape: StepShape, whole: StepShape | None) -> Estimate:
        """The step of the kernels ``parts`` for ``shape``, a part of ``whole``.

        Without that, no drafts are made.
        """
        e, requests = self.efficiencies, shape.decode_requests
        new_tokens = 0
        for new, _ in shape.prefill:
            new_tokens += new
        of_host = e.host
        share = new_tokens / (new_tokens + requests) if new_tokens else 0.0
        factor = e.step.decode + share * (e.step.prefill - e.step.decode)
        gaps = e.step.gap * self._without_experts if requests or new_tokens else 0.0
        device = factor * (parts.seconds - parts.whole) + parts.whole + gaps
        starts = 0.0
        if new_tokens:
            starts = of_host.layer * self._depth + of_host.layer_experts * self._with_experts
        waits = starts - device if starts > device else 0.0
        device += waits
        host = of_host.step + of_host.request * (requests + len(shape.prefill))
        host += of_host.token * new_tokens
        if shape.since_prefill:
            host += of_host.settle * of_host.fade ** (shape.since_prefill - 1)
        if shape.after_idle:
            host += of_host.wake
        seconds = device + host if not of_host.overlap else device if device > host else host
        drafting = 0.0
        if whole is not None and (self._draft is not None or self._drafting.share):
            drafting = self._drafting_time(shape, whole)
        seconds += drafting
        i = self.interval
        low = i.decode_low + share * (i.prefill_low - i.decode_low)
        high = i.decode_high + share * (i.prefill_high - i.decode_high)
        binding, longest = "host", waits + host
        for name, part in (
            ("compute", parts.compute),
            ("memory", parts.memory),
            ("communication", parts.communication),
            ("launch", parts.launch + gaps),
        ):
            if part > longest:
                binding, longest = name, part
        return Estimate(seconds, seconds * low, seconds * high, binding, drafting)

    def _drafting_time(self, shape: StepShape, whole: StepShape) -> float:
        """Seconds of a step's time that go into drafts for the next one, and into their prompts."""
        requests, share = max(1, whole.sampled), self._drafting.share
        decodes = StepShape(requests, max(requests, whole.decode_context), (), requests)
        if self._draft is not None:
            prompts = StepShape(0, 0, whole.draft_prefill, len(whole.draft_prefill))
            seconds = self._draft.step(prompts).seconds if prompts.prefill else 0.0
            return seconds + whole.draft_rounds * self._draft.step(decodes).seconds
        seconds = 0.0
        if whole.draft_rounds:
            seconds = share * whole.draft_rounds * self.step(decodes).seconds
        if self._drafting.reads_prompts and shape.prefill:
            prompts = StepShape(0, 0, shape.prefill, len(shape.prefill))
            seconds += share * self._estimate(self._parts(prompts), prompts, None).seconds
        return seconds

    def _decode_fixed(self, requests: int, sampled: int, drafts: int) -> Parts:
        key = (requests, sampled, drafts)
        parts = self._decodes.get(key)
        if parts is None:
            parts = self._tokens(requests + drafts).copy()
            parts.add_parts(self._head(sampled + drafts))
            self._decodes[key] = parts
        return parts

    def _tokens(self, tokens: int) -> Parts:
        """All layers but attention, for this many tokens of any requests."""
        parts = self._layers.get(tokens)
        if parts is None:
            parts = Parts()
            if tokens:
                for kind in self._kinds:
                    self._add_layer(parts, *kind, tokens)
                if self.parallel.data == 1:
                    parts.add_parts(self._experts.parts(tokens))
                embedding = 2 * tokens * self.model.hidden_size * ACTIVATION_BYTES
                parts.add(self._elementwise(embedding, 1))
                parts.communication += self._all_reduce(tokens)  # the embedding is split over ranks
            self._layers[tokens] = parts
        return parts

    def _add_layer(
        self, parts: Parts, layer: LayerSpec, sizes: LayerSizes, is_grouped: bool, tokens: int
    ) -> None:
        """A layer without its attention and its experts' products."""
        for outputs, inputs, quantised in sizes.linears:
            parts.add(self._gemm(tokens, outputs, inputs, quantised), layer.count)
        width, kernels = sizes.elementwise(is_grouped)
        parts.add(self._elementwise(tokens * width * ACTIVATION_BYTES, kernels), layer.count)
        # Tokens that go to experts of other groups come back added up.
        goes = layer.experts is not None and self.parallel.data > 1
        parts.communication += layer.count * (layer.branches - goes) * self._all_reduce(tokens)

    def _linear(self, linear: LinearSpec, rows: float) -> KernelTime:
        outputs, inputs = linear.on_rank(self.ranks)
        return self._gemm(rows, outputs, inputs, linear.quantised)

    def _head(self, sampled: int) -> Parts:
        parts = self._heads.get(sampled)
        if parts is None:
            parts = Parts()
            if sampled:
                parts.add(self._linear(self.model.head, sampled))
                logits = sampled * self.model.vocab_size
                parts.add(self._elementwise(LOGIT_PASSES * 4 * logits, SAMPLING_KERNELS))
                gathered = all_gather_time(
                    logits * ACTIVATION_BYTES,
                    self.ranks,
                    efficiency=self.efficiencies.all_reduce,
                    link=self.link,
                )
                parts.communication += gathered + self._network_start
            self._heads[sampled] = parts
        return parts

    def _elementwise(self, moved: float, kernels: int) -> KernelTime:
        e = self.efficiencies.elementwise
        memory = moved / (e.memory * self.hardware.memory_bandwidth)
        launch = kernels * e.launch
        return KernelTime(memory + launch, 0.0, memory, launch)

    def _all_reduce(self, tokens: int) -> float:
        if self.ranks == 1:
            return 0.0
        size = tokens * self.model.hidden_size * ACTIVATION_BYTES
        time = self._network_start + all_reduce_time(
            size, self.ranks, efficiency=self.efficiencies.all_reduce, link=self.link
        )
        return self.tables.all_reduce(size, self.ranks, time) if self.tables else time

    def _add_recurrence(self, parts: Parts, sequences: int, tokens: int) -> None:
        """A step reads and writes every request's state once, for any number of tokens."""
        rate = (
            self.efficiencies.prefill.compute
            * self.hardware.dense_flops[self.plain_format]
            * self.ranks
        )
        for count, layer in self._recurrences:
            parts.add(self._elementwise(2.0 * sequences * layer.state_bytes(self.ranks), 2), count)
            compute = tokens * layer.flops / rate
            parts.add(KernelTime(compute, compute=compute), count)

    def _share(self, layer: AttentionSpec) -> DeviceShare:
        keys = layer.index_format
        plain = self.plain_format if keys is None else self.hardware.compute_format(keys.compute)
        return DeviceShare(
            flops=self.hardware.dense_flops[plain],
            bandwidth=self.hardware.memory_bandwidth,
            units=self.hardware.compute_units,
            ranks=self.ranks if keys is None else 1,
            cache_bytes=layer.cached_bytes(self.cache_format, self.ranks),
        )

    def _add_decode_attention(
        self, parts: Parts, requests: int, context: int, queries: float
    ) -> None:
        mean = context / requests
        for count, layer, attention, _ in self._attention:
            most = layer.attended
            seen = context if most is None or mean <= most else most * requests
            time = attention.time(requests, seen, queries)
            if self.tables and not (layer.latent or layer.index_format):
                heads, kv_heads = layer.heads // self.ranks, ceil(layer.kv_heads / self.ranks)
                time = self.tables.decode(
                    heads, kv_heads, layer.key_dim, requests, seen / requests, time
                )
            parts.add(time, count)

    def _add_prefill_attention(self, parts: Parts, chunks: tuple[tuple[int, int], ...]) -> None:
        for count, layer, _, attention in self._attention:
            time = attention.time(chunks)
            if self.tables and not (layer.latent or layer.index_format):
                heads, kv_heads = layer.heads // self.ranks, ceil(layer.kv_heads / self.ranks)
                length = sum(new for new, _ in chunks) / len(chunks)
                time = self.tables.prefill(
                    heads, kv_heads, layer.key_dim, len(chunks), length, time
                )
            parts.add(time, count)
        if self._latent and (context := sum([before for _, before in chunks])):
            self._add_context(parts, context)

    def _add_context(self, parts: Parts, context: int) -> None:
        """Prefill of latent attention expands the cached tokens to keys and values each time."""
        for count, layer, up in self._latent:
            parts.add(self._linear(up, context), count)
            moved = context * context_bytes(
                layer, self.ranks, layer.cached_bytes(self.cache_format)
            )
            parts.add(self._elementwise(moved, CONTEXT_KERNELS), count)
