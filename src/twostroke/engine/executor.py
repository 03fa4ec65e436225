"""The seam between the engine and whatever runs the model, or pretends to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from twostroke.core.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorInfo:
    """What the engine must know of a loaded model.

    Attributes:
        model_id: Identifies the weights; part of every prefix-cache key.
        vocab_size: Token ids lie in ``[0, vocab_size)``.
        max_model_len: Most tokens of one request (prompt and output).
        num_blocks: KV blocks that the executor holds.
        block_size: Tokens per block.
        kv_bytes_per_token: Bytes of keys and values of one token, over all layers.
        weight_bytes: Bytes of the weights.
        eos_token_ids: Tokens by which the model ends an answer.
        sampling_defaults: Fields of ``SamplingParams`` that the model's makers recommend; they hold
            where a client of the API says nothing.
        device: Where it runs, as people write it ("cpu", "cuda:0", "simulated").
        load_seconds: Start-up time by phase ("import", "weights", "kv_cache", ...).
    """

    model_id: str
    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    kv_bytes_per_token: int = 0
    weight_bytes: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    sampling_defaults: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"
    load_seconds: dict[str, float] = field(default_factory=dict)


class Executor(Protocol):
    """Runs one step.

    ``execute`` takes in what is new in the plan (see ``StepPlan``). It reads the blocks to be saved
    before it writes any, carries out the block copies, and begins the block loads. Then it runs one
    forward pass over all scheduled tokens, drafts included. For each request whose last known token
    was in the pass it draws the next token, and one more for each draft that is accepted. The
    result names the requests whose loads have arrived or will not, and it may carry drafts for the
    next step. Plans come in order, and none may be left out: each says only what changed since the
    one before.

    The executor owns the KV tensors and a state for each request that holds blocks. It does not
    change the plan, which is valid until the next one is made. The result is the caller's.

    A failure of one request's numbers is reported in ``StepResult.errors``. The executor then also
    zeroes what the request wrote in this step, since another request may read these blocks later (a
    masked NaN times zero is still NaN). An exception means that the whole pass failed; the engine
    then fails every request in the plan.
    """

    @property
    def info(self) -> ExecutorInfo: ...

    def execute(self, plan: StepPlan) -> StepResult: ...

    def close(self) -> None: ...
