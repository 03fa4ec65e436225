"""Runs a step of the engine with PyTorch on one device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig
from twostroke.core.errors import EngineError, ErrorMessage, NonFiniteLogitsError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.pooling import Pooling
from twostroke.core.step import ScheduledRequest, StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.kernels.library import load_library
from twostroke.kv_tiers.transfers import Transfers
from twostroke.layers.activation import compiled_peaks
from twostroke.layers.attention.base import AttentionBackend
from twostroke.models.decoder import Decoder
from twostroke.observability.profile import INPUT, NO_PROFILE, SAMPLING, Clock, Profiler
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.constraints.states import ConstraintStates, StepMasks
from twostroke.runtime.device import memory_error, release_cached_memory
from twostroke.runtime.input_batch import Batch, InputBatch
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.loading import load_parts
from twostroke.runtime.phase_clock import PhaseClock
from twostroke.runtime.request_states import RequestStates
from twostroke.runtime.speculation.verification import MAX_LOGITS, Draw, draw, rows_to_draw_from
from twostroke.runtime.vectors.dense_modules import DenseModules
from twostroke.runtime.vectors.pooling import Pooler, finish_embedding, pools
from twostroke.runtime.vectors.scoring import ScoreHead, finish_score
from twostroke.sampling.logprobs import prompt_logprobs
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.sampler import Sampler
from twostroke.spec_decode.base import FinishedPass, Proposer
from twostroke.spec_decode.synthetic import SyntheticAcceptance


class TorchExecutor:
    """One model on one device, see ``Executor``.

    Owns the weights, the KV tensors and one block-table row per live request, nothing else that
    lasts between steps.

    Args:
        profiler: Measures the parts of a step that are not the model's.
        proposer: Guesses tokens ahead where plans allow it; owned by the executor from here on.
        synthetic: For measurements: accepts drafts at a rate, whatever is drawn.
        grammars: For requests whose answers have a form; without it, they fail.
        dense: Of the checkpoint's embeddings.
        score_head: Of a ranking model that has one.
        transfers: Moves blocks to and from tiers; owned by the executor from here on.
    """

    def __init__(
        self,
        model: Decoder,
        kv: KVTensors,
        info: ExecutorInfo,
        max_num_seqs: int,
        profiler: Profiler = NO_PROFILE,
        proposer: Proposer | None = None,
        synthetic: SyntheticAcceptance | None = None,
        grammars: GrammarCompiler | None = None,
        dense: DenseModules | None = None,
        transfers: Transfers | None = None,
        score_head: ScoreHead | None = None,
    ) -> None:
        self._transfers = transfers
        self.inputs = InputBatch(
            max_num_seqs,
            -(-info.max_model_len // kv.block_size) * info.kv_groups.count,
            kv.block_size,
            model.device,
            info.kv_groups.windows,
        )
        self.requests = RequestStates()
        self._pooler = Pooler()
        self._dense = dense or DenseModules()
        self._score_head = score_head
        self.proposer = proposer
        self.synthetic = synthetic
        self.constraints = ConstraintStates(grammars, info.vocab_size, model.device)
        self._info = info
        self._profiler = profiler
        if model.device.type != "cpu":
            profiler.use_clock(_clock_of(model.device))
        self._loaded: _Loaded | None = _Loaded(
            model, kv, attention_backend(model.spec, kv.keys, kv.values, kv.layout, kv.groups)
        )
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
        grammars: GrammarCompiler | None = None,
    ) -> TorchExecutor:
        """Find, check and load the model that ``config`` names, and allocate the KV cache.

        Args:
            folder: The model's files, if ``resolve_model`` was asked already (a Hub id costs it a
                request).
            profiler: Measures the parts of each step.
            grammars: See ``TorchExecutor``.

        Raises:
            ConfigError: The device does not exist, ``max_model_len`` exceeds the model's context
                length, or speculation cannot work as configured.
            ModelLoadError: The checkpoint is missing, broken or not supported.
            InsufficientMemoryError: Weights, or the KV cache of one full-length request, do not
                fit.
        """
        parts = load_parts(config, folder, profiler)
        return cls(
            parts.model,
            parts.kv,
            parts.info,
            config.scheduler.max_num_seqs,
            profiler,
            parts.proposer,
            parts.synthetic,
            grammars,
            parts.dense,
            parts.transfers,
            parts.score_head,
        )

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
        clock, result = PhaseClock(), StepResult()
        if self._transfers is not None:  # before all that may fail: requests wait for its loads
            self._transfers.begin(plan)
            clock.mark("save")
        self.requests.update(plan)
        self.constraints.update(plan)
        self.inputs.release(plan.released)
        self._pooler.release(plan.released)
        self._refuse_what_is_not_implemented(plan)
        if self.proposer is not None:
            self.proposer.update(plan)
        self.kv.copy_blocks(plan.block_copies)
        if plan.scheduled:
            with self._profiler.measure(INPUT):
                batch = self.inputs.build(plan, self.requests)
            try:
                drawn_from = self._run(batch, clock, result)
            except Exception as error:
                # What the pass had written by then may be anything, and its blocks go to others
                # next.
                self.kv.zero_slots(batch.attention.slots)
                raise memory_error(error) or error from error
            self._propose(plan, batch, drawn_from, clock, result)
        if self._transfers is not None:
            self._transfers.advance(plan, result, clock.total())
            clock.mark("load")
        result.timings, result.duration = clock.seconds, clock.total()
        return result

    def _refuse_what_is_not_implemented(self, plan: StepPlan) -> None:
        """Parts of a plan that this executor would otherwise ignore, and so answer wrongly."""
        if self._transfers is None and (plan.block_loads or plan.block_saves):
            raise EngineError("this executor has no tier to load blocks from or to save them to")
        if any(request.adapter_id for request in plan.new_requests.values()):
            raise EngineError("this executor has no adapters")

    def _run(self, batch: Batch, clock: PhaseClock, result: StepResult) -> Tensor:
        """The states ``[rows, hidden]`` that tokens were drawn from."""
        with self._profiler.measure(INPUT):
            attention = self.backend.prepare(batch.attention)
        clock.mark("input")
        masks = self.constraints.begin(batch)
        drawn = _on_device(rows_to_draw_from(batch), self.model.device)
        rows = None if _scores_prompts(batch) or pools(batch) else drawn
        hidden = self.model.forward(
            batch.token_ids, batch.positions, attention, rows
        )  # [rows, hidden]
        if drawn is not None:
            self._fail_non_finite(batch, result)
        clock.mark("forward")
        self._score_prompts(batch, hidden, result)
        self._pool(batch, hidden, result)
        with self._profiler.measure(SAMPLING):
            drawn_from = hidden if rows is drawn else hidden[drawn]
            self._sample(batch, drawn_from, masks.take(result, clock.total()), result)
        clock.mark("sample")
        return drawn_from

    def _propose(
        self, plan: StepPlan, batch: Batch, hidden: Tensor, clock: PhaseClock, result: StepResult
    ) -> None:
        forced = self.constraints.add_forced(batch, result, clock.total())
        if self.proposer is not None:
            table = batch.attention.block_table
            step = FinishedPass(plan, batch.states, table, result.token_ids, hidden, forced)
            result.draft_token_ids |= self.proposer.propose(step)
            clock.mark("draft")

    def close(self) -> None:
        """Free weights and KV tensors; only ``info`` and ``close`` can be used afterwards."""
        if self._transfers is not None:
            self._transfers.close()
        self._loaded = self.proposer = self._transfers = None
        self.constraints.close()
        release_cached_memory()

    def _fail_non_finite(self, batch: Batch, result: StepResult) -> None:
        # Logits show what is wrong with rows that are sampled from. Others may not reach them (in
        # a chunk before the last, or beyond a window), but they lie in the cache.
        slots = batch.attention.slots
        if self.kv.all_finite(slots):
            return
        for index in range(len(batch.shares)):  # drafts may be rejected: their logits decide
            if not self.kv.all_finite(slots[batch.known_rows(index)]):
                self._fail(batch, index, result)

    def _fail(self, batch: Batch, index: int, result: StepResult) -> None:
        """End one request of the step with an error, and zero what it wrote into its blocks.

        With drafts it runs once more, without them: what is wrong may be theirs.
        """
        self.kv.zero_slots(batch.attention.slots[batch.rows(index)])
        share = batch.shares[index]
        result.prompt_logprobs.pop(share.request_id, None)
        if share.draft_token_ids:
            result.repeated.append(share.request_id)
            return
        error = NonFiniteLogitsError(
            f"the model produced NaN or infinite values for request {share.request_id} "
            f"at positions {share.start} to {share.start + share.num_tokens - 1}",
            hint=(
                "the weights may be broken, or --dtype bfloat16 or float32 may be needed instead of"
                " float16"
            ),
        )
        result.errors[share.request_id] = ErrorMessage.of(error)

    def _score_prompts(self, batch: Batch, hidden: Tensor, result: StepResult) -> None:
        """Log-probabilities of prompt tokens: the logits at position p score the token at p + 1."""
        for index, (share, request) in enumerate(zip(batch.shares, batch.states)):
            num_top, count = request.params.prompt_logprobs, _num_to_score(share, request)
            if num_top is None or _gave_up(request.request_id, result):
                continue
            if not count:
                if request.num_prompt_tokens == 1 and share.start == 0:  # nothing to score
                    result.prompt_logprobs[request.request_id] = []
                continue
            first = batch.query_start[index]
            next_ids = request.token_ids[share.start + 1 : share.start + 1 + count]
            step = max(1, MAX_LOGITS // self._info.vocab_size)
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

    def _pool(self, batch: Batch, hidden: Tensor, result: StepResult) -> None:
        """Vectors of the prompts that are through; ``hidden`` has all rows if there are any."""
        for index, (share, request) in enumerate(zip(batch.shares, batch.states)):
            if request.pooling is None or share.request_id in result.errors:
                continue
            rows = hidden[batch.rows(index)]
            state = self._pooler.add(share, request.pooling, request.num_prompt_tokens, rows)
            if state is None:
                continue
            if (vector := self._vector(state, request.pooling)) is None:
                self._fail(batch, index, result)
            else:
                result.vectors[share.request_id] = vector

    def _vector(self, state: Tensor, pooling: Pooling) -> bytes | None:
        if pooling.task == "embed":
            return finish_embedding(state, pooling, self._dense)
        logits = self.model.logits
        return finish_score(
            state, pooling, self._score_head, lambda row: logits(row.to(self.model.dtype))
        )

    def _sample(self, batch: Batch, hidden: Tensor, masks: StepMasks, result: StepResult) -> None:
        """Draw from ``hidden``, the rows of each of ``batch.sampling``, and accept drafts."""
        indices = batch.sampling
        if result.errors or result.repeated:
            failed = [_gave_up(batch.shares[index].request_id, result) for index in indices]
            counts = [len(batch.drawn_rows(index)) for index in indices]
            hidden = hidden[[not bad for bad, n in zip(failed, counts) for _ in range(n)]]
            indices = [index for index, bad in zip(indices, failed) if not bad]
        if not indices:
            return

        def logits_of(rows: slice) -> Tensor:
            return self.model.logits(hidden[rows])

        for drawn in draw(batch, indices, logits_of, self._sampler, self.synthetic, masks):
            self._take(batch, drawn, result)

    def _take(self, batch: Batch, drawn: Draw, result: StepResult) -> None:
        """Put one share's draw into the result, or end its request."""
        share = batch.shares[drawn.index]
        if drawn.non_finite:
            self._fail(batch, drawn.index, result)
        elif drawn.error is not None:
            result.errors[share.request_id] = ErrorMessage.of(drawn.error)
            result.prompt_logprobs.pop(share.request_id, None)
        else:
            result.token_ids[share.request_id] = drawn.token_ids
            if drawn.logprobs:
                result.logprobs[share.request_id] = drawn.logprobs
            if drawn.distribution is not None:
                result.distributions[share.request_id] = drawn.distribution
            if share.draft_token_ids:
                result.num_accepted_drafts[share.request_id] = drawn.num_accepted
        if drawn.bad_rows:
            self.kv.zero_slots(batch.attention.slots[drawn.bad_rows])


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What an executor lets go of when it is closed; the backend holds views of the KV tensors."""

    model: Decoder
    kv: KVTensors
    backend: AttentionBackend


def _clock_of(device: torch.device) -> Clock:
    """A clock that waits until the device has done all work that was started."""

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def _gave_up(request_id: str, result: StepResult) -> bool:
    return request_id in result.errors or request_id in result.repeated


def _on_device(rows: list[int] | None, device: torch.device) -> Tensor | None:
    return None if rows is None else torch.tensor(rows, dtype=torch.int64, device=device)


def _scores_prompts(batch: Batch) -> bool:
    return any(map(_num_to_score, batch.shares, batch.states))


def _num_to_score(share: ScheduledRequest, request: RequestState) -> int:
    """How many of its tokens are followed by one of the prompt whose probability is asked for."""
    if request.params.prompt_logprobs is None:
        return 0
    return max(0, min(share.num_tokens, request.num_prompt_tokens - 1 - share.start))
