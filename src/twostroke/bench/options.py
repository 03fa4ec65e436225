"""Options of the benchmarks, from whose fields the flags come. Names as in `vllm bench`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from twostroke.core.errors import ConfigError
from twostroke.core.files import is_folder
from twostroke.core.flags.declared import Must, check_fields, within
from twostroke.core.flags.values import require
from twostroke.observability.latency import TARGETS

DatasetName = Literal["random", "sharegpt-like", "trace"]
Backend = Literal["openai", "openai-chat"]
# Larger numbers would take all memory or time before the first request is sent.
MAX_COUNT = 10_000_000
# Of all prompts of a run, which are made beforehand and kept: less than a gigabyte.
MAX_PROMPT_TOKENS = 100_000_000
Count = Annotated[int, within(1, MAX_COUNT)]
CountOrNone = Annotated[int, within(0, MAX_COUNT)]


def require_total(tokens: int) -> None:
    """Raise ``ConfigError`` if all prompts together have too many tokens."""
    if tokens > MAX_PROMPT_TOKENS:
        raise ConfigError(
            f"the prompts have {tokens:,} tokens together, and at most {MAX_PROMPT_TOKENS:,} are"
            " made for a run",
            hint="send fewer or shorter prompts",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Which requests are sent, and when."""

    dataset_name: DatasetName = "random"
    """random: lengths as given; sharegpt-like: those of chats (lognormal); trace: lengths and times
    of --trace-path.
    """
    num_prompts: Count = 1000
    """Requests to send; of a trace, its first ones."""
    random_input_len: Count = 1024
    """Tokens of a random prompt."""
    random_output_len: Count = 128
    """Tokens of the answer to a random prompt."""
    random_range_ratio: Annotated[
        float, Must("from 0 to below 1", lambda ratio: 0 <= ratio < 1)
    ] = 0.0
    """Random lengths spread evenly from (1 - this) to (1 + this) times the given ones."""
    random_prefix_len: CountOrNone = 0
    """Tokens that all random prompts begin with, before their own."""
    trace_path: Path | None = None
    """CSV with the columns arrived_at (seconds), num_prefill_tokens, num_decode_tokens."""
    vocab_size: Annotated[int, within(20, MAX_COUNT)] = 256
    """Prompts are token ids from 10 to below this; the default suits any tokenizer."""
    request_rate: Annotated[float, Must("above 0", lambda rate: rate > 0)] = inf
    """Requests per second; inf sends all at once. A trace has its own times."""
    burstiness: Annotated[float, Must("a number above 0", lambda shape: 0 < shape < inf)] = 1.0
    """Shape of the gamma distribution of the gaps: 1 is Poisson, less comes in bursts, more is
    evener.
    """
    seed: int = 0
    """Same seed, same prompts and times. A server that caches prefixes knows them the second
    time.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.trace_path is not None) != (self.dataset_name == "trace"):
            hint = "give both: --dataset-name trace --trace-path FILE"
            raise ConfigError("--trace-path belongs to --dataset-name trace", hint=hint)
        if self.dataset_name == "trace" and self.request_rate != inf:
            raise ConfigError("a trace has its own arrival times", hint="leave --request-rate out")
        if self.burstiness != 1 and self.request_rate == inf:
            raise ConfigError(
                "--burstiness needs a finite --request-rate", hint="give the rate, or leave it out"
            )
        given = [
            f.name
            for f in fields(self)
            if f.name.startswith("random_") and getattr(self, f.name) != f.default
        ]
        if self.dataset_name != "random" and given:
            flag = "--" + given[0].replace("_", "-")
            raise ConfigError(f"{flag} belongs to --dataset-name random", hint="leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBenchOptions:
    """Which server is measured, how hard it is pressed, and what is reported."""

    base_url: str = "http://127.0.0.1:8000"
    """The server, with or without /v1; the key comes from OPENAI_API_KEY."""
    backend: Backend = "openai"
    """openai: /v1/completions, prompts of exact length; openai-chat: /v1/chat/completions, that
    many words each.
    """
    model: Annotated[str | None, Must("a printable name", str.isprintable)] = None
    """Name of the model there; by default the first that the server lists."""
    max_concurrency: Count | None = None
    """Most requests under way at once; those that are due wait, and their time starts when they are
    sent.
    """
    ignore_eos: bool = False
    """Ask for the full output length, whatever the model says (an extension of vLLM and
    twostroke).
    """
    temperature: Annotated[float, Must("0 or more", lambda value: 0 <= value < inf)] = 0.0
    """0 is greedy."""
    stall_timeout: Annotated[float, Must("above 0", lambda seconds: 0 < seconds <= 1e6)] = 600.0
    """Seconds without a token after which a request has failed."""
    num_warmups: CountOrNone = 1
    """Requests before the measurement, which also show that the server answers."""
    goodput: tuple[str, ...] = ()
    """Targets in milliseconds that a good request meets, such as ttft:500 tpot:50 e2el:5000."""
    metric_percentiles: str = "50,90,95,99"
    """Percentiles of the latencies, whole numbers with commas between."""
    output_json: Path | None = None
    """Write all results here, those of every single request included."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.goodput_targets()
        self.percentiles()
        if self.output_json is not None and not is_folder(self.output_json.parent):
            raise ConfigError(
                f"{self.output_json.parent} is no folder",
                hint="make it, or give another --output-json",
            )

    def percentiles(self) -> tuple[int, ...]:
        """The percentiles as numbers, in ascending order."""
        parts = [part.strip() for part in self.metric_percentiles.split(",")]
        ok = all(
            part.isdecimal() and part.isascii() and len(part) < 3 and int(part) for part in parts
        )
        require(
            ok,
            "--metric-percentiles",
            self.metric_percentiles,
            "whole numbers from 1 to 99, such as 50,90,99",
        )
        return tuple(sorted(set(map(int, parts))))

    def goodput_targets(self) -> dict[str, float]:
        """Metric (``ttft``, ``tpot``, ``e2el``) to the most seconds of a good request."""
        targets: dict[str, float] = {}
        for text in self.goodput:
            name, _, limit = text.partition(":")
            try:
                targets[name] = float(limit) / 1000
            except ValueError:
                targets[name] = -1
            hint = "such as --goodput ttft:500 tpot:50"
            if name not in TARGETS or not 0 < targets[name] < inf:
                raise ConfigError(
                    f"--goodput {text!r} is not ttft:MS, tpot:MS or e2el:MS", hint=hint
                )
        return targets


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineBenchOptions:
    """What runs through the engine without HTTP; random prompts, by the engine's seed."""

    num_prompts: Count = 64
    """Requests to run."""
    batch_size: Count | None = None
    """Most requests in the engine at once; by default all."""
    input_len: Count = 256
    """Tokens of a prompt."""
    output_len: Count = 64
    """Tokens of an answer; the model's end token is ignored."""
    profile: bool = False
    """Print where the time of a step goes, by component, making each output an event as a server
    does.
    """
    output_json: Path | None = None
    """Write the results here."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_total(self.num_prompts * self.input_len)
        if self.output_json is not None and not is_folder(self.output_json.parent):
            raise ConfigError(
                f"{self.output_json.parent} is no folder",
                hint="make it, or give another --output-json",
            )
