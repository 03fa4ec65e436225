"""Looking at the prefix cache of a running engine, pinning prefixes in it, and emptying it."""

from __future__ import annotations

import math
from collections.abc import Callable

from twostroke.core.errors import InvalidRequestError
from twostroke.engine.cache_orders import (
    CacheOrder,
    CacheReport,
    ClearCache,
    PinPrefix,
    ShowCache,
    TierReport,
)
from twostroke.engine.executor import ExecutorInfo
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.pinned_prefix import pin_prefix
from twostroke.kv_cache.prefix_book import MEMORY, OpenSurvey, PrefixBook
from twostroke.kv_cache.prefix_survey import PrefixSurvey
from twostroke.kv_cache.tier_directory import TierDirectory
from twostroke.observability.kv_events import KVEventLog

# Blocks copied at once: some 3 ms, in which no step runs.
SURVEY_PIECE = 1000


class SurveyedCache:
    """The cache's report without its tree, and what that is made of."""

    def __init__(self, bare: CacheReport, survey: PrefixSurvey) -> None:
        self._report = bare
        self._survey = survey

    def report(self) -> CacheReport:
        """The report with the tree, from any thread."""
        self._report.prefixes, self._report.left_out_blocks = self._survey.tree()
        return self._report


class CacheAdmin:
    """Carries orders out between two steps. The engine's thread calls everything.

    Attributes:
        events: What the cache stores and removes, if that is published.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        directory: TierDirectory,
        info: ExecutorInfo,
        clock: Callable[[], float],
        *,
        publishes: bool = False,
    ) -> None:
        self._kv, self._directory = kv, directory
        self._info, self._clock = info, clock
        self._book = PrefixBook(
            self._kv.pool, self._directory, info.block_size, info.kv_groups.count
        )
        self.events: KVEventLog | None = None
        if self._kv.caches_prefixes:
            self._kv.watch(self._book)
            if publishes:
                medium = "CPU" if info.device == "cpu" else "GPU"
                self.events = KVEventLog(info.block_size, medium, clock, info.kv_groups.count)
                self._kv.watch(self.events)

    def carry_out(self, order: CacheOrder) -> CacheReport:
        """Do it, and say how the cache is then.

        To show a large cache takes long: ``begin_survey`` does it piece by piece.

        Raises:
            InvalidRequestError: The prefix cache is off, too much would be pinned, or no recurrent
                state of it is kept.
        """
        self._check_on()
        self.expire_pins()
        match order:
            case ShowCache():
                survey = self.begin_survey(order)
                while (surveyed := self.advance(survey)) is None:
                    pass
                report = surveyed.report()
            case PinPrefix():
                report = self._pin(order)
            case ClearCache():
                num_cleared = self._kv.clear()
                if self.events is not None:
                    self.events.flush()
                report = self._report()
                report.cleared_blocks = num_cleared
        return report

    def begin_survey(self, order: ShowCache) -> OpenSurvey:
        """A copy of what the cache holds, in pieces between which steps may run.

        Raises:
            InvalidRequestError: The prefix cache is off.
        """
        self._check_on()
        self.expire_pins()
        return self._book.begin_survey(order.tenant, self._clock())

    def advance(self, survey: OpenSurvey) -> SurveyedCache | None:
        """Copy one piece more. Returns the whole once it is there."""
        finished = survey.advance(SURVEY_PIECE)
        return None if finished is None else SurveyedCache(self._report(), finished)

    def _check_on(self) -> None:
        if not self._kv.caches_prefixes:
            raise InvalidRequestError(
                "this server keeps no prefixes",
                hint="start it without --no-enable-prefix-caching",
            )

    def expire_pins(self) -> None:
        """End the pins whose time is over."""
        if self._kv.pool.pinned:
            self._kv.pins.expire(self._clock())

    def end_pins(self) -> None:
        """End all pins, whatever their time."""
        self._kv.pins.expire(math.inf)

    def _pin(self, order: PinPrefix) -> CacheReport:
        until = self._clock() + order.seconds
        keys = pin_prefix(self._kv, order.token_ids, order.cache_salt, until, order.tenant)
        if keys is None:
            raise InvalidRequestError(
                "the prefix is too long: at most half of the KV cache can be pinned, and by one key"
                " as much as it leaves to others",
                hint="pin less, wait until other pins end, or start the server with a larger"
                " --kv-cache-memory",
            )
        if not keys and self._kv.states.exist and len(order.token_ids) >= self._kv.block_size:
            raise InvalidRequestError(
                "nothing of the prefix is kept: there was no slot free for a state of the model's"
                " recurrent layers",
                hint="try again, or start the server with a larger --kv-cache-memory",
            )
        report = self._report()
        if keys and isinstance(keys[-1], bytes):
            report.prefix_id = keys[-1].hex()
        report.pinned_tokens = len(keys) * self._kv.block_size
        return report

    def _report(self) -> CacheReport:
        size, block_bytes = self._kv.block_size, self._info.block_bytes
        pool = self._kv.pool
        tiers = [
            TierReport(
                name=MEMORY,
                blocks=pool.num_cached,
                max_blocks=pool.num_blocks,
                bytes=pool.num_cached * block_bytes,
            )
        ]
        for name, tier in self._directory.tiers.items():
            count = self._directory.num_blocks(name)
            tiers.append(
                TierReport(
                    name=name,
                    blocks=count,
                    max_blocks=tier.num_blocks,
                    bytes=count * tier.block_bytes,
                )
            )
        return CacheReport(block_size=size, tiers=tiers)
