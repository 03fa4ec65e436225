"""One answer that has a form: its masks, and the tokens about which it leaves no choice."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.constraint import AllowedTokens, Constraint, StatesFullError
from twostroke.constraints.starting import start_constraint
from twostroke.constraints.thought_budget import ThoughtBudget
from twostroke.core.errors import InvalidRequestError, RequestFailedError, TwostrokeError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import TokenMask

logger = logging.getLogger(__name__)

MAX_FORCED = 64  # tokens of one request that are taken in one pass without a choice
# A form is slow while its masks take longer than this, in seconds; a usual one takes 10 to 30 us.
SLOW_MASKS = 0.001
SECONDS_KEPT = 0.9  # of what masks took once, at each later one
# Of a request: its last known token's, then one for each draft that the form allows. Without a
# mask: from here on all tokens are allowed.
MasksOrError = Sequence[TokenMask] | TwostrokeError


class ConstrainedAnswer:
    """Follows one answer. One thread at a time is here, and ``masks`` needs a deep stack
    (``constraints/compiling/turn_threads.py``).

    The constraint's state follows from the answer's tokens. So where it is lost, a new one takes
    them all at once.

    Args:
        grammars: Compiles descriptions, or has them from the client's side in this process.
        vocab_size: Columns of the logits.
        on_cpu: Where the logits are.

    Attributes:
        job: What finds its masks, until they are taken.
        forcing: What finds ``forced``, until that is taken.
        outcome: The masks that have come, or why there are none.
        is_over: Nothing can be forbidden any more.
        seconds: What a mask took of late: decays from the slowest.
        forced: The tokens after the last draw that leave no choice.
    """

    def __init__(
        self,
        new: NewRequest,
        grammars: GrammarCompiler | None,
        vocab_size: int,
        *,
        on_cpu: bool,
    ) -> None:
        self.is_over = False
        self.job: Future[None] | None = None
        self.forcing: Future[None] | None = None
        self.outcome: MasksOrError | None = None
        self.seconds = 0.0
        self.forced: list[int] = []
        self._forced_as_drafts = False
        self._drafts: Sequence[int] = ()  # that ``outcome`` is for
        self._new = new
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._on_cpu = on_cpu
        self._constraint: Constraint | None = None  # made by the first mask
        self._num_taken = 0
        self._alone = False  # whether it remembers states by itself

    @property
    def tenant(self) -> str:
        """Whose turn its masks take."""
        form = self._new.params.structured_outputs
        return "" if form is None else form.scope

    @property
    def is_slow(self) -> bool:
        return self.seconds > SLOW_MASKS

    def find_masks(self, request: RequestState, drafts: Sequence[int]) -> None:
        """Set ``outcome``. Whatever goes wrong with one constraint, others get their masks."""
        began = time.thread_time()
        outcome: MasksOrError
        try:
            outcome = self._masks(request, drafts)
        except TwostrokeError as error:
            outcome = error
        except BaseException as error:  # a panic of the library's Rust is no Exception
            logger.exception("request %s: its constraint failed", request.request_id)
            outcome = RequestFailedError(f"the answer's form failed: {type(error).__name__}")
        self._note((time.thread_time() - began) / (1 + len(drafts)))
        self._drafts, self.outcome = drafts, outcome

    def take_masks(self, drafts: Sequence[int]) -> MasksOrError | None:
        """The outcome, once; ``None`` if it is still to come, or not for ``drafts``.

        An earlier step that did not wait for it may have had other drafts, or more.
        """
        outcome = self.outcome
        if outcome is None:
            return None
        self.outcome = self.job = None
        if isinstance(outcome, TwostrokeError):
            return outcome
        is_for_these = list(self._drafts[: len(drafts)]) == list(drafts)
        return outcome[: 1 + len(drafts)] if is_for_these else None

    def find_forced(self, tokens: Sequence[int], *, as_drafts: bool, until: float) -> None:
        """Set ``forced`` to the tokens that must follow ``tokens``, which were drawn.

        Each is the only one allowed. They count as part of the answer.

        Args:
            as_drafts: They are drawn later, and not yet part of the answer.
            until: When to be content with those that were found, on ``time.perf_counter``.
        """
        self.forced = []
        constraint = self._constraint
        if constraint is None or self.is_over or time.perf_counter() > until:
            return
        began = time.thread_time()
        forced: list[int] = []
        try:
            constraint.advance(tokens)
            self._num_taken += len(tokens)
            # The mask comes first: without the interpreter it reads what is forced, however long.
            allowed = constraint.allowed()
            rest = constraint.forced() if _is_only_one(allowed) else []
            for token in rest[: self._most_forced()]:
                if time.perf_counter() > until or not _is_only(token, allowed):
                    break
                constraint.advance([token])
                forced.append(token)
                allowed = constraint.allowed()
            if as_drafts:
                constraint.roll_back(len(forced))
            else:
                self._num_taken += len(forced)
        except BaseException:  # its next mask will say what is wrong
            logger.debug("request %s: nothing forced", self._new.request_id, exc_info=True)
            self._forget()
            return
        finally:
            self._note((time.thread_time() - began) / (1 + len(forced)))
        self.forced, self._forced_as_drafts = forced, as_drafts

    def take_forced(self) -> list[int]:
        """What was found, if that is done. From then on its masks may be looked up again."""
        if self.forcing is None or not self.forcing.done():
            return []
        self.forcing, forced, self.forced = None, self.forced, []
        return forced

    def is_free(self) -> bool:
        """Whether nothing is at work here; what was found too late is left out."""
        if self.take_forced() and not self._forced_as_drafts:
            self._forget()
        return self.forcing is None and self.job is None

    def _most_forced(self) -> int:
        most = self._new.params.max_tokens
        return MAX_FORCED if most is None else max(0, min(MAX_FORCED, most - self._num_taken))

    def _masks(self, request: RequestState, drafts: Sequence[int]) -> Sequence[TokenMask]:
        try:
            return self._masks_along(request, drafts)
        except StatesFullError:
            self._alone = True
            self._forget()
            return self._masks_along(request, drafts)

    def _masks_along(self, request: RequestState, drafts: Sequence[int]) -> Sequence[TokenMask]:
        constraint = self._caught_up(request.answer_token_ids)
        if isinstance(constraint, ThoughtBudget) and constraint.is_over:
            self.is_over = True
            return ()
        allowed, num_drafts = [constraint.allowed()], 0
        for draft in drafts:
            if not _is_allowed(draft, allowed[-1]):
                break  # it cannot be drawn, so the rows after it are not looked at
            constraint.advance([draft])
            num_drafts += 1
            allowed.append(constraint.allowed())
        if num_drafts:
            constraint.roll_back(num_drafts)
        return [self._token_mask(each) for each in allowed]

    def _caught_up(self, output_token_ids: Sequence[int]) -> Constraint:
        """The constraint, after all tokens of the answer that are known."""
        constraint = self._constraint
        if constraint is None:
            constraint = self._constraint = self._start()
        tokens = output_token_ids[self._num_taken :]
        constraint.advance(tokens)
        self._num_taken += len(tokens)
        return constraint

    def _start(self) -> Constraint:
        if self._grammars is None:
            raise InvalidRequestError("this engine has no tokenizer for structured outputs")
        return start_constraint(self._grammars, self._new, self._vocab_size, alone=self._alone)

    def _forget(self) -> None:
        self._constraint, self._num_taken = None, 0

    def _note(self, seconds: float) -> None:
        self.seconds = max(seconds, SECONDS_KEPT * self.seconds)

    def _token_mask(self, allowed: AllowedTokens) -> TokenMask:
        mask = TokenMask(*allowed)
        if self._on_cpu:
            mask.biases()  # here, not while the step waits for it
        return mask


def needs_logits(params: SamplingParams) -> bool:
    """Whether even tokens without a choice have to be drawn."""
    masked = params.banned_token_ids or params.bad_words or params.allowed_token_ids is not None
    return bool(masked) or params.logprobs is not None


def _is_only_one(allowed: AllowedTokens) -> bool:
    return int(np.bitwise_count(allowed.bits).sum()) == 1


def _is_only(token: int, allowed: AllowedTokens) -> bool:
    """Whether a token is the only one that is allowed."""
    return _is_allowed(token, allowed) and _is_only_one(allowed)


def _is_allowed(token: int, allowed: AllowedTokens) -> bool:
    return token < 8 * len(allowed.bits) and bool(allowed.bits[token >> 3] >> (token & 7) & 1)
