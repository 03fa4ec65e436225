"""Runs a step of the engine with PyTorch on one device."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, EngineError, ErrorMessage, NonFiniteLogitsError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.step import ScheduledRequest, StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.kernels.library import load_library
from twostroke.layers.activation import compiled_peaks
from twostroke.layers.attention.base import AttentionBackend
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.model_spec.generation_config import read_sampling_defaults
from twostroke.model_spec.model_files import resolve_model, weight_files
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.observability.profile import INPUT, NO_PROFILE, SAMPLING, Clock, Profiler
from twostroke.runtime.device import memory_error, release_cached_memory, resolve_device
from twostroke.runtime.input_batch import Batch, InputBatch
from twostroke.runtime.kv_tensors import KVTensors, plan_num_blocks
from twostroke.runtime.request_states import RequestStates
from twostroke.runtime.weights import load_model
from twostroke.sampling.logprobs import prompt_logprobs
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.sampler import NO_TOKEN, Sampler

# Logits of a prompt's positions computed at once, in elements: 64 MiB of float32.
_MAX_PROMPT_LOGITS = 16 * 2**20


class TorchExecutor:
    """One model on one device, see ``Executor``.

    Owns the weights, the KV tensors and one block-table row per live request, nothing else that
    lasts between steps.

    Args:
        profiler: Measures the parts of a step that are not the model's.
    """

    def __init__(
        self,
        model: Decoder,
        kv: KVTensors,
        info: ExecutorInfo,
        max_num_seqs: int,
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        self.inputs = InputBatch(
            max_num_seqs, -(-info.max_model_len // kv.block_size), kv.block_size, model.device
        )
        self.requests = RequestStates()
        self._info = info
        self._profiler = profiler
        if model.device.type != "cpu":
            profiler.use_clock(_clock_of(model.device))
        self._loaded: _Loaded | None = _Loaded(model, kv, _attention_backend(model, kv))
        library = load_library() if model.device.type == "cpu" else None
        self._sampler = Sampler(
            info.vocab_size, model.device, None if library is None else compiled_peaks(library)
        )

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        folder: Path | None = None,
        *,
        profiler: Profiler = NO_PROFILE,
    ) -> TorchExecutor:
        """Find, check and load the model that ``config`` names, and allocate the KV cache.

        Args:
            folder: The model's files, if ``resolve_model`` was asked already (a Hub id costs it a
                request).
            profiler: Measures the parts of each step.

        Raises:
            ConfigError: The device does not exist, or ``max_model_len`` exceeds the model's context
                length.
            ModelLoadError: The checkpoint is missing, broken or not supported.
            InsufficientMemoryError: Weights, or the KV cache of one full-length request, do not
                fit.
        """
        clock = _PhaseClock()
        device = resolve_device(config.model.device)
        folder = folder or resolve_model(config.model.model, config.model.revision)
        spec = read_runnable(folder)
        recommended = config.model.generation_config == "auto"
        defaults = read_sampling_defaults(folder) if recommended else {}
        max_model_len = _max_model_len(config.model.max_model_len, spec)
        quantization = config.model.quantization
        if device.type == "cpu" and (library := load_library()) is not None:
            library.set_num_threads(torch.get_num_threads())
        clock.mark("config")
        model = load_model(
            folder, spec, config.model.dtype, device, max_model_len, quantization, profiler
        )
        release_cached_memory()  # what loading used for a moment counts as taken otherwise
        clock.mark("weights")
        bytes_per_token = int(spec.kv_bytes_per_token(str(model.dtype).removeprefix("torch.")))
        kv = _allocate_kv(config, model, bytes_per_token, max_model_len)
        clock.mark("kv_cache")
        info = ExecutorInfo(
            model_id=_model_id(folder, f"{model.dtype} {quantization}"),
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len,
            num_blocks=kv.num_blocks,
            block_size=kv.block_size,
            kv_bytes_per_token=bytes_per_token,
            weight_bytes=model.weight_bytes,
            eos_token_ids=frozenset(spec.eos_token_ids),
            sampling_defaults=defaults,
            device=str(device),
            load_seconds=clock.seconds,
        )
        return cls(model, kv, info, config.scheduler.max_num_seqs, profiler)

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @property
    def model(self) -> Decoder:
        return self._open().model

    @property
    def kv(self) -> KVTensors:
        return self._open().kv

    @property
    def backend(self) -> AttentionBackend:
        return self._open().backend

    def _open(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError("the executor has been closed")
        return self._loaded

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one step, see ``Executor``. An exception means that the whole pass failed."""
        clock, result = _PhaseClock(), StepResult()
        self.requests.update(plan)
        self.inputs.release(plan.released)
        _refuse_what_is_not_implemented(plan)
        self.kv.copy_blocks(plan.block_copies)
        if plan.scheduled:
            with self._profiler.measure(INPUT):
                batch = self.inputs.build(plan, self.requests)
            try:
                self._run(batch, clock, result)
            except Exception as error:
                # What the pass had written by then may be anything, and its blocks go to others
                # next.
                self.kv.zero_slots(batch.attention.slots)
                raise memory_error(error) or error from error
        result.timings, result.duration = clock.seconds, clock.total()
        return result

    def _run(self, batch: Batch, clock: _PhaseClock, result: StepResult) -> None:
        with self._profiler.measure(INPUT):
            attention = self.backend.prepare(batch.attention)
        clock.mark("input")
        drawn = self._rows_to_draw_from(batch)
        rows = None if drawn is None or _scores_prompts(batch) else drawn
        hidden = self.model.forward(
            batch.token_ids, batch.positions, attention, rows
        )  # [rows, hidden]
        if drawn is not None:
            self._fail_non_finite(batch, result)
        clock.mark("forward")
        self._score_prompts(batch, hidden, result)
        with self._profiler.measure(SAMPLING):
            self._sample(batch, hidden if rows is drawn else hidden[drawn], result)
        clock.mark("sample")

    def _rows_to_draw_from(self, batch: Batch) -> Tensor | None:
        """``None`` if every token of the step gives another one."""
        if len(batch.sampling) == batch.query_start[-1]:
            return None
        rows = [batch.query_start[index + 1] - 1 for index in batch.sampling]
        return torch.tensor(rows, dtype=torch.int64, device=self.model.device)

    def close(self) -> None:
        """Free weights and KV tensors; only ``info`` and ``close`` can be used afterwards."""
        self._loaded = None
        release_cached_memory()

    def _fail_non_finite(self, batch: Batch, result: StepResult) -> None:
        # Logits show what is wrong with rows that are sampled from. Others may not reach them (in
        # a chunk before the last, or beyond a window), but they lie in the cache.
        slots = batch.attention.slots
        if self.kv.all_finite(slots):
            return
        for index in range(len(batch.shares)):
            if not self.kv.all_finite(slots[batch.rows(index)]):
                self._fail(batch, index, result)

    def _fail(self, batch: Batch, index: int, result: StepResult) -> None:
        """End one request of the step with an error, and zero what it wrote into its blocks."""
        self.kv.zero_slots(batch.attention.slots[batch.rows(index)])
        share = batch.shares[index]
        error = NonFiniteLogitsError(
            f"the model produced NaN or infinite values for request {share.request_id} "
            f"at positions {share.start} to {share.start + share.num_tokens - 1}",
            hint=(
                "the weights may be broken, or --dtype bfloat16 or float32 may be needed instead of"
                " float16"
            ),
        )
        result.errors[share.request_id] = ErrorMessage.of(error)
        result.prompt_logprobs.pop(share.request_id, None)

    def _score_prompts(self, batch: Batch, hidden: Tensor, result: StepResult) -> None:
        """Log-probabilities of prompt tokens: the logits at position p score the token at p + 1."""
        for index, (share, request) in enumerate(zip(batch.shares, batch.states)):
            num_top, count = request.params.prompt_logprobs, _num_to_score(share, request)
            if num_top is None or request.request_id in result.errors:
                continue
            if not count:
                if request.num_prompt_tokens == 1 and share.start == 0:  # nothing to score
                    result.prompt_logprobs[request.request_id] = []
                continue
            first = batch.query_start[index]
            next_ids = request.token_ids[share.start + 1 : share.start + 1 + count]
            step = max(1, _MAX_PROMPT_LOGITS // self._info.vocab_size)
            scores: list[PositionLogprobs] = []
            for start in range(0, count, step):
                stop = min(start + step, count)
                logits = self.model.logits(hidden[first + start : first + stop])  # [rows, vocab]
                if not bool(logits.max() < torch.inf):  # as in the sampler: -inf is fine, not NaN
                    self._fail(batch, index, result)
                    break
                scores += prompt_logprobs(logits, next_ids[start:stop], num_top)
            else:
                result.prompt_logprobs[request.request_id] = scores

    def _sample(self, batch: Batch, hidden: Tensor, result: StepResult) -> None:
        """Draw from ``hidden``, a row for each of ``batch.sampling``."""
        if not batch.sampling:
            return
        logits, indices = self.model.logits(hidden), batch.sampling  # [rows, vocab]
        if result.errors:
            rows = [
                row
                for row, index in enumerate(indices)
                if batch.shares[index].request_id not in result.errors
            ]
            indices, logits = [indices[row] for row in rows], logits[rows]
        requests = [batch.states[index] for index in indices]
        output = self._sampler.sample(logits, requests)
        for row in output.non_finite:
            self._fail(batch, indices[row], result)
        for row, request in enumerate(requests):
            if output.token_ids[row] != NO_TOKEN:
                result.token_ids[request.request_id] = [output.token_ids[row]]
            elif row in output.errors:
                result.errors[request.request_id] = ErrorMessage.of(output.errors[row])
                result.prompt_logprobs.pop(request.request_id, None)
            if row in output.logprobs:
                result.logprobs[request.request_id] = [output.logprobs[row]]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What an executor lets go of when it is closed; the backend holds views of the KV tensors."""

    model: Decoder
    kv: KVTensors
    backend: AttentionBackend


@dataclass(slots=True)
class _PhaseClock:
    """Seconds by phase, each from the end of the one before."""

    seconds: dict[str, float]
    _start: float
    _last: float

    def __init__(self) -> None:
        self.seconds = {}
        self._start = self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

    def total(self) -> float:
        return time.perf_counter() - self._start


def _clock_of(device: torch.device) -> Clock:
    """A clock that waits until the device has done all work that was started."""

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def _allocate_kv(
    config: EngineConfig, model: Decoder, bytes_per_token: int, max_model_len: int
) -> KVTensors:
    num_blocks = plan_num_blocks(
        config.cache,
        bytes_per_token=bytes_per_token,
        max_model_len=max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        device=model.device,
    )
    return KVTensors(model.spec, num_blocks, config.cache.block_size, model.dtype, model.device)


def _attention_backend(model: Decoder, kv: KVTensors) -> AttentionBackend:
    attention = model.spec.layers[0].attention
    assert attention is not None  # as ``check_runnable`` says
    heads, windows = attention.heads, model.spec.sliding_windows
    if CompiledBackend.supports(kv.keys[0]) and (library := load_library()) is not None:
        return CompiledBackend(kv.keys, kv.values, heads, windows, library)
    return SdpaBackend(kv.keys, kv.values, heads, windows)


def _scores_prompts(batch: Batch) -> bool:
    return any(map(_num_to_score, batch.shares, batch.states))


def _num_to_score(share: ScheduledRequest, request: RequestState) -> int:
    """How many of its tokens are followed by one of the prompt whose probability is asked for."""
    if request.params.prompt_logprobs is None:
        return 0
    return max(0, min(share.num_tokens, request.num_prompt_tokens - 1 - share.start))


def _max_model_len(wanted: int | None, model: ModelSpec) -> int:
    if wanted is None:
        return model.context_length
    if wanted > model.context_length:
        raise ConfigError(
            f"--max-model-len {wanted} exceeds the model's context length of {model.context_length}"
            " tokens",
            hint=f"give --max-model-len {model.context_length} or less",
        )
    return wanted


def _model_id(folder: Path, precision: str) -> str:
    """Name and fingerprint: paths, sizes and times of the files, and the precision.

    Hashing weights would be slow.
    """
    digest = hashlib.sha256(precision.encode())
    for path in (folder / "config.json", *weight_files(folder)):
        stat = path.stat()
        digest.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return f"{folder.resolve().name}@{digest.hexdigest()[:16]}"


def _refuse_what_is_not_implemented(plan: StepPlan) -> None:
    """Parts of a plan that this executor would otherwise ignore, and so answer wrongly."""
    if plan.block_loads or plan.block_saves:
        raise EngineError("this executor has no tier to load blocks from or to save them to")
    if any(share.draft_token_ids for share in plan.scheduled.values()):
        raise EngineError("this executor verifies no drafts")
    if any(request.adapter_id for request in plan.new_requests.values()):
        raise EngineError("this executor has no adapters")
