"""What an operator calls good: limits on latency, errors, memory and queue, read from text.

A target is written as on the command line: ``ttft=p95:0.3``, ``errors=0.001``,
``tpot=p50:0.025,key=alice,model=pilot``. A file of targets has one a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_text, reason

TargetMetric = Literal["ttft", "tpot", "e2el", "errors", "kv", "queue"]
METRICS: tuple[TargetMetric, ...] = get_args(TargetMetric)
UNITS: dict[TargetMetric, str] = {
    "ttft": "seconds",
    "tpot": "seconds",
    "e2el": "seconds",
    "errors": "share of requests",
    "kv": "share of blocks",
    "queue": "requests",
}
# No target is as many seconds: such a number was meant in milliseconds.
MILLISECONDS_FROM = {"ttft": 60.0, "tpot": 5.0, "e2el": 3600.0}
# States of the engine, which belong to no request and to no key.
STATES = frozenset({"kv", "queue"})
EVERY_KEY = "*"
DEFAULT_PERCENTILE = Fraction(95)
HINT = "write it as ttft=p95:0.3, tpot=p50:0.025, errors=0.001, kv=0.9 or queue=25"

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_LIMIT = re.compile(rf"(?:p(?P<percentile>{_NUMBER}):)?(?P<limit>{_NUMBER})")
_NAME = re.compile(r"[^,=\s]{1,256}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One limit, and how much may exceed it.

    Attributes:
        limit: In the metric's unit (``UNITS``); what is larger misses the target.
        allowed: Share of requests (of ``kv`` and ``queue``: of time) that may miss.
        percentile: What was asked for; none for ``errors``, whose limit is the share itself.
        key: Whose requests count: all, those of one key, or (``*``) those of each key apart.
        model: The model that it is for, as the server names it; empty for any.
    """

    metric: TargetMetric
    limit: float
    allowed: Fraction
    percentile: float | None = None
    key: str = ""
    model: str = ""

    @property
    def name(self) -> str:
        """Short and unique among targets of different meaning: ``ttft_p95``, ``errors``."""
        return (
            self.metric if self.percentile is None else f"{self.metric}_p{_plain(self.percentile)}"
        )

    @property
    def text(self) -> str:
        """The target written as ``--target`` takes it."""
        share = "" if self.percentile is None else f"p{_plain(self.percentile)}:"
        scope = "".join(
            f",{name}={value}"
            for name, value in (("key", self.key), ("model", self.model))
            if value
        )
        return f"{self.metric}={share}{_plain(self.limit)}{scope}"

    def for_key(self, key: str) -> Target:
        """This target, for the requests of one key only."""
        return replace(self, key=key)


def parse_target(text: str) -> Target:
    """A target from its text.

    Raises:
        ConfigError: It is malformed, out of range, or a state of the engine is to be that of a key.
    """
    first, *scopes = (part.strip() for part in text.split(","))
    metric, separator, rest = (part.strip() for part in first.partition("="))
    if not separator or metric not in METRICS:
        raise _refusal(text, f"{metric!r} is none of {', '.join(METRICS)}")
    match = _LIMIT.fullmatch(rest)
    if match is None:
        raise _refusal(text, f"{rest!r} is no limit")
    limit = float(match["limit"])
    if not 0 < limit < math.inf:
        raise _refusal(text, "the limit must be above 0")
    if limit >= MILLISECONDS_FROM.get(metric, math.inf):
        seconds = f"give seconds: {metric}={limit / 1e3:g}, if milliseconds were meant"
        raise ConfigError(f"--target {text} means {limit:g} seconds", hint=seconds)
    scope = _scope(text, scopes)
    if metric == "errors":
        if match["percentile"] is not None or limit >= 1:
            raise _refusal(text, "errors takes a share below 1 and no percentile")
        allowed, percentile = Fraction(match["limit"]), None
    else:
        share = Fraction(match["percentile"]) if match["percentile"] else DEFAULT_PERCENTILE
        if not 0 < share < 100:
            raise _refusal(text, "the percentile must lie between 0 and 100")
        allowed, percentile = 1 - share / 100, float(share)
    if metric in STATES and "key" in scope:
        raise _refusal(text, f"{metric} is a state of the engine, which no key has")
    return Target(
        metric=next(name for name in METRICS if name == metric),
        limit=limit,
        allowed=allowed,
        percentile=percentile,
        **scope,
    )


def parse_targets(texts: Iterable[str]) -> tuple[Target, ...]:
    """Several, each of which must be about something else.

    Raises:
        ConfigError: As ``parse_target``; or two are about the same.
    """
    targets: dict[tuple[str, str, str], Target] = {}
    for text in texts:
        target = parse_target(text)
        about = (target.name, target.key, target.model)
        if about in targets:
            raise _refusal(text, f"{targets[about].text} is about the same")
        targets[about] = target
    return tuple(targets.values())


def read_target_file(path: str) -> tuple[str, ...]:
    """The texts of a file's targets; empty lines and ``#`` comments are left out.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        lines = read_text(Path(path)).splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not UTF-8"
        hint = "give a file with one target a line, such as ttft=p95:0.3"
        raise ConfigError(f"cannot read --target-file {path}: {why}", hint=hint) from error
    texts = (line.partition("#")[0].strip() for line in lines)
    return tuple(text for text in texts if text)


def _plain(number: float) -> str:
    """All digits, without an exponent."""
    return f"{Decimal(repr(number)):f}".removesuffix(".0")


def _scope(text: str, parts: Iterable[str]) -> dict[str, str]:
    scope: dict[str, str] = {}
    for part in parts:
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in ("key", "model") or name in scope or not _NAME.fullmatch(value):
            raise _refusal(text, f"{part!r} is neither key=NAME nor model=NAME")
        scope[name] = value
    return scope


def _refusal(text: str, why: str) -> ConfigError:
    return ConfigError(f"--target {text}: {why}", hint=HINT)
