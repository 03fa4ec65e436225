"""Runs a step of the engine with PyTorch on one device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

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
from twostroke.runtime.drawing_step import (
    NO_DRAWS,
    StepDraws,
    begin_step_draws,
    finish_step_draws,
)
from twostroke.runtime.finite_check import begin_finite_check, fail_non_finite
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.input_batch import InputBatch
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.live_requests import LiveRequests
from twostroke.runtime.passes.awaited_tokens import take_awaited
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
        self._launched: deque[tuple[StepRun, StepDraws]] = deque()
        self._last_end = 0.0  # of a step, in seconds of ``perf_counter``
        self._profiler = profiler
        if model.device.type != "cpu":
            profiler.use_clock(clock_of(model.device))
        passes = Passes(model, kv, backend, profiler)
        self._loaded: _Loaded | None = _Loaded(model, kv, passes)
        library = load_library() if model.device.type == "cpu" else None
        self._sampler = Sampler(
            info.vocab_size,
            model.device,
            None if library is None else compiled_peaks(library),
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
    def launch(self, plan: StepPlan) -> None:
        """Start one step, see ``Executor``: on a GPU without waiting for the one before."""
        step = StepRun(plan, self.model, self.kv)
        self._update(step)
        draws = NO_DRAWS
        with self._undoing(step):
            self.kv.copy_blocks(plan.block_copies)
            if plan.scheduled:
                with self._profiler.measure(INPUT):
                    step.batch = self.inputs.build(plan, self.requests)
                with as_current(self.model.device):
                    draws = self._begin(step)
        self._launched.append((step, draws))

    @torch.inference_mode()
    def collect(self) -> StepResult:
        """Wait for the oldest step that was launched, see ``Executor``."""
        step, draws = self._launched.popleft()
        step.clock.resume(self._last_end)
        with self._undoing(step, *(later for later, _ in self._launched)):
            with as_current(self.model.device), self._profiler.measure(SAMPLING):
                self._finish(step, draws)
            step.clock.mark("sample")
            for hook in reversed(self.hooks):
                hook.after(step)
        for later, _ in self._launched:  # what failed may have been computed with
            later.drop_earlier(step.result.errors)
        step.result.timings, step.result.duration = step.clock.seconds, step.clock.total()
        self._last_end = time.perf_counter()
        return step.result

    def execute(self, plan: StepPlan) -> StepResult:
        """A whole step: ``launch`` and ``collect``."""
        self.launch(plan)
        return self.collect()

    def _update(self, step: StepRun) -> None:
        """Let everything take in the plan, which says only what changed: a failure comes after."""
        errors: list[Exception] = []
        for hook in self.hooks:
            try:
                hook.update(step)
            except Exception as error:
                errors.append(error)
        for running, _ in self._launched if step.plan.released else ():
            running.drop(step.plan.released)  # before others write into their blocks
        self.requests.update(step.plan)
        self.inputs.release(step.plan.released)
        self.kv.recurrent.update(step.plan)
        if errors:
            raise errors[0]

    @contextmanager
    def _undoing(self, step: StepRun, *later: StepRun) -> Iterator[None]:
        """Zero what a pass that fails in here may have written: its blocks go to others next.

        Likewise what its requests have written in ``later`` passes.
        """
        try:
            yield
        except Exception as error:
            step.drop(step.plan.scheduled)
            for each in later:
                each.drop_earlier(step.plan.scheduled)
            if (out_of_memory := memory_error(error)) is not None:
                release_cached_memory()  # in pieces, of which none may fit the next step
                raise out_of_memory from error
            raise

    def _begin(self, step: StepRun) -> StepDraws:
        """Start one forward pass over all tokens of the batch, and one draw per request."""
        batch = step.batch
        if self._launched:
            before, drawn_before = self._launched[-1]
            take_awaited(batch, before.batch, drawn_before)
        for hook in self.hooks:
            hook.before(step)
        wanted = rows_to_draw_from(batch)
        drawn = None if wanted is None else on_device(wanted, self.model.device)
        step.clock.mark("input")
        rows = None if step.needs_all_rows else drawn
        step.hidden = hidden = self.passes.hidden(step, rows)  # [rows, hidden]
        if drawn is not None:
            step.are_finite = begin_finite_check(step)
        step.clock.mark("forward")
        with self._profiler.measure(SAMPLING):
            step.drawn_from = hidden if rows is drawn else hidden[drawn]
            draws = begin_step_draws(step, step.drawn_from, self._sampler)
        step.clock.mark("sample")
        return draws

    def _finish(self, step: StepRun, draws: StepDraws) -> None:
        """Wait for the pass, and put what it gave into the result."""
        if step.are_finite is not None and not all(step.are_finite()):
            fail_non_finite(step)
        finish_step_draws(step, draws)

    def close(self) -> None:
        """Free weights and KV tensors; only ``info`` and ``close`` can be used afterwards."""
        with ExitStack() as stack:  # each is closed, whatever another one raises
            stack.callback(release_cached_memory)
            for hook in reversed(self.hooks):
                stack.callback(hook.close)
            self.hooks.clear()
            self._launched.clear()
            self._loaded = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What an executor lets go of when it is closed; passes hold views of the KV tensors."""

    model: LanguageModel
    kv: KVTensors
    passes: Passes
