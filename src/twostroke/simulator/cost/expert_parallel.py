"""A model that is split in more ways than by tensors: what each device has of a step.

- **Data parallel** attention: groups of devices that share each layer have whole requests of their
  own, as vLLM's ``--data-parallel-size`` has them. The busiest group sets the pace.
- **Expert parallel**: each device has whole experts, where otherwise it has a part of each. Experts
  are spread over the devices of all groups.
- **Pipeline parallel**: groups have layers of their own. Requests are divided among as many batches
  as there are groups, and each group has another batch at a time. So a step takes what one batch
  takes through all layers, and its moves from group to group.

Where groups have requests of their own, tokens go to their experts' devices and back (dispatch and
combine); without, all devices of a layer have all tokens, and an all-reduce adds up what their
experts make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from twostroke.model_spec.layer_specs import ExpertsSpec, LayerSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.communication import all_to_all_time
from twostroke.simulator.cost.configuration import Parallel
from twostroke.simulator.cost.efficiencies import Efficiencies
from twostroke.simulator.cost.experts_cost import GroupedProducts, busiest, reached_experts
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.simulator.cost.kernel_time import ACTIVATION_BYTES, KernelTime, Parts
from twostroke.simulator.cost.layer_sizes import LayerSizes
from twostroke.timing.step_shape import StepShape

Gemm = Callable[[float, float, int, bool], KernelTime]


def batch_of_stage(shape: StepShape, stages: int) -> StepShape:
    """The batch that one of ``stages`` groups of layers has at a time.

    A prompt's later pieces attend to its earlier ones: each has the mean before it.
    """
    if stages == 1:
        return shape
    pieces = [(-(-new // stages), new, before) for new, before in shape.prefill]
    chunks = tuple((piece, before + (new - piece) // 2) for piece, new, before in pieces)
    return _part(shape, stages, chunks)


def share_of_group(shape: StepShape, groups: int) -> StepShape:
    """What the busiest of ``groups`` that have requests of their own has to do."""
    if groups == 1:
        return shape
    loads: list[list[tuple[int, int]]] = [[] for _ in range(min(groups, len(shape.prefill)))]
    totals = [0] * len(loads)
    for chunk in sorted(shape.prefill, reverse=True):  # the longest first, each to the idlest
        idlest = totals.index(min(totals))
        loads[idlest].append(chunk)
        totals[idlest] += chunk[0]
    busiest = tuple(loads[totals.index(max(totals))]) if loads else ()
    return _part(shape, groups, busiest)


def _part(shape: StepShape, parts: int, chunks: tuple[tuple[int, int], ...]) -> StepShape:
    """The largest of equal parts of what decodes, and these chunks of prompts."""
    requests = -(-shape.decode_requests // parts)
    context = 0
    if requests:  # each of them has the mean
        context = -(-shape.decode_context * requests // shape.decode_requests)
    return shape._replace(
        decode_requests=requests,
        decode_context=context,
        prefill=chunks,
        sampled=-(-shape.sampled // parts),
        drafts=-(-shape.drafts // parts),
    )


def num_tokens(shape: StepShape) -> int:
    """Tokens that a step computes."""
    return shape.decode_requests + shape.drafts + sum([new for new, _ in shape.prefill])


class SpreadExperts:
    """The experts of all layers, on the busiest of the devices that they are spread over.

    Args:
        kinds: Kinds of layers, what a device has of each, and the products of its experts where
            they have coefficients of their own.
        gemm: Time of a product of (rows, outputs, inputs, quantised).
    """

    def __init__(
        self,
        kinds: Iterable[tuple[LayerSpec, LayerSizes, GroupedProducts | None]],
        parallel: Parallel,
        gemm: Gemm,
    ) -> None:
        self._kinds = [
            (layer.count, layer.experts, sizes, grouped)
            for layer, sizes, grouped in kinds
            if layer.experts
        ]
        self._parallel, self._gemm = parallel, gemm
        self._kept: dict[int, Parts] = {}

    def parts(self, tokens: int) -> Parts:
        """Their share of a step that computes so many tokens, of all groups."""
        parts = self._kept.get(tokens)
        if parts is None:
            parts = self._kept[tokens] = Parts()
            for count, experts, sizes, grouped in self._kinds if tokens else ():
                dealt = min(self._parallel.expert_devices, experts.count)
                dealt = dealt if self._parallel.expert else 1
                if grouped is None:
                    parts.add(self._plain(experts, sizes, dealt, tokens), count)
                    continue
                time = self._grouped(grouped, experts, dealt, tokens)
                parts.add(time, count)
                parts.whole += count * time.seconds
        return parts

    def _grouped(
        self, grouped: GroupedProducts, experts: ExpertsSpec, dealt: int, tokens: int
    ) -> KernelTime:
        pairs = tokens * experts.per_token
        reached = reached_experts(experts.count, experts.per_token, tokens)
        # A group has all its tokens on all its devices. Those of other groups come only to where
        # their experts are.
        copies = pairs if self._parallel.data == 1 else None
        return grouped.time(*busiest(pairs, reached, experts.count, dealt), copies)

    def _plain(
        self, experts: ExpertsSpec, sizes: LayerSizes, dealt: int, tokens: int
    ) -> KernelTime:
        """One product over the experts that get tokens, each with an equal share."""
        distinct = experts.expected_distinct(tokens)
        rows = tokens * experts.per_token / distinct
        here = max(1.0, distinct / dealt)  # the busiest device has one at least
        times = [
            self._gemm(rows, outputs * here, inputs, quantised)
            for outputs, inputs, quantised in sizes.experts
        ]
        return KernelTime(*(sum(values) for values in zip(*map(msgspec.structs.astuple, times))))


class Dispatch:
    """The way of a group's tokens to their experts, which are spread over all groups."""

    def __init__(
        self,
        model: ModelSpec,
        parallel: Parallel,
        hardware: HardwareSheet,
        efficiencies: Efficiencies,
    ) -> None:
        self._layers = [(layer.count, layer.experts) for layer in model.layers if layer.experts]
        self._tensor, self._devices = parallel.tensor, parallel.expert_devices
        self._hidden = model.hidden_size
        self._nodes = -(-self._devices // hardware.link_domain)
        self._link = hardware.bandwidth_between(self._devices)
        self._efficiency = efficiencies.all_to_all
        self._start = efficiencies.all_reduce.network if self._nodes > 1 else 0.0

    def seconds(self, of_group: int) -> float:
        """There and back in all layers, for the tokens of the busiest group."""
        return sum([count * 2 * self._way(experts, of_group) for count, experts in self._layers])

    def _way(self, experts: ExpertsSpec, of_group: int) -> float:
        """Seconds until the tokens of a group are at their experts, or back.

        A device has its share of its group's tokens. Between nodes a token goes once to each node.
        """
        copies = experts.per_token if self._nodes == 1 else min(experts.per_token, self._nodes)
        copies = min(copies, self._devices)
        size = of_group / self._tensor * copies * self._hidden * ACTIVATION_BYTES
        return self._start + all_to_all_time(
            size, self._devices, efficiency=self._efficiency, link=self._link
        )


def moves_between_stages(
    elements: int, parallel: Parallel, hardware: HardwareSheet, efficiencies: Efficiencies
) -> float:
    """Seconds of a step's moves from one group of layers to the next; 0 for one group."""
    if parallel.pipeline == 1:
        return 0.0
    link = hardware.bandwidth_between(parallel.num_devices)
    size = elements * ACTIVATION_BYTES / parallel.tensor
    return parallel.pipeline * (efficiencies.all_to_all.launch + size / link)
