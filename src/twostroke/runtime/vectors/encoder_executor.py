"""Runs a step of prompts through an encoder: whole prompts, no keys and values kept."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, ErrorMessage, NonFiniteLogitsError
from twostroke.core.pooling import Pooling, PoolingAbility, pack_vector
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.immediate_executor import ImmediateExecutor
from twostroke.model_spec.vectors.encoder_spec import EncoderSpec, parse_encoder
from twostroke.model_spec.vectors.pooling_ability import read_pooling_ability
from twostroke.model_spec.vectors.pooling_files import read_text_length
from twostroke.model_spec.vectors.score_head import ONLY_SCORES
from twostroke.models.encoder import Encoder, make_batch
from twostroke.observability.profile import NO_PROFILE, REST, Profiler
from twostroke.runtime.device import memory_error, release_cached_memory, resolve_device
from twostroke.runtime.live_requests import LiveRequests
from twostroke.runtime.loading import model_fingerprint
from twostroke.runtime.phase_clock import PhaseClock
from twostroke.runtime.vectors.dense_modules import DenseModules
from twostroke.runtime.vectors.encoder_weights import load_encoder
from twostroke.runtime.vectors.pooling import finish_embedding, pool_whole


class EncoderExecutor(ImmediateExecutor):
    """One encoder on one device, see ``Executor``.

    Its KV blocks exist by number only: the scheduler counts them, and they hold nothing.
    """

    def __init__(
        self,
        model: Encoder,
        info: ExecutorInfo,
        profiler: Profiler = NO_PROFILE,
        dense: DenseModules | None = None,
    ) -> None:
        super().__init__()
        self._dense = dense or DenseModules()
        self.requests = LiveRequests()
        self._model: Encoder | None = model
        self._info = info
        self._profiler = profiler

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        checkpoint: Checkpoint | None = None,
        *,
        profiler: Profiler = NO_PROFILE,
    ) -> EncoderExecutor:
        """Find, check and load the encoder that ``config`` names.

        Raises as ``load_torch_executor``.
        """
        clock = PhaseClock()
        device = resolve_device(config.model.device)
        checkpoint = checkpoint or find_checkpoint(config.model.model, config.model.revision)
        spec = parse_encoder(checkpoint.config)
        _check_options(config)
        scheduler = config.scheduler.for_device(gpu=device.type == "cuda")
        budget = scheduler.max_num_batched_tokens
        max_model_len = _max_model_len(
            config.model.max_model_len, spec, budget, read_text_length(checkpoint.path)
        )
        clock.mark("config")
        model = load_encoder(checkpoint, spec, config.model.dtype, device)
        clock.mark("weights")
        block_size = config.cache.block_size
        info = ExecutorInfo(
            model_id=model_fingerprint(checkpoint, str(model.dtype)),
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len,
            num_blocks=scheduler.max_num_seqs * -(-max_model_len // block_size),
            block_size=block_size,
            weight_bytes=model.weight_bytes,
            generates=False,
            pooling=_ability(checkpoint, spec, config),
            device=str(device),
            load_seconds=clock.seconds,
        )
        return cls(model, info, profiler, DenseModules.load(checkpoint.path, info.pooling, device))

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @property
    def model(self) -> Encoder:
        if self._model is None:
            raise RuntimeError("the executor has been closed")
        return self._model

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one step, see ``Executor``. An exception means that the whole pass failed."""
        clock, result = PhaseClock(), StepResult()
        self.requests.update(plan)
        if plan.scheduled:
            try:
                with self._profiler.measure(REST):
                    self._run(plan, result)
            except Exception as error:
                raise memory_error(error) or error from error
        clock.mark("forward")
        result.timings, result.duration = clock.seconds, clock.total()
        return result

    def close(self) -> None:
        """Free the weights; only ``info`` and ``close`` can be used afterwards."""
        self._model = None
        release_cached_memory()

    def _run(self, plan: StepPlan, result: StepResult) -> None:
        states = [self.requests[request_id] for request_id in plan.scheduled]
        for share, state in zip(plan.scheduled.values(), states, strict=True):
            assert state.spec.vector is not None  # as the intake sees to
            assert share.start == 0 and share.num_tokens == state.num_tokens, "a cut prompt"
        poolings = [state.spec.vector for state in states if state.spec.vector is not None]
        batch = make_batch(
            self.model.spec,
            [state.token_ids for state in states],
            [pooling.second_text_start for pooling in poolings],
            self.model.device,
        )
        hidden = self.model.forward(batch)  # [tokens, hidden]
        for index, (state, pooling) in enumerate(zip(states, poolings, strict=True)):
            rows = hidden[batch.starts[index] : batch.starts[index + 1]]
            if (vector := self._vector(rows, pooling)) is not None:
                result.vectors[state.request_id] = vector
                continue
            error = NonFiniteLogitsError(
                f"the model produced NaN or infinite values for request {state.request_id}",
                hint="the weights may be broken, or --dtype float32 may be needed",
            )
            result.errors[state.request_id] = ErrorMessage.of(error)

    def _vector(self, rows: Tensor, pooling: Pooling) -> bytes | None:
        state = pool_whole(rows, pooling.kind)
        if pooling.task == "embed":
            return finish_embedding(state, pooling, self._dense)
        score = float(self.model.score(state[None])[0])
        return pack_vector([score]) if abs(score) < float("inf") else None


def _ability(checkpoint: Checkpoint, spec: EncoderSpec, config: EngineConfig) -> PoolingAbility:
    """A ranking model gives scores alone: its states were not trained for embeddings."""
    if spec.ranks:
        return PoolingAbility(score_kind="cls", whole_prompts=True, reason=ONLY_SCORES)
    return read_pooling_ability(
        checkpoint.path,
        checkpoint.config,
        spec.hidden_size,
        config.model,
        "cls",
        generates=False,
        whole_prompts=True,
    )


def _check_options(config: EngineConfig) -> None:
    if config.model.quantization is not None:
        raise ConfigError(
            "--quantization is for models that generate text", hint="leave it out for an encoder"
        )
    if config.model.runner == "generate":
        raise ConfigError(
            "--runner generate: an encoder generates no text", hint="leave --runner out"
        )


def _max_model_len(
    wanted: int | None, spec: EncoderSpec, budget: int, text_length: int | None
) -> int:
    """A prompt runs within one step, so it has to fit into a step's token budget.

    Args:
        text_length: Longest text that the model was trained on; more only if that is asked for.
    """
    limit = min(spec.max_length, budget)
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"--max-model-len {wanted} exceeds {limit}: the model has {spec.max_length} positions,"
            f" and a prompt must fit into one step of {budget} tokens",
            hint=f"give --max-model-len {limit} or less",
        )
    return wanted or min(limit, text_length or limit)
