"""Surveys of the prefix cache for those who ask for them: one at a time."""

from __future__ import annotations

from twostroke.core.errors import TwostrokeError
from twostroke.engine.cache_admin import CacheAdmin, SurveyedCache
from twostroke.engine.cache_orders import ShowCache
from twostroke.kv_cache.prefix_book import OpenSurvey


class CacheSurveys:
    """Makes surveys piece by piece. The engine's thread calls everything.

    All who ask for the same while a survey is made share the next one: however many ask, there are
    no more copies than tenants.
    """

    def __init__(self, cache: CacheAdmin) -> None:
        self._cache = cache
        self._waiting: dict[ShowCache, list[int]] = {}  # the first order comes first
        self._begun: tuple[list[int], OpenSurvey] | None = None

    def __bool__(self) -> bool:
        """Whether there is a piece to copy."""
        return bool(self._waiting or self._begun)

    def ask(self, number: int, order: ShowCache) -> None:
        """Queue a question.

        Args:
            number: Names the answer.
        """
        self._waiting.setdefault(order, []).append(number)

    def advance(self) -> tuple[list[int], SurveyedCache | TwostrokeError] | None:
        """Copy one piece, if there is one. Returns whose it is and the answer, once it is whole."""
        if self._begun is None:
            if not self._waiting:
                return None
            order = next(iter(self._waiting))
            numbers = self._waiting.pop(order)
            try:
                self._begun = numbers, self._cache.begin_survey(order)
            except TwostrokeError as error:
                return numbers, error
        numbers, survey = self._begun
        if (surveyed := self._cache.advance(survey)) is None:
            return None
        self._begun = None
        return numbers, surveyed
