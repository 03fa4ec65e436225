"""The passes of one executor: recorded, or kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from twostroke.layers.attention.base import AttentionBackend
from twostroke.models.language_model import LanguageModel
from twostroke.observability.profile import INPUT, Profiler
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.passes.decode_graphs import Capture, DecodeGraphs
from twostroke.runtime.step_run import StepRun


class Passes:
    """Runs the passes over a model.

    Attributes:
        graphs: Recorded passes, where there are some.
    """

    def __init__(
        self,
        model: LanguageModel,
        kv: KVTensors,
        backend: AttentionBackend,
        profiler: Profiler,
    ) -> None:
        self.model, self.kv, self.backend = model, kv, backend
        self.graphs: DecodeGraphs | None = None
        self._profiler = profiler

    def record(
        self,
        sizes: Sequence[int],
        capture: Capture,
        progress: Callable[[int], Iterable[int]],
        max_model_len: int,
    ) -> None:
        """Record passes over one token of each request, if the model allows that."""
        columns = -(-max_model_len // self.kv.block_size)
        tables = DecodeGraphs.tables_for(self.model, self.backend, sizes[-1], columns)
        if tables is not None:
            states = self.kv.recurrent.fixed(sizes[-1])
            self.graphs = DecodeGraphs(self.model, tables, states, sizes, capture)
            self.graphs.record(progress)

    def hidden(self, step: StepRun, rows: Tensor | None) -> Tensor:
        """Hidden states of ``rows`` of a step, ``None`` is all: ``[rows, hidden]``.

        Valid until the next pass is launched.
        """
        graphs, batch = self.graphs, step.batch
        recurrent = self.kv.recurrent.of_step(batch.shares, batch.query_start)
        if graphs is not None and step.model is self.model and graphs.takes(batch, recurrent):
            hidden = graphs.run(batch.token_ids, batch.positions, batch.attention, recurrent)
            return hidden if rows is None else hidden[rows]
        with self._profiler.measure(INPUT):
            attention = self.backend.prepare(batch.attention)
        return step.model.forward(batch.token_ids, batch.positions, attention, rows, recurrent)
