"""Drafts from the text itself and from earlier answers, weighed by how often they were right.

SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) walks a suffix tree over both: from the node
of the longest match to the child that was passed most often. Here the tree is not built. The
places that match are found by search, and the walk counts what comes next at these, which gives the
same counts from an array of bounded size.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from twostroke.core.step import StepPlan
from twostroke.spec_decode.base import FinishedPass
from twostroke.spec_decode.own_text import OwnText, OwnTexts
from twostroke.spec_decode.texts import SEPARATOR, GrowingTokens, Places, Tokens, find_end

# Groups of requests whose answers are kept; the one that was idle longest is forgotten.
MAX_GROUPS = 64


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """How far to look and to guess.

    Attributes:
        max_match: Most last tokens that are compared.
        max_factor: Drafts for each token of the match, at most.
        min_probability: Drafts that are less likely, by the counts, are not made.
        max_cached_tokens: How many tokens of earlier answers each group keeps.
    """

    max_match: int = 24
    max_factor: float = 1.0
    min_probability: float = 0.1
    max_cached_tokens: int = 2**16


@dataclass(slots=True)
class _Live:
    group: tuple[str, ...]
    answer: list[int]


class SuffixProposer:
    """Goes on as requests of the same group did, or as the request itself did before.

    A ``Proposer``. Requests are grouped by tenant, cache salt and adapter: no draft, and so no
    time that can be measured, depends on the answers of another group.
    """

    reads_all_rows = False

    def __init__(self, options: SuffixOptions | None = None) -> None:
        self._options = options or SuffixOptions()
        self._texts = OwnTexts()
        self._live: dict[str, _Live] = {}
        self._answers: OrderedDict[tuple[str, ...], GrowingTokens] = OrderedDict()

    def update(self, plan: StepPlan) -> None:
        for request_id in plan.released:
            self._keep(self._live.pop(request_id, None))
        for request_id, new in plan.new_requests.items():
            group = new.spec.tenant, new.spec.cache_salt, new.spec.adapter
            self._live[request_id] = _Live(group, [])
        self._texts.update(plan)

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        for request_id, token_ids in step.token_ids.items():
            self._live[request_id].answer += token_ids
        drafts = {}
        for request, new_token_ids, most, _ in step.continuations():
            text = self._texts.take(request, new_token_ids)
            earlier = self._answers.get(self._live[request.request_id].group)
            best = self._best(text, earlier, most)
            if best:
                drafts[request.request_id] = best
        return drafts

    def _best(self, text: OwnText, earlier: GrowingTokens | None, most: int) -> list[int]:
        """The drafts of which most are expected to be right."""
        guesses: list[tuple[float, list[int]]] = [(0.0, [])]
        end = text.own[-self._options.max_match :]
        if text.may_repeat(1):
            guesses.append(self._guess(text.searched, text.searched[:-1], end, most))
        if earlier is not None and earlier.may_hold(text.before, text.last, 1):
            guesses.append(self._guess(earlier.tokens, earlier.tokens, end, most))
        return max(guesses, key=lambda guess: guess[0])[1]

    def _guess(
        self, tokens: Tokens, searched: Tokens, end: Tokens, most: int
    ) -> tuple[float, list[int]]:
        """How many of its drafts are expected to be right, and the drafts."""
        options = self._options
        places = find_end(searched, end, 1)
        if places is None:
            return 0.0, []
        most = min(most, max(1, int(places.length * options.max_factor)))
        return walk(tokens, places, most, options.min_probability)

    def _keep(self, live: _Live | None) -> None:
        """Add the answer of a request that has ended to those of its group."""
        if live is None or not live.answer:
            return
        answers = self._answers.pop(live.group, None)
        if answers is None:
            answers = GrowingTokens(self._options.max_cached_tokens)
            while len(self._answers) >= MAX_GROUPS:
                self._answers.popitem(last=False)
        answers.append([*live.answer, SEPARATOR])
        self._answers[live.group] = answers


def walk(
    tokens: Tokens, places: Places, most: int, min_probability: float
) -> tuple[float, list[int]]:
    """Follow the most frequent next token, again and again, from matching places on.

    Among equals the lowest token is taken.

    Returns:
        The expected number of right drafts (the sum of their probabilities), and the drafts.
    """
    ends, drafts, probability, expected = places.ends, list[int](), 1.0, 0.0
    while len(drafts) < most:
        ends = ends[ends + 1 < len(tokens)] + 1
        if not len(ends):
            break
        following = tokens[ends]
        if len(ends) == 1:  # most often so, and numpy takes its time to count
            token = int(following[0])
            if token == SEPARATOR:
                break
            drafts.append(token)
            expected += probability
            continue
        values, counts = np.unique(following, return_counts=True)
        best = int(counts.argmax())
        probability *= counts[best] / len(ends)
        if values[best] == SEPARATOR or probability < min_probability:
            break
        drafts.append(int(values[best]))
        expected += probability
        ends = ends[following == values[best]]
    return expected, drafts
