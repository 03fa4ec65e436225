"""Which replicas a request goes to, where prompts are computed apart from answers."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.engine.executor import ExecutorInfo
from twostroke.routing.routers import Router
from twostroke.simulator.fleet.journey import Journey


@dataclass(frozen=True, slots=True)
class Split:
    """How the live client sends requests to engines with roles, and what they send to clients.

    Attributes:
        router: Chooses among the replicas that compute prompts.
        info: What one of those holds.
        max_model_len: Most tokens of a request there.
        min_tokens: Shorter prompts are computed where their answers are.
        keeps_first: Clients get the token that comes of the prompt; else the next replica draws it
            again, and they get that.
    """

    router: Router[int]
    info: ExecutorInfo
    max_model_len: int
    min_tokens: int
    keeps_first: bool

    def computes(self, journey: Journey) -> bool:
        """Whether what is known of a request is to be computed apart."""
        num_tokens = journey.num_known
        if journey.sender is not None or num_tokens < self.min_tokens:
            return False
        num_blocks = self.info.kv_groups.most_blocks(num_tokens + 1, self.info.block_size)
        return num_tokens < self.max_model_len and num_blocks <= self.info.num_blocks
