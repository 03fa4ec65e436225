"""Proposers for tests: they know the answers, or nothing, or spoil what they know."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Literal, get_args

from twostroke.core.step import StepPlan
from twostroke.spec_decode.base import FinishedPass

Guessing = Literal["oracle", "half right", "random"]
GUESSING: tuple[Guessing, ...] = get_args(Guessing)


class ScriptedProposer:
    """Drafts from the answers that requests will have.

    Args:
        answers: Output tokens by request id; none beyond their ends.
        guessing: ``half right`` changes about one draft in four, ``random`` knows nothing.
    """

    reads_all_rows = False

    def __init__(
        self, answers: Mapping[str, list[int]], guessing: Guessing, vocab_size: int, seed: int = 0
    ) -> None:
        self.num_drafted = 0
        self._answers = answers
        self._guessing = guessing
        self._vocab_size = vocab_size
        self._random = Random(seed)
        self.live: set[str] = set()

    def update(self, plan: StepPlan) -> None:
        self.live -= set(plan.released)
        self.live |= plan.new_requests.keys()

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        assert {state.request_id for state in step.requests} <= self.live
        drafts = {}
        for request, tokens, most, place in step.continuations():
            share = step.plan.scheduled[request.request_id]
            assert step.requests[place] is request and share.max_new_drafts == most
            num_output = request.num_answer_tokens + len(tokens)
            guesses = self._answers[request.request_id][num_output : num_output + most]
            guesses += [0] * (most - len(guesses))
            drafts[request.request_id] = [self._guess(token) for token in guesses]
            self.num_drafted += most
        return drafts

    def _guess(self, token: int) -> int:
        if self._guessing == "oracle":
            return token
        if self._guessing == "half right" and self._random.random() < 0.75:
            return token
        return self._random.randrange(self._vocab_size)
