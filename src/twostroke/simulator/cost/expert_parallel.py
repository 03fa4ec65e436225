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

from collections.abc import Callable

import msgspec

from twostroke.model_spec.layer_specs import ExpertsSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.communication import all_to_all_time
from twostroke.simulator.cost.configuration import Parallel
from twostroke.simulator.cost.efficiencies import Efficiencies
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.simulator.cost.kernel_time import ACTIVATION_BYTES, KernelTime, Parts
from twostroke.timing.step_shape import StepShape

Gemm = Callable[[float, float, int, bool], KernelTime]


def batch_of_stage(shape: StepShape, stages: int) -> StepShape:
    """The batch that one of ``stages`` groups of layers has at a time."""
    if stages == 1:
        return shape
    chunks = tuple((-(-new // stages), before) for new, before in shape.prefill)
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


class ExpertsApart:
    """Experts over the devices of all groups, and the way of tokens to them.

    Args:
        gemm: Seconds of a product of (rows, outputs, inputs, quantised).
    """

    def __init__(
        self,
        model: ModelSpec,
        parallel: Parallel,
        hardware: HardwareSheet,
        efficiencies: Efficiencies,
        gemm: Gemm,
    ) -> None:
        self._layers = [(layer.count, layer.experts) for layer in model.layers if layer.experts]
        self._parallel, self._gemm = parallel, gemm
        self._hidden = model.hidden_size
        self._devices = parallel.tensor * parallel.data
        self._nodes = -(-self._devices // hardware.link_domain)
        self._link = hardware.bandwidth_between(self._devices)
        self._efficiency = efficiencies.all_to_all
        self._start = efficiencies.all_reduce.network if self._nodes > 1 else 0.0

    def add(self, parts: Parts, tokens: int, of_group: int) -> None:
        """Add a step's experts.

        Args:
            tokens: Those of all groups.
            of_group: Those of the busiest.
        """
        for count, experts in self._layers:
            parts.add(self._experts(experts, tokens), count)
            if self._parallel.data > 1:
                parts.communication += count * 2 * self._way(experts, of_group)

    def _experts(self, experts: ExpertsSpec, tokens: int) -> KernelTime:
        distinct = experts.expected_distinct(tokens)
        rows = tokens * experts.per_token / distinct
        ranks, here = self._devices, distinct
        if self._parallel.expert:  # the busiest device has one at least
            ranks, here = 1, max(1.0, distinct / min(self._devices, experts.count))
        times = [
            self._gemm(rows, outputs * here, inputs, linear.quantised)
            for linear in experts.linears
            for outputs, inputs in [linear.on_rank(ranks)]
        ]
        return KernelTime(*(sum(values) for values in zip(*map(msgspec.structs.astuple, times))))

    def _way(self, experts: ExpertsSpec, of_group: int) -> float:
        """Seconds until the tokens of a group are at their experts, or back.

        A device has its share of its group's tokens. Between nodes a token goes once to each node.
        """
        copies = experts.per_token if self._nodes == 1 else min(experts.per_token, self._nodes)
        copies = min(copies, self._devices)
        size = of_group / self._parallel.tensor * copies * self._hidden * ACTIVATION_BYTES
        return self._start + all_to_all_time(
            size, self._devices, efficiency=self._efficiency, link=self._link
        )


def experts_apart(
    model: ModelSpec,
    parallel: Parallel,
    hardware: HardwareSheet,
    efficiencies: Efficiencies,
    gemm: Gemm,
) -> ExpertsApart | None:
    """The model's experts, if tensors alone do not split them."""
    splits = parallel.expert or parallel.data > 1
    if not splits or all(layer.experts is None for layer in model.layers):
        return None
    return ExpertsApart(model, parallel, hardware, efficiencies, gemm)


def moves_between_stages(
    elements: int, parallel: Parallel, hardware: HardwareSheet, efficiencies: Efficiencies
) -> float:
    """Seconds of a step's moves from one group of layers to the next; 0 for one group."""
    if parallel.pipeline == 1:
        return 0.0
    link = hardware.bandwidth_between(parallel.num_devices)
    size = elements * ACTIVATION_BYTES / parallel.tensor
    return parallel.pipeline * (efficiencies.all_to_all.launch + size / link)
