"""What the largest steps take beside weights and cache, measured before the cache is allocated."""

from __future__ import annotations

import math

from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.kv_groups import KVGroups
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NO_SLOT, NewRequest, ScheduledRequest, StateChange, StepPlan
from twostroke.engine.executor import ExecutorInfo
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.device import begin_peak, peak_memory, release_cached_memory
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.torch_executor import TorchExecutor

# PyTorch keeps freed memory in pieces that do not fit all that is asked for later.
_SPARE = 1.1


def measured_peak(kv: KVTensors, target: LanguageModel, config: EngineConfig, length: int) -> int:
    """Bytes that the largest steps need; on a CPU, whose cache takes a share of what is free, 0.

    Args:
        kv: A cache for ``blocks_of_largest`` and one recurrent state, to be dropped afterwards.
        length: Most tokens of a request.
    """
    if target.device.type != "cuda":
        return 0
    release_cached_memory()
    before = begin_peak(target.device)
    run_largest(kv, target, config, length)
    return needed_beside(before, peak_memory(target.device))


def needed_beside(before: int, peak: int) -> int:
    """Bytes to leave to steps, given what was allocated before them and at their peak."""
    return math.ceil(max(peak - before, 0) * _SPARE)


def largest_shares(config: EngineConfig, length: int, *, gpu: bool) -> list[list[int]]:
    """Tokens of each request of the largest steps: a budget of prompts, and as many as may run."""
    scheduler = config.scheduler.for_device(gpu=gpu)
    budget, most = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    each = min(budget, length, scheduler.max_prefill_chunk or budget)
    prompts = [min(each, budget - start) for start in range(0, budget, each)][:most]
    return [prompts, [1] * min(most, budget)]


def blocks_of_largest(
    config: EngineConfig, length: int, block_size: int, groups: KVGroups, *, gpu: bool
) -> int:
    """KV blocks that the largest steps write."""
    return max(
        groups.count * sum(-(-tokens // block_size) for tokens in shares)
        for shares in largest_shares(config, length, gpu=gpu)
    )


def run_largest(
    kv: KVTensors, target: LanguageModel, config: EngineConfig, length: int
) -> list[int]:
    """Compute the largest steps, draws included. Returns how many tokens each of them drew."""
    info = ExecutorInfo(
        model_id="",
        vocab_size=target.spec.vocab_size,
        max_model_len=length,
        num_blocks=kv.num_blocks,
        block_size=kv.block_size,
        kv_groups=KVGroups((None,) * len(kv.groups), length),
    )
    executor = TorchExecutor(target, kv, attention_backend(target.spec, kv), info, [])
    drawn, released = [], list[str]()
    for number, shares in enumerate(largest_shares(config, length, gpu=kv.device.type == "cuda")):
        plan = _plan(number, shares, kv, released)
        drawn.append(len(executor.execute(plan).token_ids))
        released = list(plan.scheduled)
    return drawn


def _plan(number: int, shares: list[int], kv: KVTensors, released: list[str]) -> StepPlan:
    plan, block = StepPlan(number, 0.0, released=released), 0
    # All of the sampler's tables are made, too.
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, max_tokens=2)
    # One slot for all states: what they hold then means nothing, and takes as much.
    states = StateChange(0, NO_SLOT) if kv.recurrent.exist else None
    for index, tokens in enumerate(shares):
        name = f"largest-{number}-{index}"
        count = len(kv.groups) * -(-tokens // kv.block_size)
        spec = ResolvedRequest(
            request_id=name, parent_id=name, prompt_token_ids=[0] * tokens, params=params,
            max_total_tokens=tokens + 2,
        )  # fmt: skip
        plan.new_requests[name] = NewRequest(spec)
        plan.add(
            ScheduledRequest(
                name, 0, tokens, True, new_block_ids=[*range(block, block + count)], states=states
            )
        )
        block += count
    return plan
