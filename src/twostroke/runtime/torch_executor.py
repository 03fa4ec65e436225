"""Runs a step of the engine with PyTorch on one device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.kernels.library import load_library
from twostroke.layers.activation import compiled_peaks
from twostroke.layers.attention.base import AttentionBackend
from twostroke.layers.gpu.load import load_draws
from twostroke.models.language_model import LanguageModel
from twostroke.observability.profile import INPUT, NO_PROFILE, SAMPLING, Profiler
from twostroke.runtime.device import (
    as_current,
    clock_of,
    memory_error,
    on_device,
    release_cached_memory,
)
from twostroke.runtime.drawing_step import draw_tokens
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.input_batch import InputBatch
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.live_requests import LiveRequests
from twostroke.runtime.passes.passes import Passes
from twostroke.runtime.step_run import StepRun
from twostroke.runtime.verification import rows_to_draw_from
from twostroke.sampling.sampler import Sampler


class TorchExecutor:
    """Model, KV tensors and sampler on one device, see ``Executor``; all else joins as a hook.

    Owns the weights, the KV tensors and one block-table row per live request, nothing else that
    lasts between steps. ``runtime.loading.load_torch_executor`` makes one from a configuration.

    Args:
        hooks: In order, see ``PassHook``; owned by the executor from here on.
        profiler: Measures the parts of a step that are not the model's.
    """

    def __init__(
        self,
        model: LanguageModel,
        kv: KVTensors,
        backend: AttentionBackend,
        info: ExecutorInfo,
        hooks: Sequence[PassHook],
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        self.inputs = InputBatch(
            -(-info.max_model_len // kv.block_size) * info.kv_groups.count,
            kv.block_size,
            model.device,
            info.kv_groups.windows,
        )
        self.requests = LiveRequests()
        self.hooks = list(hooks)
        self.info = info
        self._profiler = profiler
        if model.device.type != "cpu":
            profiler.use_clock(clock_of(model.device))
        passes = Passes(model, kv, backend, self.inputs, self.requests, profiler)
        self._loaded: _Loaded | None = _Loaded(model, kv, passes)
        library = load_library() if model.device.type == "cpu" else None
        self._sampler = Sampler(
            info.vocab_size,
            model.device,
            None if library is None else compiled_peaks(library),
            self._read,
            load_draws(model.device),
        )

    @property
    def model(self) -> LanguageModel:
        return self._open().model

    @property
    def kv(self) -> KVTensors:
        return self._open().kv

    @property
    def passes(self) -> Passes:
        return self._open().passes

    def _open(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError("the executor has been closed")
        return self._loaded

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one step, see ``Executor``. An exception means that the whole pass failed."""
        step = StepRun(plan, self.model, self.kv)
        self._update(step)
        try:
            self.kv.copy_blocks(plan.block_copies)
            if plan.scheduled:
                with self._profiler.measure(INPUT):
                    step.batch = self.inputs.build(plan, self.requests)
                with as_current(self.model.device):
                    self._run(step)
            for hook in reversed(self.hooks):
                hook.after(step)
        except Exception as error:
            # What the pass had written by then may be anything, and its blocks go to others next.
            if plan.scheduled:
                self.kv.zero_slots(step.batch.attention.slots)
            self.passes.drop_ahead()
            if (out_of_memory := memory_error(error)) is not None:
                release_cached_memory()  # in pieces, of which none may fit the next step
                raise out_of_memory from error
            raise
        step.result.timings, step.result.duration = step.clock.seconds, step.clock.total()
        return step.result

    def _update(self, step: StepRun) -> None:
        """Let everything take in the plan, which says only what changed: a failure comes after."""
        errors: list[Exception] = []
        for hook in self.hooks:
            try:
                hook.update(step)
            except Exception as error:
                errors.append(error)
        self.requests.update(step.plan)
        self.inputs.release(step.plan.released)
        self.kv.recurrent.update(step.plan)
        if errors:
            raise errors[0]

    def _run(self, step: StepRun) -> None:
        """One forward pass over all tokens of the batch, then one draw per request."""
        batch, passes = step.batch, self.passes
        for hook in self.hooks:
            hook.before(step)
        wanted = rows_to_draw_from(batch)
        drawn = None if wanted is None else on_device(wanted, self.model.device)
        step.clock.mark("input")
        rows = None if step.needs_all_rows else drawn
        step.hidden = hidden = passes.hidden(step, rows)  # [rows, hidden]
        if drawn is not None:
            _fail_non_finite(step)
        step.clock.mark("forward")
        with self._profiler.measure(SAMPLING):
            step.drawn_from = hidden if rows is drawn else hidden[drawn]
            passes.draws_begin(step)
            draw_tokens(step, step.drawn_from, self._sampler)
            if step.result.errors:
                passes.drop_ahead()
        step.clock.mark("sample")

    def _read(self, tokens: Tensor) -> list[int]:
        return self.passes.read(tokens)

    def close(self) -> None:
        """Free weights and KV tensors; only ``info`` and ``close`` can be used afterwards."""
        with ExitStack() as stack:  # each is closed, whatever another one raises
            stack.callback(release_cached_memory)
            for hook in reversed(self.hooks):
                stack.callback(hook.close)
            self.hooks.clear()
            self._loaded = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What an executor lets go of when it is closed; passes hold views of the KV tensors."""

    model: LanguageModel
    kv: KVTensors
    passes: Passes


def _fail_non_finite(step: StepRun) -> None:
    """End requests whose keys or values are not finite.

    Logits show what is wrong with rows that are sampled from. Others may not reach them (in a chunk
    before the last, or beyond a window), but they lie in the cache.
    """
    batch, kv = step.batch, step.kv
    slots = batch.attention.slots
    names = [share.request_id for share in batch.shares]
    if kv.all_finite(slots) and kv.recurrent.all_finite(names):
        return
    for index, name in enumerate(names):  # drafts may be rejected: their logits decide
        known = slots[batch.known_rows(index)]
        if not (kv.recurrent.all_finite([name]) and kv.all_finite(known)):
            step.fail(index)
