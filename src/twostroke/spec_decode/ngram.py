"""Drafts from the text itself: what followed the last few tokens when they came before.

Saxena 2023 ("prompt lookup decoding"); Yang et al. 2023, "Inference with Reference".
"""

from __future__ import annotations

from twostroke.core.step import StepPlan
from twostroke.spec_decode.base import FinishedPass
from twostroke.spec_decode.own_text import OwnTexts
from twostroke.spec_decode.texts import SEPARATOR, Tokens, find_end


class NgramProposer:
    """Copies what followed the latest of the longest matches in prompt, answer and prediction.

    A ``Proposer``. Keeps four bytes for each token of a live request.

    Args:
        min_match: Fewest last tokens that must have come before.
        max_match: Most that are compared.
    """

    reads_all_rows = False

    def __init__(self, min_match: int = 2, max_match: int = 5) -> None:
        self._min_match, self._max_match = min_match, max_match
        self._texts = OwnTexts()

    def update(self, plan: StepPlan) -> None:
        self._texts.update(plan)

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        drafts = {}
        for request, new_token_ids, most, _ in step.continuations():
            text = self._texts.take(request, new_token_ids)
            if not text.may_repeat(self._min_match):
                continue
            places = find_end(text.searched[:-1], text.own[-self._max_match :], self._min_match)
            if places is not None:
                drafts[request.request_id] = copy_on(text.searched, int(places.ends[-1]), most)
        return drafts


def copy_on(tokens: Tokens, place: int, count: int) -> list[int]:
    """Up to ``count`` tokens after ``place``, going round where the text itself ends."""
    period = len(tokens) - 1 - place
    copied: list[int] = tokens[place + 1 : place + 1 + count].tolist()
    if SEPARATOR in copied:
        return copied[: copied.index(SEPARATOR)]
    while len(copied) < count:
        copied.append(copied[len(copied) - period])
    return copied
