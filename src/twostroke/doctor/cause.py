"""Causes by name, and what is said of one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cause:
    """An answer to the question why it is slow.

    Attributes:
        name: For scripts: one of ``CAUSES``.
        share: Its part of the requests' time; of the calls where they were refused.
        seconds: Request-seconds; 0 where it is no matter of time.
        evidence: Sentences with numbers.
        is_floor: What the model's own work takes, where nothing else binds.
    """

    name: str
    share: float
    seconds: float
    evidence: list[str] = field(default_factory=list)
    is_floor: bool = False

    @property
    def title(self) -> str:
        return CAUSES[self.name]


CAUSES = {
    "token-budget": "requests wait for the token budget of a step (--max-num-batched-tokens)",
    "max-num-seqs": "requests wait for a place in the batch (--max-num-seqs)",
    "kv-blocks": "requests wait for KV blocks: the KV cache is too small",
    "static-batching": "requests wait until a whole batch has ended (--batching static)",
    "policy": "the scheduling policy holds requests back while there is room",
    "loading": "requests wait for KV blocks from a slower tier",
    "prefill-chunk": "prompts are cut into chunks that are too small (--max-prefill-chunk)",
    "long-prompts": "prompts of some requests hold up the answers of others",
    "batch-too-large": "more answers at once than the machine computes well: each is slower",
    "speculation": "drafts cost more than they give",
    "preemption": "requests lose their KV blocks and are computed again",
    "eviction": "prompts are computed again because their cached beginning was evicted",
    "machine": "the machine is at times much slower than it usually is",
    "host": "the host keeps the device waiting, between passes and beside them",
    "slow-client": "clients read their answers more slowly than they are written",
    "rate-limits": "calls are refused by a limit of their key (429)",
    "early-refusal": "calls are refused early: their first token would come too late",
    "one-key": "one API key sends most of the work, and the others wait behind it",
    "slow-replica": "one replica is slower than the others",
    "imbalance": "some replicas have more to do than others",
    "replica-down": "a replica takes no requests: the others have its work",
    "pool-ratio": "engines that compute prompts and those that write answers are out of proportion",
    "compute": "compute: the tokens of a step take longer than what each step takes anyhow",
    "bandwidth": "memory bandwidth: each step reads all weights, for few tokens",
    "idle": "nothing: the server has little to do",
}
PLAIN = ("compute", "bandwidth", "idle")  # what binds where nothing is wrong


def rank(cause: Cause) -> tuple[bool, float]:
    """The largest first, and last what binds anyway."""
    return cause.is_floor, -cause.share
