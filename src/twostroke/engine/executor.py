"""The seam between the engine and whatever runs the model, or pretends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.pooling import PoolingAbility
from twostroke.core.step import StepPlan, StepResult
from twostroke.kv_cache.connector import TierInfo

NO_VECTORS = PoolingAbility(reason=("this model gives no embeddings", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorInfo:
    """What the engine must know of a loaded model.

    Attributes:
        model_id: Identifies the weights; part of every prefix-cache key.
        vocab_size: Token ids lie in ``[0, vocab_size)``.
        max_model_len: Most tokens of one request (prompt and output).
        num_blocks: KV blocks that the executor holds.
        block_size: Tokens per block.
        kv_bytes_per_token: Bytes of keys and values of one token, over all layers, with scales.
        kv_groups: Which layers share a block.
        kv_block_bytes: Bytes of a block; 0: those of its tokens, in all layers.
        num_state_slots: Slots for the state of recurrent layers, if the model has any.
        state_spacing: Blocks between two checkpoints of it that are kept.
        num_state_parts: Blocks' sizes that such a state takes in ``tiers``.
        kv_cache_dtype: Format of keys and values; empty where nothing is cached.
        weight_bytes: Bytes of the weights.
        eos_token_ids: Tokens by which the model ends an answer.
        sampling_defaults: Fields of ``SamplingParams`` that the model's makers recommend; they hold
            where a client of the API says nothing.
        max_new_tokens: Most tokens of an answer, if the operator has set that.
        generates: Whether it draws tokens at all; encoders do not.
        pooling: What vectors it gives.
        runs_ahead: Whether a plan may be launched before the result of the one before is collected.
        device: Where it runs, as people write it ("cpu", "cuda:0", "simulated").
        tiers: Where KV blocks can be saved to and loaded from, the fastest first.
        load_seconds: Start-up time by phase ("import", "weights", "kv_cache", ...).
    """

    model_id: str
    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    kv_bytes_per_token: int = 0
    kv_groups: KVGroups = ONE_GROUP
    kv_block_bytes: int = 0
    num_state_slots: int = 0
    state_spacing: int = 1
    num_state_parts: int = 0
    kv_cache_dtype: str = ""
    weight_bytes: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    sampling_defaults: dict[str, float] = field(default_factory=dict)
    max_new_tokens: int | None = None
    generates: bool = True
    pooling: PoolingAbility = NO_VECTORS
    runs_ahead: bool = False
    device: str = "cpu"
    tiers: Sequence[TierInfo] = ()
    load_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block."""
        return self.kv_block_bytes or self.block_size * self.kv_bytes_per_token

    @property
    def cache_tokens(self) -> int:
        """Tokens that all blocks hold together, while no request is longer than a window."""
        return self.num_blocks // self.kv_groups.count * self.block_size

    @property
    def full_requests(self) -> int:
        """How many requests of ``max_model_len`` tokens the KV cache holds at once."""
        groups = self.kv_groups
        return groups.num_requests(self.num_blocks, self.max_model_len, self.block_size)

    @property
    def longest_request(self) -> int:
        """Most tokens of one request, prompt and output: of the model, and of its KV cache."""
        cached = self.kv_groups.longest_request(self.num_blocks, self.block_size)
        return self.max_model_len if cached is None else min(self.max_model_len, cached)


class Executor(Protocol):
    """Runs steps.

    ``launch`` takes in what is new in the plan (see ``StepPlan``). It reads the blocks to be saved
    before it writes any, carries out the block copies, and begins the block loads. Then it starts
    one forward pass over all scheduled tokens, drafts included. For each request whose last known
    token is in the pass it draws the next token, and one more for each draft that is accepted.
    ``collect`` waits for the oldest pass that was launched. Its result names the requests whose
    loads have arrived or will not, and it may carry drafts for the next step. Plans come in order,
    and none may be left out: each says only what changed since the one before.

    An executor that ``runs_ahead`` takes one more plan before the result of the last is collected,
    if nothing of that has to be known for it (``StepPlan.host_wait``). A share of it may then
    reach one token beyond those that plans have told: the one that the pass before draws.

    The executor owns the KV tensors and a state for each request that holds blocks. It does not
    change the plan, which is valid until the next one is made. The result is the caller's.

    A failure of one request's numbers is reported in ``StepResult.errors``. The executor then also
    zeroes what the request wrote in this step, since another request may read these blocks later (a
    masked NaN times zero is still NaN). An exception of either call means that the whole pass
    failed; the engine then fails every request in the plan, and a launch that raised is not
    collected. ``EngineDeadError`` means that no pass will succeed again.
    """

    @property
    def info(self) -> ExecutorInfo: ...

    def launch(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepResult: ...

    def close(self) -> None: ...
