"""The constraints of running requests, and their masks, computed beside the forward pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.constraint import AllowedTokens, Constraint
from twostroke.constraints.starting import start_constraint
from twostroke.constraints.thought_budget import ThoughtBudget
from twostroke.core.errors import (
    ErrorMessage,
    InvalidRequestError,
    RequestFailedError,
    TwostrokeError,
)
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest, StepPlan, StepResult
from twostroke.runtime.input_batch import Batch
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import TokenMask

logger = logging.getLogger(__name__)

MAX_FORCED = 64  # tokens of one request that are taken in one pass without a choice

# Of one request: its last known token's, then one for each draft that the form allows.
MasksOrError = Sequence[TokenMask] | TwostrokeError
StepMasks = Mapping[str, Sequence[TokenMask]]  # by request id


class PendingMasks:
    """The masks of one step, as they are being computed."""

    def __init__(self, masks: Future[dict[str, MasksOrError]] | None = None) -> None:
        self._masks = masks

    def take(self, result: StepResult) -> StepMasks:
        """Wait for the masks, by request id. A request whose constraint failed ends with that."""
        if self._masks is None:
            return {}
        masks: dict[str, Sequence[TokenMask]] = {}
        for request_id, outcome in self._masks.result().items():
            if not isinstance(outcome, TwostrokeError):
                masks[request_id] = outcome
            elif request_id not in result.repeated:
                result.errors.setdefault(request_id, ErrorMessage.of(outcome))
                result.prompt_logprobs.pop(request_id, None)
        return masks


@dataclass(slots=True)
class _Followed:
    """A request's constraint, and how many tokens of its output that has taken."""

    new: NewRequest
    constraint: Constraint | None = None  # made by the first mask
    num_taken: int = 0


class ConstraintStates:
    """Follows the outputs of constrained requests; a batch without any pays nothing.

    A constraint's state follows from the request's output. So a request that was preempted, or came
    from another process, gets a new one, which takes its whole output at once.

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
        self._followed: dict[str, _Followed] = {}
        self._thread: ThreadPoolExecutor | None = None

    def update(self, plan: StepPlan) -> None:
        """Take in a plan: drop what was released, add what is new."""
        for request_id in plan.released:
            self._followed.pop(request_id, None)
        for request_id, new in plan.new_requests.items():
            if new.params.is_constrained:
                self._followed[request_id] = _Followed(new)

    def begin(self, batch: Batch) -> PendingMasks:
        """Compute the masks of the rows that draw, on a thread. Until they are taken, the states
        of the batch may not change."""
        if not self._followed:
            return PendingMasks()
        constrained = [
            (batch.states[index], batch.shares[index].draft_token_ids)
            for index in batch.sampling
            if batch.shares[index].request_id in self._followed
        ]
        if not constrained:
            return PendingMasks()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="twostroke-masks")
        return PendingMasks(self._thread.submit(self._all_masks, constrained))

    def add_forced(self, batch: Batch, result: StepResult) -> set[str]:
        """Add to what was drawn the tokens behind it that leave no choice.

        They are part of the answer at once, and the next pass computes them together, without
        logits. Where these are needed (for log-probabilities, or because other masks might leave
        nothing), they are drafts instead: drawn too, from masks of one token.

        Returns:
            The requests that got some.
        """
        added = set()
        for index in batch.sampling if self._followed else ():
            request = batch.states[index]
            followed = self._followed.get(request.request_id)
            tokens = result.token_ids.get(request.request_id)
            if followed is None or not tokens or request.params.speculation == 0:
                continue
            as_drafts = _needs_logits(request.params)
            if forced := self._forced(followed, tokens, as_drafts):
                added.add(request.request_id)
                if as_drafts:
                    result.draft_token_ids[request.request_id] = forced
                else:
                    result.token_ids[request.request_id] = tokens + forced
        return added

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _all_masks(
        self, requests: Sequence[tuple[RequestState, Sequence[int]]]
    ) -> dict[str, MasksOrError]:
        return {
            request.request_id: masks
            for request, drafts in requests
            if (masks := self._masks(request, drafts)) is not None
        }

    def _masks(self, request: RequestState, drafts: Sequence[int]) -> MasksOrError | None:
        """Whatever goes wrong with one constraint, the other requests get their masks.

        ``None``: from here on all tokens are allowed.
        """
        try:
            constraint = self._caught_up(request)
            if isinstance(constraint, ThoughtBudget) and constraint.is_over:
                del self._followed[request.request_id]
                return None
            allowed, num_drafts = [constraint.allowed()], 0
            for draft in drafts:
                if not _is_allowed(draft, allowed[-1]):
                    break  # it cannot be drawn, so the rows behind it are not looked at
                constraint.advance([draft])
                num_drafts += 1
                allowed.append(constraint.allowed())
            if num_drafts:
                constraint.roll_back(num_drafts)
            return [self._token_mask(each) for each in allowed]
        except TwostrokeError as error:
            return error
        except BaseException as error:  # a panic of the library's Rust is no Exception
            logger.exception("request %s: its constraint failed", request.request_id)
            return RequestFailedError(f"the answer's form failed: {type(error).__name__}")

    def _caught_up(self, request: RequestState) -> Constraint:
        """The request's constraint, after all tokens of its output that are known."""
        followed = self._followed[request.request_id]
        if followed.constraint is None:
            followed.constraint = self._start(followed.new)
        tokens = request.output_token_ids[followed.num_taken :]
        followed.constraint.advance(tokens)
        followed.num_taken += len(tokens)
        return followed.constraint

    def _forced(self, followed: _Followed, tokens: list[int], as_drafts: bool) -> list[int]:
        """The forced tokens behind ``tokens``, as far as each is the only one that is allowed."""
        constraint = followed.constraint
        if constraint is None:
            return []
        try:
            constraint.advance(tokens)
            followed.num_taken += len(tokens)
            forced = constraint.forced()[:MAX_FORCED]
            for count, token in enumerate(forced):
                if not _is_only(token, constraint.allowed()):
                    forced = forced[:count]
                    break
                constraint.advance([token])
            if as_drafts:
                constraint.roll_back(len(forced))
            else:
                followed.num_taken += len(forced)
            return forced
        except BaseException:  # its next mask will say what is wrong
            logger.debug("request %s: nothing forced", followed.new.request_id, exc_info=True)
            return []

    def _start(self, new: NewRequest) -> Constraint:
        if self._grammars is None:
            raise InvalidRequestError("this engine has no tokenizer for structured outputs")
        return start_constraint(self._grammars, new, self._vocab_size)

    def _token_mask(self, allowed: AllowedTokens) -> TokenMask:
        mask = TokenMask(*allowed)
        if self._on_cpu:
            mask.biases()  # here, not while the step waits for it
        return mask


def _needs_logits(params: SamplingParams) -> bool:
    masked = params.banned_token_ids or params.bad_words or params.allowed_token_ids is not None
    return bool(masked) or params.logprobs is not None


def _is_only(token: int, allowed: AllowedTokens) -> bool:
    """Whether a token is the only one that is allowed."""
    return _is_allowed(token, allowed) and int(np.bitwise_count(allowed.bits).sum()) == 1


def _is_allowed(token: int, allowed: AllowedTokens) -> bool:
    return token < 8 * len(allowed.bits) and bool(allowed.bits[token >> 3] >> (token & 7) & 1)
