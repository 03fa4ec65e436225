"""Passes over one token of each request, recorded once as CUDA graphs and then replayed.

A decode pass is some hundred kernels of a few microseconds each; launched one by one, the GPU waits
for the host. A graph launches them together. It reads its inputs where they lay when it was
recorded, so each step is copied there, and its number of rows is fixed: a step takes the next
larger graph, whose other rows read and write nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from twostroke.layers.attention.base import AttentionBackend, AttentionMetadata, FixedTables
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.input_batch import Batch
from twostroke.runtime.state_tensors import NO_STEP_STATES, FixedStates, StepStates

# Runs a pass now and records it; what it returns runs it again, and gives the same tensor.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


def graph_sizes(most: int) -> list[int]:
    """Numbers of rows for which graphs are recorded: 1, 2, 4, then every 8 to 64, every 16 to 512.

    The last one is at least ``most``, unless that is more than 512.
    """
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 513, 16)]
    return sizes[: bisect_left(sizes, most) + 1]


class DecodeGraphs:
    """See the module.

    Args:
        tables: Those of the model's backend, for ``sizes[-1]`` rows.
        states: Tables of recurrent layers, for as many.
        sizes: Rising numbers of rows.
        capture: ``CudaCapture``, or for tests what runs the pass each time.
    """

    def __init__(
        self,
        model: LanguageModel,
        tables: FixedTables,
        states: FixedStates,
        sizes: Sequence[int],
        capture: Capture,
    ) -> None:
        self._model, self._tables, self._sizes, self._capture = model, tables, sizes, capture
        self._states = states
        most, device = sizes[-1], model.device
        self._token_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._positions = torch.zeros(most, dtype=torch.int64, device=device)
        self._replays: dict[int, Callable[[], Tensor]] = {}

    @staticmethod
    def tables_for(
        model: LanguageModel, backend: AttentionBackend, rows: int, columns: int
    ) -> FixedTables | None:
        """The tables of graphs of this model; ``None`` where it cannot be recorded."""
        if model.asks_host:
            return None
        return backend.fixed_tables(rows, columns)

    @torch.inference_mode()
    def record(self, progress: Callable[[int], Iterable[int]] = range) -> None:
        """Record all graphs, the largest first: the others' memory then fits into its own."""
        for place in progress(len(self._sizes)):
            size = self._sizes[len(self._sizes) - 1 - place]
            attention = self._tables.attention(size)
            token_ids, positions = self._token_ids[:size], self._positions[:size]
            states = self._states.of_size(size)
            run = partial(self._model.forward, token_ids, positions, attention, None, states)
            self._replays[size] = self._capture(run)

    def takes(self, batch: Batch, states: StepStates = NO_STEP_STATES) -> bool:
        """Whether this step has a graph: one token each, and not too many."""
        rows = len(batch.shares)
        has_size = bool(self._replays) and batch.query_start[-1] == rows <= self._sizes[-1]
        return has_size and FixedStates.takes(states)

    def run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionMetadata,
        states: StepStates = NO_STEP_STATES,
    ) -> Tensor:
        """Hidden states ``[rows, hidden]`` of such a step; valid until the next run.

        Args:
            token_ids: int64 ``[rows]`` on the device, like ``positions``.
        """
        rows = len(token_ids)
        self._token_ids[:rows].copy_(token_ids)
        self._positions[:rows].copy_(positions)
        self._tables.fill(attention, self._size_for(rows))
        self._states.fill(states, self._size_for(rows))
        return self.replay(rows)

    def replay(self, rows: int) -> Tensor:
        """Run the pass once more for the inputs of the last ``run``, of so many rows."""
        return self._replays[self._size_for(rows)]()[:rows]

    def _size_for(self, rows: int) -> int:
        return self._sizes[bisect_left(self._sizes, rows)]


class CudaCapture:
    """Records on a GPU; all graphs share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # One for all: libraries keep memory for each stream.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        with _waiting(self._stream):
            run()  # compiles kernels, and lets libraries choose theirs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


@contextmanager
def _waiting(stream: torch.cuda.Stream) -> Iterator[None]:
    """Work in here, on ``stream``, waits for what was started; what is started later for it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
