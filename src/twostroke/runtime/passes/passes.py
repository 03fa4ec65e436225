"""The passes of one executor: computed ahead, recorded, or kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from twostroke.layers.attention.base import AttentionBackend
from twostroke.models.language_model import LanguageModel
from twostroke.observability.profile import INPUT, Profiler
from twostroke.runtime.device import on_device, start_transfer
from twostroke.runtime.input_batch import NO_ROWS, Batch, InputBatch
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.live_requests import LiveRequests
from twostroke.runtime.passes.decode_graphs import Capture, DecodeGraphs
from twostroke.runtime.passes.run_ahead import RunAhead, put_together
from twostroke.runtime.step_run import StepRun
from twostroke.runtime.verification import rows_to_draw_from


class Passes:
    """Runs the passes over a model.

    Args:
        inputs, requests: The executor's, as they are after it has taken in a plan.

    Attributes:
        graphs: Recorded passes, where there are some.
    """

    def __init__(
        self,
        model: LanguageModel,
        kv: KVTensors,
        backend: AttentionBackend,
        inputs: InputBatch,
        requests: LiveRequests,
        profiler: Profiler,
    ) -> None:
        self.model, self.kv, self.backend = model, kv, backend
        self.graphs: DecodeGraphs | None = None
        self._ahead: RunAhead | None = None
        self._inputs, self._requests, self._profiler = inputs, requests, profiler
        self._drawing = NO_ROWS  # whose tokens are being drawn, if a pass may run ahead of them

    def record(
        self,
        sizes: Sequence[int],
        capture: Capture,
        progress: Callable[[int], Iterable[int]],
        max_model_len: int,
        *,
        ahead: bool,
    ) -> bool:
        """Record passes over one token of each request; whether the model allows that.

        Args:
            ahead: Let them run ahead of their plans.
        """
        columns = -(-max_model_len // self.kv.block_size)
        tables = DecodeGraphs.tables_for(self.model, self.backend, sizes[-1], columns)
        if tables is None:
            return False
        states = self.kv.recurrent.fixed(sizes[-1])
        self.graphs = DecodeGraphs(self.model, tables, states, sizes, capture)
        self.graphs.record(progress)
        self._ahead = RunAhead(self.graphs, self._inputs) if ahead else None
        return True

    @property
    def may_run_ahead(self) -> bool:
        """Whether a wrong guess changes nothing: a recurrent layer's only state would be lost."""
        return not self.kv.recurrent.exist

    def hidden(self, step: StepRun, rows: Tensor | None) -> Tensor:
        """Hidden states of ``rows`` of a step, ``None`` is all: ``[rows, hidden]``."""
        is_plain = step.model is self.model and not step.needs_all_rows
        taken = None if self._ahead is None else self._ahead.take(step.plan, self._requests)
        if taken is None or not is_plain:
            return self._compute(step, step.batch, rows)
        by_share, ahead = taken
        rest = [share for i, share in enumerate(step.batch.shares) if i not in by_share]
        if not rest:
            return put_together(step.batch, by_share, ahead, None)
        ahead = ahead.clone()  # the others' pass may write where these lie
        batch = self._inputs.build_shares(rest, self._requests)
        own = rows_to_draw_from(batch)
        drawn = None if own is None else on_device(own, self.model.device)
        return put_together(step.batch, by_share, ahead, self._compute(step, batch, drawn))

    def _compute(self, step: StepRun, batch: Batch, rows: Tensor | None) -> Tensor:
        graphs = self.graphs
        recurrent = self.kv.recurrent.of_step(batch.shares, batch.query_start)
        if graphs is not None and step.model is self.model and graphs.takes(batch, recurrent):
            hidden = graphs.run(batch.token_ids, batch.positions, batch.attention, recurrent)
            return hidden if rows is None else hidden[rows]
        with self._profiler.measure(INPUT):
            attention = self.backend.prepare(batch.attention)
        return step.model.forward(batch.token_ids, batch.positions, attention, rows, recurrent)

    # ---- what runs ahead -------------------------------------------------------------------------

    def draws_begin(self, step: StepRun) -> None:
        """Tokens of this step are drawn next, by a sampler that reads them with ``read``."""
        self._drawing = step.batch if step.model is self.model else NO_ROWS

    def read(self, tokens: Tensor) -> list[int]:
        """Bring drawn tokens ``[rows]`` to the host; the next pass may start before they arrive."""
        ahead, batch = self._ahead, self._drawing
        if ahead is None or len(tokens) != len(batch.shares):
            token_ids: list[int] = tokens.tolist()
            return token_ids
        arrival = start_transfer(tokens)
        ahead.start(batch, tokens)
        token_ids = arrival()
        ahead.tell(token_ids)
        return token_ids

    def drop_ahead(self) -> None:
        """After a failure: what ran ahead may have computed with numbers that are not finite."""
        if self._ahead is not None and (slots := self._ahead.drop()) is not None:
            self.kv.zero_slots(slots)
