"""The tokens of each live request as an array, kept up to date from pass to pass."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.step import StepPlan
from twostroke.sampling.request_state import RequestState
from twostroke.spec_decode.texts import SEPARATOR, GrowingTokens, Tokens


class OwnTexts:
    """Prompt and answer of each live request, after what it may quote from besides."""

    def __init__(self) -> None:
        self._texts: dict[str, OwnText] = {}

    def update(self, plan: StepPlan) -> None:
        """Forget released requests, and begin anew with those that are new."""
        for request_id in plan.released:
            self._texts.pop(request_id, None)
        for request_id, new in plan.new_requests.items():
            self._texts[request_id] = OwnText(new.spec.prediction_token_ids)

    def take(self, request: RequestState, new_token_ids: Sequence[int]) -> OwnText:
        """The request's text up to and with what it has just drawn; valid until the next call."""
        text = self._texts[request.request_id]
        text.take(request.token_ids, new_token_ids)
        return text


class OwnText:
    """A request's own tokens, and what can be searched: those, and a prediction before them."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._tokens = GrowingTokens()
        self._num_own = 0
        # The last two tokens: where they never stood before, there is nothing to quote.
        self.before, self.last = SEPARATOR, SEPARATOR
        if prediction:
            self._tokens.append([*prediction, SEPARATOR])

    @property
    def searched(self) -> Tokens:
        return self._tokens.tokens

    @property
    def own(self) -> Tokens:
        return self.searched[len(self._tokens) - self._num_own :]

    def may_repeat(self, min_length: int) -> bool:
        """False if nothing before its end matches this many of its last tokens."""
        return self._tokens.may_hold(self.before, self.last, min_length)

    def take(self, known: Sequence[int], new: Sequence[int]) -> None:
        if self._num_own < len(known):
            self._append(known[self._num_own :])
        self._append(new[self._num_own - len(known) :])

    def _append(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        self._tokens.append(token_ids)
        self._num_own += len(token_ids)
        self.before = token_ids[-2] if len(token_ids) > 1 else self.last
        self.last = token_ids[-1]
