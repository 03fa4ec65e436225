"""Requests to send: prompts as token ids of exact length, output lengths, and times.

A function of the seed alone.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from statistics import NormalDist

from twostroke.bench.options import WorkloadOptions
from twostroke.core.errors import ConfigError

# Ids below are special tokens or padding in many vocabularies.
FIRST_TOKEN = 10
COMMON_WORDS = (
    "the of and to in is that it for was on are as with they at be this from have or by one had not"
    " but what all were when we there can an your which their said if do will each about how up out"
    " them then she many some so these would other into has more her two like him see time could no"
    " make than first been its who now people my made over did down only way find use may water"
    " long little very after words called just where most know"
)
WORDS = tuple(COMMON_WORDS.split())
TRACE_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


@dataclass(frozen=True, slots=True)
class LognormalLength:
    """Long-tailed lengths from 1 to ``longest``, cut there; ``mean`` is that before the cut."""

    mean: float
    sigma: float
    longest: int
    mu: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", math.log(self.mean) - self.sigma**2 / 2)

    @classmethod
    def with_mean_after_cut(cls, mean: float, sigma: float, longest: int) -> LognormalLength:
        """Lengths whose mean is ``mean`` with the cut; found by bisection."""
        low, high = mean, mean * 1000
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if cls(middle, sigma, longest).mean_after_cut() < mean
                else (low, middle)
            )
        return cls(low, sigma, longest)

    def mean_after_cut(self) -> float:
        """Mean of min(X, longest), X lognormal: what is below the cut, the cut for the rest."""
        normal, cut = NormalDist(), (math.log(self.longest) - self.mu) / self.sigma
        return self.mean * normal.cdf(cut - self.sigma) + self.longest * (1 - normal.cdf(cut))

    def draw(self, random: Random) -> int:
        length = round(random.lognormvariate(self.mu, self.sigma))
        return self.longest if length > self.longest else length or 1


# Means of ShareGPT: Kwon et al., PagedAttention, SOSP 2023 (arXiv:2309.06180), figure 11a. Spread
# and ends are ours.
SHAREGPT_INPUT = LognormalLength.with_mean_after_cut(161.31, 1.2, 1024)
SHAREGPT_OUTPUT = LognormalLength.with_mean_after_cut(337.99, 0.9, 1024)


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: when to send it (seconds after the start), its prompt and output length."""

    arrival: float
    prompt: list[int]
    output_len: int


def make_workload(options: WorkloadOptions) -> list[WorkItem]:
    """The requests in order of arrival, the first at time 0.

    Raises:
        ConfigError: The trace cannot be read.
    """
    # One generator each, so that another rate leaves the prompts as they are.
    lengths, tokens, gaps = (
        Random(f"{options.seed} {use}") for use in ("lengths", "tokens", "gaps")
    )
    if options.dataset_name == "trace":
        assert options.trace_path is not None
        rows = list(islice(read_trace(options.trace_path), options.num_prompts))
        if not rows:
            raise ConfigError(
                f"{options.trace_path} holds no requests", hint="give a trace with at least one row"
            )
        begin = min(arrival for arrival, _, _ in rows)
        timed = sorted((arrival - begin, prompt, output) for arrival, prompt, output in rows)
    else:
        pairs = [_draw_lengths(options, lengths) for _ in range(options.num_prompts)]
        timed = [(arrival, *pair) for arrival, pair in zip(_arrivals(options, gaps), pairs)]
    prefix = draw_prompt(tokens, options.random_prefix_len, options.vocab_size)
    return [
        WorkItem(arrival, prefix + draw_prompt(tokens, input_len, options.vocab_size), output_len)
        for arrival, input_len, output_len in timed
    ]


def draw_prompt(random: Random, length: int, vocab_size: int) -> list[int]:
    """Token ids that any vocabulary of at least ``vocab_size`` has."""
    return [random.randrange(FIRST_TOKEN, vocab_size) for _ in range(length)]


def words(prompt: Sequence[int]) -> str:
    """A word for each token id, for routes that take text: one token in most vocabularies."""
    return " ".join(WORDS[token % len(WORDS)] for token in prompt)


def read_trace(path: Path) -> Iterator[tuple[float, int, int]]:
    """Arrival in seconds, prompt length and output length of each row of a CSV file with a header.

    Raises:
        ConfigError: The file cannot be read, lacks a column, or holds what is no number.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if missing := [name for name in TRACE_COLUMNS if name not in header]:
                raise ConfigError(
                    f"{path} has no column {missing[0]}",
                    hint=f"it needs {', '.join(TRACE_COLUMNS)}",
                )
            places = [header.index(name) for name in TRACE_COLUMNS]
            for row in reader:
                if row:
                    yield _trace_row(
                        path,
                        reader.line_num,
                        [row[column] if column < len(row) else "" for column in places],
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"cannot read the trace {path}: {error}", hint="give another --trace-path"
        ) from error


def _trace_row(path: Path, line: int, row: list[str]) -> tuple[float, int, int]:
    arrived_at, prefill, decode = row
    try:
        arrival, lengths = float(arrived_at), (int(prefill), int(decode))
        if not math.isfinite(arrival) or min(lengths) < 1:
            raise ValueError("times are finite, lengths at least 1")
    except ValueError as error:
        raise ConfigError(
            f"{path}, line {line}: {error}", hint="mend or remove the line"
        ) from error
    return arrival, *lengths


def _draw_lengths(options: WorkloadOptions, random: Random) -> tuple[int, int]:
    if options.dataset_name == "sharegpt-like":
        return SHAREGPT_INPUT.draw(random), SHAREGPT_OUTPUT.draw(random)
    ratio = options.random_range_ratio

    def around(length: int) -> int:
        return random.randint(
            max(math.floor(length * (1 - ratio)), 1), math.ceil(length * (1 + ratio))
        )

    return around(options.random_input_len), around(options.random_output_len)


def _arrivals(options: WorkloadOptions, random: Random) -> Iterator[float]:
    """Endless; gaps are gamma distributed with mean ``1 / request_rate``."""
    now = 0.0
    while True:
        yield now
        if options.request_rate != math.inf:
            now += random.gammavariate(
                options.burstiness, 1 / (options.request_rate * options.burstiness)
            )


def make_warmups(options: WorkloadOptions, like: WorkItem, count: int) -> list[WorkItem]:
    """Requests as long as ``like`` of other tokens, which leave no prefix for the run."""
    random = Random(f"{options.seed} warm-up")
    length = len(like.prompt)
    return [
        WorkItem(0.0, draw_prompt(random, length, options.vocab_size), like.output_len)
        for _ in range(count)
    ]
