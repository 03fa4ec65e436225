"""Drives a TorchExecutor with hand-made plans, whose blocks are in a scrambled order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.specs import resolved
from twostroke.core.config import EngineConfig
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import (
    NO_SLOT,
    NewRequest,
    ScheduledRequest,
    StateChange,
    StepPlan,
    StepResult,
)
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor


class StepDriver:
    """A scheduler for tests: the caller says how many tokens of which request run."""

    def __init__(self, executor: TorchExecutor) -> None:
        self.executor = executor
        self.requests: dict[str, Request] = {}
        self.blocks: dict[str, list[int]] = {}
        self._released: list[str] = []
        self._free: list[int] = []
        self._sent: set[str] = set()
        self.reset()

    @classmethod
    def load(cls, folder: Path, profiler: Profiler = NO_PROFILE, **options: Any) -> StepDriver:
        settings = {"device": "cpu", "max_num_seqs": 4, "max_model_len": 128, **options}
        config = EngineConfig.from_flat({"model": str(folder), **settings})
        return cls(load_torch_executor(config, profiler=profiler))

    def reset(self) -> None:
        """Drop all requests."""
        self._released += self.requests
        self._sent.clear()
        self.requests, self.blocks = {}, {}
        count = self.executor.info.num_blocks
        self._free = torch.randperm(count, generator=torch.Generator().manual_seed(5)).tolist()

    def add(self, request_id: str, token_ids: list[int], **params: Any) -> Request:
        """Add a request whose prompt is ``token_ids``; greedy by default."""
        sampling = SamplingParams(**{"temperature": 0.0, **params})
        longest = self.executor.info.max_model_len
        request = Request(resolved(request_id, token_ids, longest, params=sampling))
        self.requests[request_id] = request
        self.blocks[request_id] = []
        return request

    def release(self, request_id: str) -> None:
        """Take a request's blocks away, as finishing or preemption do."""
        self._released.append(request_id)
        self._sent.discard(request_id)
        self._free += self.blocks[request_id]
        self.blocks[request_id] = []
        self.requests[request_id].num_computed_tokens = 0

    def plan(self, counts: dict[str, int], copies: list[tuple[int, int]] | None = None) -> StepPlan:
        """A plan that runs ``counts`` tokens of each request."""
        plan = StepPlan(step=0, time=0.0, block_copies=copies or [], released=self._released)
        self._released = []
        for request_id, count in counts.items():
            request, blocks = self.requests[request_id], self.blocks[request_id]
            num_sent_blocks, start = len(blocks), request.num_computed_tokens
            states = None
            info = self.executor.info
            needed = -(-(start + count) // info.block_size) * info.kv_groups.count
            blocks += [self._free.pop() for _ in range(needed - num_sent_blocks)]
            if request_id not in self._sent:
                num_sent_blocks = 0
                plan.new_requests[request_id] = NewRequest.of(request)
                request.num_sent_tokens = request.num_tokens
                self._sent.add(request_id)
                # Slots in the order in which requests came.
                states = StateChange([*self.requests].index(request_id), NO_SLOT)
            new_tokens = request.token_ids[request.num_sent_tokens :]
            request.num_sent_tokens = request.num_tokens
            plan.add(
                ScheduledRequest(
                    request_id,
                    start,
                    count,
                    start + count == request.num_tokens,
                    len(blocks),
                    num_sent_blocks,
                    blocks[num_sent_blocks:],
                    new_tokens,
                    states=states,
                )
            )
        return plan

    def step(
        self, counts: dict[str, int], copies: list[tuple[int, int]] | None = None
    ) -> StepResult:
        """Execute a plan and take up its tokens."""
        result = self.executor.execute(self.plan(counts, copies))
        for request_id, count in counts.items():
            self.requests[request_id].num_computed_tokens += count
            self.requests[request_id].token_ids += result.token_ids.get(request_id, [])
        return result

    def hidden(self, counts: dict[str, int]) -> dict[str, torch.Tensor]:
        """The forward pass alone: each request's hidden states ``[its tokens, hidden]``."""
        hidden = self.forward(counts)
        return dict(zip(counts, torch.split(hidden, list(counts.values()))))

    def forward(self, counts: dict[str, int], rows: torch.Tensor | None = None) -> torch.Tensor:
        """The forward pass alone: hidden states ``[rows, hidden]``, by default of all tokens."""
        executor, plan = self.executor, self.plan(counts)
        with torch.inference_mode():
            executor.requests.update(plan)
            executor.inputs.release(plan.released)
            executor.kv.recurrent.update(plan)
            batch = executor.inputs.build(plan, executor.requests)
            attention = executor.passes.backend.prepare(batch.attention)
            states = executor.kv.recurrent.of_step(batch.shares, batch.query_start)
            hidden = executor.model.forward(
                batch.token_ids, batch.positions, attention, rows, states
            )
        for request_id, count in counts.items():
            self.requests[request_id].num_computed_tokens += count
        return hidden

    def chunked_logits(self, token_ids: list[int], chunks: list[int]) -> torch.Tensor:
        """Logits ``[tokens, vocab]`` of one request that runs in ``chunks``."""
        self.add("chunked", token_ids)
        parts = [self.hidden({"chunked": count})["chunked"] for count in chunks]
        with torch.inference_mode():
            return self.executor.model.logits(torch.cat(parts))
