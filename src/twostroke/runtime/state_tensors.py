"""The tensors of recurrent state: a row for each slot that ``kv_cache/state_slots.py`` plans."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from twostroke.core.errors import ConfigError
from twostroke.core.kv_formats import StateDtype
from twostroke.core.step import NO_SLOT, ScheduledRequest, StepPlan
from twostroke.layers.recurrent_state import (
    LayerState,
    Runs,
    Segment,
    StateShape,
    runs_on,
    segment_table,
)
from twostroke.runtime.device import on_device


def stored_shapes(
    shapes: Sequence[Sequence[StateShape]], dtype: StateDtype
) -> list[tuple[StateShape, ...]]:
    """States with their matrices in ``dtype``; the latest inputs stay as they are.

    Raises:
        ConfigError: There are no matrices that bfloat16 could make smaller.
    """
    if dtype != "bfloat16":
        return [tuple(layer) for layer in shapes]
    if not any(shape.is_matrix for layer in shapes for shape in layer):
        raise ConfigError(
            "this model's recurrent layers keep their latest inputs alone, which"
            " --mamba-ssm-cache-dtype does not change",
            hint="leave --mamba-ssm-cache-dtype out",
        )
    return [tuple(map(_narrowed, layer)) for layer in shapes]


def _narrowed(shape: StateShape) -> StateShape:
    return shape._replace(dtype=torch.bfloat16) if shape.is_matrix else shape


class StateTensors:
    """States of all layers and slots.

    Args:
        shapes: The shapes of each layer's state of one request; empty where it has none.
    """

    def __init__(
        self, shapes: Sequence[Sequence[StateShape]], num_slots: int, device: torch.device
    ) -> None:
        self._layers = [
            tuple(torch.zeros((num_slots, *s.shape), dtype=s.dtype, device=device) for s in layer)
            for layer in shapes
        ]  # of each layer [slots, *shape]
        self._device = device
        self._live: dict[str, int] = {}
        self.exist = any(self._layers)

    def update(self, plan: StepPlan) -> None:
        """Take in which requests have which slots, and copy the checkpoints that they start from.

        All copies are read before any is written, since slots may change hands within a plan.
        """
        if not self.exist:
            return
        for request_id in plan.released:
            self._live.pop(request_id, None)
        copies: list[tuple[int, int]] = []
        zeroed: list[int] = []
        for share in plan.scheduled.values():
            change = share.states
            if change is None:
                continue
            self._live[share.request_id] = change.live
            if change.start == NO_SLOT:
                zeroed.append(change.live)
            elif change.start is not None:
                copies.append((change.start, change.live))
        if not (copies or zeroed):
            return
        sources, targets, emptied = (
            on_device(slots, self._device)  # once for all tensors
            for slots in ([own for own, _ in copies], [own for _, own in copies], zeroed)
        )
        for tensor in self.tensors():
            if copies:
                tensor[targets] = tensor[sources]  # indexing gathers into a new tensor first
            if zeroed:
                tensor[emptied] = 0

    def of_step(self, shares: Sequence[ScheduledRequest], query_start: Sequence[int]) -> StepStates:
        """The states of one pass over these shares, whose rows begin at ``query_start``."""
        segments: list[Segment] = []
        if not self.exist:
            return StepStates(self._layers, segments)
        for share, begin in zip(shares, query_start):
            live, end = self._live[share.request_id], begin + share.num_tokens
            copies = () if share.states is None else share.states.checkpoints
            start = begin
            for num_tokens, group in groupby(copies, key=itemgetter(0)):
                slots = (live, *(slot for _, slot in group))
                segments.append(Segment(start, begin + num_tokens, slots))
                start = begin + num_tokens
            if start < end:
                segments.append(Segment(start, end, (live,)))
        return StepStates(self._layers, segments)

    def fixed(self, rows: int) -> FixedStates:
        """The states of passes over one token each of at most ``rows`` requests."""
        return FixedStates(self._layers, rows)

    def are_finite(self, request_ids: Sequence[str]) -> Tensor:
        """Whether the states of these requests, if there are any, are finite in all layers.

        Returns one bool on the device, which is not waited for.
        """
        slots = on_device([self._live[request_id] for request_id in request_ids], self._device)
        sums = [tensor[slots].sum(dtype=torch.float32) for tensor in self.tensors()]
        return torch.isfinite(torch.stack(sums)).all()

    def tensors(self) -> list[Tensor]:
        """Each [slots, ...], of all layers."""
        return [tensor for layer in self._layers for tensor in layer]


class StepStates:
    """Implements ``LayerStates`` on the executor's tensors."""

    def __init__(self, layers: Sequence[LayerState], segments: Sequence[Segment]) -> None:
        self.segments = segments
        self._layers = layers

    def read(self, layer: int, segment: Segment) -> LayerState:
        return tuple(tensor[segment.slots[0]] for tensor in self._layers[layer])

    def write(self, layer: int, segment: Segment, state: LayerState) -> None:
        for tensor, value in zip(self._layers[layer], state, strict=True):
            for slot in segment.slots:
                tensor[slot] = value

    def storage(self, layer: int) -> LayerState:
        return self._layers[layer]

    @cached_property
    def table(self) -> Tensor:
        return segment_table(self.segments)

    @cached_property
    def runs(self) -> Runs:
        device = next(tensor.device for layer in self._layers for tensor in layer)
        return runs_on(device, self.segments)


class FixedStates:
    """States of recorded passes, see ``LayerStates``: their tables stay where they are in memory.

    Each request has one token, and at most one copy of its state is made.
    """

    segments: Sequence[Segment] = ()  # what is not known when a pass is recorded

    def __init__(self, layers: Sequence[LayerState], rows: int) -> None:
        self._layers = layers
        device = next((tensor.device for layer in layers for tensor in layer), torch.device("cpu"))
        # A request beyond the last of a step has no segment.
        self._segments = torch.zeros(rows, 4, dtype=torch.int64, device=device)
        self._firsts = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self._none = torch.zeros(0, 2, dtype=torch.int64, device=device)
        self._rows = rows

    @staticmethod
    def takes(states: StepStates) -> bool:
        """Whether a step's states can be told so."""
        return all(end - begin == 1 and len(slots) <= 2 for begin, end, slots in states.segments)

    def of_size(self, rows: int) -> FixedStates:
        """These tables for the first ``rows`` requests alone."""
        part = copy.copy(self)
        part._rows = rows
        return part

    def fill(self, states: StepStates, rows: int) -> None:
        """Take in a step of at most ``rows`` requests."""
        count = len(states.segments)
        if not count:
            return
        runs = states.runs
        self._segments[:count].copy_(runs.segments)
        self._firsts[: count + 1].copy_(runs.firsts)
        self._firsts[count + 1 : rows + 1].fill_(count)

    def read(self, layer: int, segment: Segment) -> LayerState:
        raise LookupError("the states of recorded passes are read on the device")

    def write(self, layer: int, segment: Segment, state: LayerState) -> None:
        raise LookupError("the states of recorded passes are written on the device")

    def storage(self, layer: int) -> LayerState:
        return self._layers[layer]

    @property
    def table(self) -> Tensor:
        raise LookupError("the states of recorded passes have no table on the host")

    @property
    def runs(self) -> Runs:
        rows = self._rows
        return Runs(self._segments[:rows], self._firsts[: rows + 1], self._none, self._none[:, 0])


NO_STEP_STATES = StepStates([], [])
NO_STATE_TENSORS = StateTensors([], 0, torch.device("cpu"))
