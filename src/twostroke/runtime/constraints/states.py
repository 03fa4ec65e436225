"""The constraints of running requests, and their masks, computed beside the forward pass.

A slow form slows its own answer: the step waits for it a little, once, and then draws for the
others. What was not drawn is computed again in the next step, or in whichever has its mask.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

import torch

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.compiling.turn_threads import Pieces, TurnThreads
from twostroke.core.errors import ErrorMessage, TwostrokeError
from twostroke.core.step import StepPlan, StepResult
from twostroke.runtime.constraints.answer import ConstrainedAnswer, needs_logits
from twostroke.runtime.constraints.mask_source import StepMasks
from twostroke.runtime.input_batch import Batch
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import TokenMask

# What a step may wait for masks after its pass, and spend on tokens without a choice: this many
# seconds, or this share of the pass.
LEAST_WAIT = 0.005
WAIT_SHARE = 0.5
# So many times as long as a slow mask takes, its tenant gets no other one while others run.
REST = 3.0
TURN = 0.001  # seconds of usual masks, after which another tenant may have its turn


class _Asked(NamedTuple):
    """A row that draws, and what makes its masks."""

    request: RequestState
    drafts: Sequence[int]
    answer: ConstrainedAnswer


class _Drawn(NamedTuple):
    """A row that has drawn, and what finds the tokens that must follow."""

    request: RequestState
    tokens: list[int]
    answer: ConstrainedAnswer


class PendingMasks:
    """The masks of one step, as they are being computed.

    Args:
        usual: Jobs after which all masks are there that usually come soon.
        alone: Nothing else draws in this step.
    """

    def __init__(
        self,
        asked: Sequence[_Asked] = (),
        usual: Collection[Future[None]] = (),
        *,
        alone: bool = False,
    ) -> None:
        self._asked = asked
        self._usual = usual
        self._alone = alone

    def take(self, result: StepResult, seconds: float) -> StepMasks:
        """Wait for the masks, by request id. A request whose constraint failed ends with that.

        Those that take too long are ``result.repeated``.

        Args:
            seconds: That the pass has taken.
        """
        if self._usual:
            wait(self._usual, timeout=max(LEAST_WAIT, WAIT_SHARE * seconds))
        if self._alone:
            self._wait_for_one()
        masks: dict[str, Sequence[TokenMask]] = {}
        for asked in self._asked:
            request_id, outcome = asked.request.request_id, asked.answer.take_masks(asked.drafts)
            if request_id in result.repeated or request_id in result.errors:
                continue
            if outcome is None:
                result.repeated.append(request_id)
                result.prompt_logprobs.pop(request_id, None)
            elif isinstance(outcome, TwostrokeError):
                result.errors[request_id] = ErrorMessage.of(outcome)
                result.prompt_logprobs.pop(request_id, None)
            else:
                masks[request_id] = outcome
        return masks

    def _wait_for_one(self) -> None:
        """No other request is held up, and to run the same pass again would bring nothing."""
        answers = [asked.answer for asked in self._asked]
        jobs = {job for answer in answers for job in (answer.job, answer.forcing) if job}
        while jobs and all(asked.answer.outcome is None for asked in self._asked):
            jobs = wait(jobs, timeout=LEAST_WAIT, return_when=FIRST_COMPLETED).not_done


class ConstraintStates:
    """Follows the outputs of constrained requests; a batch without any pays nothing.

    Args:
        grammars: Compiles descriptions, or has them from the client's side in this process.
        vocab_size: Columns of the logits.
        device: Where the logits are.
    """

    def __init__(
        self, grammars: GrammarCompiler | None, vocab_size: int, device: torch.device
    ) -> None:
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._on_cpu = device.type == "cpu"
        self._answers: dict[str, ConstrainedAnswer] = {}
        # Two, so that what one tenant's form takes at once keeps no other tenant's waiting.
        self._thread = TurnThreads("twostroke-masks", 2)

    def update(self, plan: StepPlan) -> None:
        """Take in a plan: drop what was released, add what is new."""
        for request_id in plan.released:
            self._answers.pop(request_id, None)
        for request_id, new in plan.new_requests.items():
            if new.params.is_constrained:
                self._answers[request_id] = ConstrainedAnswer(
                    new, self._grammars, self._vocab_size, on_cpu=self._on_cpu
                )

    def begin(self, batch: Batch) -> PendingMasks:
        """Compute the masks of the rows that draw, on a thread; what it is at from an earlier step
        goes on."""
        asked = [
            _Asked(batch.requests[index], batch.shares[index].draft_token_ids, answer)
            for index in (batch.sampling if self._answers else ())
            if (answer := self._answers.get(batch.shares[index].request_id)) is not None
            and not answer.is_over
        ]
        if not asked:
            return PendingMasks()
        alone = len(asked) == len(batch.shares)
        alone = alone and len({each.answer.tenant for each in asked}) == 1
        rest = 0.0 if alone else REST
        usual: dict[str, list[_Asked]] = {}
        for each in asked:
            answer = each.answer
            if not answer.is_free():
                continue
            if answer.is_slow:
                pieces, cost = _all_masks([each]), answer.seconds * (1 + len(each.drafts))
                answer.job = self._thread.submit(answer.tenant, pieces, cost=cost, rest=rest)
            else:
                usual.setdefault(answer.tenant, []).append(each)
        jobs = []
        for tenant, group in usual.items():
            jobs.append(job := self._thread.submit(tenant, _all_masks(group), rest=rest))
            for each in group:
                each.answer.job = job
        return PendingMasks(asked, jobs, alone=alone)

    def add_forced(self, batch: Batch, result: StepResult, seconds: float) -> set[str]:
        """Add to what was drawn the tokens after it that leave no choice.

        They are part of the answer at once, and the next pass computes them together, without
        logits. Where these are needed (for log-probabilities, or because other masks might leave
        nothing), they are drafts instead: drawn too, from masks of one token.

        Args:
            seconds: That the pass has taken. What is found within a share of that is added.

        Returns:
            The requests that got some.
        """
        until = time.perf_counter() + max(LEAST_WAIT, WAIT_SHARE * seconds)
        asked: dict[str, list[_Drawn]] = {}
        for index in batch.sampling if self._answers else ():
            request = batch.requests[index]
            answer = self._answers.get(request.request_id)
            tokens = result.token_ids.get(request.request_id)
            if answer is None or not tokens or request.params.speculation == 0 or answer.is_slow:
                continue
            asked.setdefault(answer.tenant, []).append(_Drawn(request, tokens, answer))
        jobs = []
        for tenant, group in asked.items():
            jobs.append(job := self._thread.submit(tenant, _all_forced(group, until)))
            for drawn in group:
                drawn.answer.forcing = job
        if jobs:
            wait(jobs, timeout=max(0.0, until - time.perf_counter()))
        return {
            drawn.request.request_id
            for group in asked.values()
            for drawn in group
            if _take_forced(drawn, result)
        }

    def close(self) -> None:
        self._thread.close()


def _all_masks(group: Sequence[_Asked]) -> Pieces[None]:
    """The masks of answers of one tenant, one after the other."""
    began = time.monotonic()
    for asked in group:
        if time.monotonic() - began > TURN:
            yield
            began = time.monotonic()
        asked.answer.find_masks(asked.request, asked.drafts)


def _all_forced(group: Sequence[_Drawn], until: float) -> Pieces[None]:
    """What is forced in answers of one tenant, one after the other."""
    for drawn in group:
        as_drafts = needs_logits(drawn.request.params)
        drawn.answer.find_forced(drawn.tokens, as_drafts=as_drafts, until=until)
    return
    yield


def _take_forced(drawn: _Drawn, result: StepResult) -> bool:
    """Add what was found in time to a result; returns whether there was anything."""
    request_id, forced = drawn.request.request_id, drawn.answer.take_forced()
    if forced and needs_logits(drawn.request.params):
        result.draft_token_ids[request_id] = forced
    elif forced:
        result.token_ids[request_id] = drawn.tokens + forced
    return bool(forced)
