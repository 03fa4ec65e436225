"""Options of the benchmarks, from whose fields the flags come. Names as in `vllm bench`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Literal

from twostroke.core.errors import ConfigError
from twostroke.core.files import is_folder
from twostroke.core.flags.values import require
from twostroke.observability.latency import TARGETS

DatasetName = Literal["random", "sharegpt-like", "trace"]
Backend = Literal["openai", "openai-chat"]
# Larger numbers would take all memory or time before the first request is sent.
MAX_COUNT = 10_000_000
# Of all prompts of a run, which are made beforehand and kept: less than a gigabyte.
MAX_PROMPT_TOKENS = 100_000_000


def require_count(name: str, value: int, lowest: int = 1) -> None:
    """Raise ``ConfigError`` unless the field's value is from ``lowest`` to ``MAX_COUNT``."""
    flag = "--" + name.replace("_", "-")
    require(lowest <= value <= MAX_COUNT, flag, value, f"from {lowest} to {MAX_COUNT:,}")


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
    num_prompts: int = 1000
    """Requests to send; of a trace, its first ones."""
    random_input_len: int = 1024
    """Tokens of a random prompt."""
    random_output_len: int = 128
    """Tokens of the answer to a random prompt."""
    random_range_ratio: float = 0.0
    """Random lengths spread evenly from (1 - this) to (1 + this) times the given ones."""
    random_prefix_len: int = 0
    """Tokens that all random prompts begin with, before their own."""
    trace_path: Path | None = None
    """CSV with the columns arrived_at (seconds), num_prefill_tokens, num_decode_tokens."""
    vocab_size: int = 256
    """Prompts are token ids from 10 to below this; the default suits any tokenizer."""
    request_rate: float = inf
    """Requests per second; inf sends all at once. A trace has its own times."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps: 1 is Poisson, less comes in bursts, more is
    evener.
    """
    seed: int = 0
    """Same seed, same prompts and times. A server that caches prefixes knows them the second
    time.
    """

    def __post_init__(self) -> None:
        for name in ("num_prompts", "random_input_len", "random_output_len"):
            require_count(name, getattr(self, name))
        require(
            0 <= self.random_range_ratio < 1,
            "--random-range-ratio",
            self.random_range_ratio,
            "from 0 to below 1",
        )
        require_count("random_prefix_len", self.random_prefix_len, 0)
        require_count("vocab_size", self.vocab_size, 20)
        require(self.request_rate > 0, "--request-rate", self.request_rate, "above 0")
        require(0 < self.burstiness < inf, "--burstiness", self.burstiness, "a number above 0")
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
    model: str | None = None
    """Name of the model there; by default the first that the server lists."""
    max_concurrency: int | None = None
    """Most requests under way at once; those that are due wait, and their time starts when they are
    sent.
    """
    ignore_eos: bool = False
    """Ask for the full output length, whatever the model says (an extension of vLLM and
    twostroke).
    """
    temperature: float = 0.0
    """0 is greedy."""
    stall_timeout: float = 600.0
    """Seconds without a token after which a request has failed."""
    num_warmups: int = 1
    """Requests before the measurement, which also show that the server answers."""
    goodput: tuple[str, ...] = ()
    """Targets in milliseconds that a good request meets, such as ttft:500 tpot:50 e2el:5000."""
    metric_percentiles: str = "50,90,95,99"
    """Percentiles of the latencies, whole numbers with commas between."""
    output_json: Path | None = None
    """Write all results here, those of every single request included."""

    def __post_init__(self) -> None:
        if self.max_concurrency is not None:
            require_count("max_concurrency", self.max_concurrency)
        printable = self.model is None or self.model.isprintable()
        require(printable, "--model", self.model, "a printable name")
        require(0 <= self.temperature < inf, "--temperature", self.temperature, "0 or more")
        require(0 < self.stall_timeout <= 1e6, "--stall-timeout", self.stall_timeout, "above 0")
        require_count("num_warmups", self.num_warmups, 0)
        self.goodput_targets()
        self.percentiles()
        if self.output_json is not None and not is_folder(self.output_json.parent):
            raise ConfigError(
                f"{self.output_json.parent} is no folder",
                hint="make it, or give another --output-json",
            )

    def percentiles(self) -> tuple[int, ...]:
        """As numbers, ascending."""
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

    num_prompts: int = 64
    """Requests to run."""
    batch_size: int | None = None
    """Most requests in the engine at once; by default all."""
    input_len: int = 256
    """Tokens of a prompt."""
    output_len: int = 64
    """Tokens of an answer; the model's end token is ignored."""
    profile: bool = False
    """Print where the time of a step goes, by component, making each output an event as a server
    does.
    """
    output_json: Path | None = None
    """Write the results here."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "batch_size", "input_len", "output_len"):
            value = getattr(self, name)
            if value is not None:
                require_count(name, value)
        require_total(self.num_prompts * self.input_len)
        if self.output_json is not None and not is_folder(self.output_json.parent):
            raise ConfigError(
                f"{self.output_json.parent} is no folder",
                hint="make it, or give another --output-json",
            )
