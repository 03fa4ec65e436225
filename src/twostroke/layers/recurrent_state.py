"""The seam between recurrent layers and where their states are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

LayerState = tuple[Tensor, ...]


class StateShape(NamedTuple):
    """One tensor of a layer's state of one request.

    Attributes:
        is_matrix: It is what the recurrence updates, and may be stored in bfloat16.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_matrix: bool = False

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Segment(NamedTuple):
    """Rows ``begin`` up to ``end`` of a pass: tokens of one request, one after the other.

    Attributes:
        slots: Where the state after them goes; the first is where that before them is.
    """

    begin: int
    end: int
    slots: tuple[int, ...]


class LayerStates(Protocol):
    """The states of one step's requests. Valid for one forward pass.

    A layer takes the segments in order: reads a state, runs its tokens, writes the state after
    them. Several segments may be of one request, where a copy is to be made in between.
    """

    @property
    def segments(self) -> Sequence[Segment]: ...

    def read(self, layer: int, segment: Segment) -> LayerState:
        """The state before a segment, as the layer's shapes say; not to be changed."""
        ...

    def write(self, layer: int, segment: Segment, state: LayerState) -> None: ...

    def storage(self, layer: int) -> LayerState:
        """The states of all slots, ``[slots, *shape]``, which kernels change in place."""
        ...

    @property
    def table(self) -> Tensor:
        """What kernels read of the segments, see ``segment_table``."""
        ...

    @property
    def runs(self) -> Runs:
        """What a GPU's kernels read of them."""
        ...


def segment_table(segments: Sequence[Segment]) -> Tensor:
    """int64 ``[segments, 4]`` on the CPU: begin, end, the first slot, and the second or -1.

    ``write_further_copies`` serves the others.
    """
    rows = [(begin, end, *slots, -1)[:4] for begin, end, slots in segments]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 4)


# Tokens of a prompt that a GPU takes together, where a request has so many; else one by one. With
# 64 in a chunk a program would spill registers beside a state of 128 by 128.
CHUNK = MANY_TOKENS = 32


class Runs(NamedTuple):
    """What a GPU's kernels read of a pass's segments, int64 on the device.

    Those of one request come one after the other.

    Attributes:
        segments: ``segment_table``.
        firsts: ``[requests + 1]``: where each request's begin.
        chunks: ``[chunks, 2]``: first row and end of ``CHUNK`` tokens at most, of one segment; of
            requests with ``MANY_TOKENS`` alone.
        chunk_firsts: ``[segments]``: where each one's chunks begin.
    """

    segments: Tensor
    firsts: Tensor
    chunks: Tensor
    chunk_firsts: Tensor


def runs_on(device: torch.device, segments: Sequence[Segment]) -> Runs:
    table = segment_table(segments)
    slots = [segment.slots[0] for segment in segments]
    firsts = [at for at, slot in enumerate(slots) if at == 0 or slots[at - 1] != slot]
    chunks, chunk_firsts = list[tuple[int, int]](), list[int]()
    for first, last in pairwise([*firsts, len(slots)]):
        has_many = segments[last - 1].end - segments[first].begin >= MANY_TOKENS
        for begin, end, _ in segments[first:last]:
            chunk_firsts.append(len(chunks))
            if has_many:
                chunks += [(at, min(at + CHUNK, end)) for at in range(begin, end, CHUNK)]
    parts = (
        table.flatten(),
        torch.tensor([*firsts, len(slots)], dtype=torch.int64),
        torch.tensor(chunks, dtype=torch.int64).flatten(),
        torch.tensor(chunk_firsts, dtype=torch.int64),
    )
    joined = torch.cat(parts)
    if device.type == "cuda":
        joined = joined.pin_memory()
    moved = torch.split(joined.to(device, non_blocking=True), list(map(len, parts)))
    return Runs(moved[0].view(-1, 4), moved[1], moved[2].view(-1, 2), moved[3])


def write_further_copies(states: LayerStates, layers: Iterable[int]) -> None:
    """Give each segment's third slot and those after it what the second has, which kernels wrote.

    A checkpoint and the state before a draft may be the same.
    """
    further = [slots for _, _, slots in states.segments if len(slots) > 2]
    if not further:
        return
    for tensor in (tensor for layer in layers for tensor in states.storage(layer)):
        for _, second, *others in further:
            for slot in others:
                tensor[slot] = tensor[second]


class NoLayerStates:
    """The states of a pass whose layers have none."""

    segments: Sequence[Segment] = ()

    def read(self, layer: int, segment: Segment) -> LayerState:
        raise LookupError(f"layer {layer} has no state")

    def write(self, layer: int, segment: Segment, state: LayerState) -> None:
        raise LookupError(f"layer {layer} has no state")

    def storage(self, layer: int) -> LayerState:
        raise LookupError(f"layer {layer} has no state")

    @property
    def table(self) -> Tensor:
        return segment_table(self.segments)

    @property
    def runs(self) -> Runs:
        return runs_on(torch.device("cpu"), self.segments)


NO_LAYER_STATES = NoLayerStates()

# From the rows of a segment and the state before it: what they give, and the state after it.
RunSegment = Callable[[slice, LayerState], tuple[Tensor, LayerState]]


def run_segments(states: LayerStates, layer: int, out: Tensor, run: RunSegment) -> None:
    """Take all tokens of a pass through a recurrent layer; ``out`` ``[tokens, ...]`` is written."""
    for segment in states.segments:
        rows = slice(segment.begin, segment.end)
        out[rows], after = run(rows, states.read(layer, segment))
        states.write(layer, segment, after)


class FreshStates:
    """One sequence from its first token on, whose states are kept by nobody: for references.

    Args:
        shapes: The shapes of each layer's state; empty where it has none.
    """

    def __init__(
        self, shapes: Sequence[Sequence[StateShape]], num_tokens: int, device: torch.device
    ) -> None:
        self.segments: Sequence[Segment] = [Segment(0, num_tokens, (0,))]
        self.table = segment_table(self.segments)
        self.runs = runs_on(device, self.segments)
        self._shapes, self._device = shapes, device
        self._storage: LayerState = ()

    def read(self, layer: int, segment: Segment) -> LayerState:
        return tuple(
            torch.zeros(each.shape, dtype=each.dtype, device=self._device)
            for each in self._shapes[layer]
        )

    def write(self, layer: int, segment: Segment, state: LayerState) -> None:
        """Nothing comes after it."""

    def storage(self, layer: int) -> LayerState:
        # Kept: the kernels get addresses alone.
        self._storage = tuple(tensor[None] for tensor in self.read(layer, self.segments[0]))
        return self._storage
