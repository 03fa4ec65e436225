"""Requests to send: prompts as token ids of exact length, output lengths, and times.

A function of the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from twostroke.bench.options import WorkloadOptions, require_total
from twostroke.core.errors import ConfigError
from twostroke.workloads.csv_trace import read_trace
from twostroke.workloads.lengths import SHAREGPT_INPUT, SHAREGPT_OUTPUT

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


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: when to send it (seconds after the start), its prompt and output length."""

    arrival: float
    prompt: list[int]
    output_len: int


def make_work_items(options: WorkloadOptions) -> list[WorkItem]:
    """The requests in order of arrival, the first at time 0.

    Raises:
        ConfigError: The trace cannot be read, or the prompts are too long together.
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
    prefix_tokens = len(timed) * options.random_prefix_len
    require_total(sum(length for _, length, _ in timed) + prefix_tokens)
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
    require_total(length * count)
    return [
        WorkItem(0.0, draw_prompt(random, length, options.vocab_size), like.output_len)
        for _ in range(count)
    ]
