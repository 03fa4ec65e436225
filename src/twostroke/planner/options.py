"""Options of the planner; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from twostroke.core.errors import ConfigError
from twostroke.core.files import is_file, is_folder
from twostroke.core.flags.declared import Count, check_fields, within
from twostroke.core.flags.values import require

MAX_USERS = 10_000_000
# Of one number of devices, formats, limits of requests: more would make a search of days.
MAX_VALUES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """What is to be served: --users, --rate, or a trace that has its own rate."""

    users: Annotated[int | None, within(1, MAX_USERS)] = None
    """People or programs that each wait for an answer, pause, and ask again."""
    think_time: Annotated[float, within(0, 1_000_000)] = 0.0
    """Seconds between an answer and the same user's next request, on average."""
    rate: Annotated[float | None, within(1e-6, 1_000_000)] = None
    """Requests per second, Poisson; a trace is stretched to it."""
    lengths: Literal["lognormal", "sharegpt-like", "azure-conv", "azure-code"] = "lognormal"
    """Their distribution: lognormal around --input and --output, or that of public chats and
    traces.
    """
    input: Annotated[int, within(1, 10_000_000)] = 1024
    """Tokens of a prompt, on average, --prefix included."""
    input_p95: Count | None = None
    """Their 95th percentile; by default twice the mean. The mean itself makes all equal."""
    output: Annotated[int, within(1, 10_000_000)] = 256
    """Tokens of an answer, on average."""
    output_p95: Count | None = None
    """Their 95th percentile; by default twice the mean."""
    prefix: Annotated[int, within(0, 10_000_000)] = 0
    """Tokens that all prompts begin with, such as a system prompt: they are cached."""
    trace_path: Path | None = None
    """Lengths and arrivals from a file: Azure's CSV, Mooncake's JSON lines, or a recording of
    `twostroke serve --record`.
    """
    peak: Annotated[float, within(1, 1000)] = 1.0
    """How many times the average the busiest time is: the plan is for that time."""
    growth: Annotated[float, within(0, 1000)] = 0.0
    """Share by which traffic is to grow: 0.5 is half as much again."""

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_volume()
        if self.think_time and self.users is None:
            raise ConfigError(
                "--think-time belongs to --users", hint="give --users, or leave it out"
            )
        if self.prefix >= self.input:
            raise ConfigError(
                f"--prefix {self.prefix} leaves nothing of --input {self.input}",
                hint="--input counts the whole prompt, the prefix included",
            )
        if self.trace_path is not None and self.lengths != "lognormal":
            raise ConfigError(
                "--trace-path and --lengths both say how long requests are",
                hint="leave out one of the two",
            )
        if self.trace_path is not None or self.lengths != "lognormal":
            self._check_lengths("--lengths" if self.trace_path is None else "--trace-path")

    def _check_lengths(self, source: str) -> None:
        defaults = TrafficOptions(rate=1.0)
        for name in ("input", "input_p95", "output", "output_p95", "prefix"):
            if getattr(self, name) != getattr(defaults, name):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"the lengths are those of {source}", hint=f"leave out {flag}")

    def _check_volume(self) -> None:
        if self.users is not None and self.rate is not None:
            raise ConfigError(
                "--users and --rate both say how much comes", hint="leave out one of the two"
            )
        if self.users is None and self.rate is None and self.trace_path is None:
            raise ConfigError(
                "no traffic is given", hint="give --users 500, --rate 20 or --trace-path FILE"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalOptions:
    """What a plan must reach. What is not given filters nothing out."""

    ttft: tuple[str, ...] = ()
    """Seconds to the first token: p95=0.5 (or p50=200ms, mean=0.3; repeat the flag for more)."""
    tpot: tuple[str, ...] = ()
    """Seconds for each further token, a request's mean: p95=0.04."""
    e2e: tuple[str, ...] = ()
    """Seconds to the last token: p95=10."""
    throughput: Annotated[float | None, within(1e-3, 10**9)] = None
    """Output tokens per second, of all replicas."""
    availability: Annotated[float | None, within(0.5, 0.9999999, "from 0.5 to below 1")] = None
    """Share of time in which enough replicas are up, such as 0.999: adds spare ones."""
    replica_availability: Annotated[float, within(0.5, 0.9999999, "from 0.5 to below 1")] = 0.99
    """Share of time in which one replica is up (a guess: your incidents say better)."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is searched, and within which limits."""

    gpus: str = "all"
    """Devices: names or sheets of your own, such as h100,l40s,my.toml."""
    tp: str = "1,2,4,8"
    """Devices that share each layer (tensor parallelism)."""
    pp: str = "1,2"
    """Groups of devices with layers of their own (pipeline parallelism)."""
    dp: str = "1,2,4,8"
    """Groups with requests of their own that share experts (data parallel attention); of models
    without experts, such groups are replicas.
    """
    ep: Literal["search", "no", "yes"] = "search"
    """Whole experts on each device instead of parts of each (expert parallelism)."""
    pools: Literal["search", "together", "apart"] = "search"
    """Replicas that do both, or some that compute prompts and some that write answers."""
    transfer_bandwidth: Annotated[
        float | None, within(0.001, 1e5, "from 0.001 to 100000 (GB/s)")
    ] = None
    """GB/s at which each device sends or gets KV blocks between such; default: the slower sheet's
    network.
    """
    weight_dtype: str = "auto,fp8"
    """Formats of the weights; auto is the checkpoint's. int4 and nvfp4 change answers more."""
    kv_cache_dtype: str = "auto,fp8"
    """Formats of the KV cache (auto, fp8, int8, int4)."""
    max_num_seqs: str = "16,32,64,128,256,512,1024"
    """Most requests that run at once, of a replica."""
    max_num_batched_tokens: str = "512,1024,2048,4096,8192,16384"
    """Token budgets of a step."""
    acceptance: Annotated[float | None, within(0.01, 0.99)] = None
    """Share of drafts that come true: with it, speculation is searched, too."""
    drafts: str = "2,4,6"
    """Draft tokens a step that are searched with --acceptance."""
    draft_model: str | None = None
    """Model that drafts; without one (n-gram) drafts cost nothing."""
    at_hand: str | None = None
    """Devices there are, and no others: h100=8,l40s=4."""
    budget: Annotated[float | None, within(1e-6, 10**9)] = None
    """Most US dollars an hour."""
    max_watts: Annotated[float | None, within(1, 10**10)] = None
    """Most watts, at the devices' rated power."""
    max_replicas: Annotated[int, within(1, 100_000)] = 1000
    """Most replicas of one plan."""
    max_model_len: Annotated[int | None, within(2, 2**24)] = None
    """Most tokens of one request; by default what the traffic's longest needs."""
    prices: Path | None = None
    """US dollars per device and hour (TOML, --write-prices makes one); by default the sheets'."""
    serving_stack: str | None = None
    """Software whose host time counts: vllm, sglang, trtllm."""
    efficiencies: str = "auto"
    """auto (fitted to the device), data-sheet, or a file of twostroke calibrate."""

    def __post_init__(self) -> None:
        check_fields(self)
        for flag, text in (("--tp", self.tp), ("--pp", self.pp), ("--dp", self.dp)):
            numbers(flag, text, 1, 10_000)
        numbers("--max-num-seqs", self.max_num_seqs, 1, 100_000)
        numbers("--max-num-batched-tokens", self.max_num_batched_tokens, 1, 10_000_000)
        numbers("--drafts", self.drafts, 1, 64)
        for flag, text in (
            ("--gpus", self.gpus),
            ("--weight-dtype", self.weight_dtype),
            ("--kv-cache-dtype", self.kv_cache_dtype),
        ):
            split_words(flag, text)
        if self.draft_model is not None and self.acceptance is None:
            raise ConfigError(
                "--draft-model needs --acceptance", hint="give the share of drafts that come true"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutputOptions:
    """How sure, and what is shown."""

    simulate: Annotated[int, within(0, 50)] = 3
    """The best plans that are also simulated, by the scheduler that serves; 0: formulas alone."""
    seeds: Annotated[int, within(1, 100)] = 3
    """Simulations of each, with other random lengths and arrivals."""
    top: Annotated[int, within(1, 1000)] = 5
    """Plans that are shown."""
    html: Path | None = None
    """Write a web page with plots here; it needs no network."""
    manifests: Path | None = None
    """Write values for Kubernetes and for Ray Serve into this folder."""
    write_prices: Path | None = None
    """Write the prices that were used, with their sources, here: to be edited for --prices."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("html", "write_prices"):
            path: Path | None = getattr(self, name)
            flag = "--" + name.replace("_", "-")
            if path is not None and (is_folder(path) or not is_folder(path.parent)):
                what = "is a folder" if is_folder(path) else "is in no folder that exists"
                raise ConfigError(f"{path} {what}", hint=f"give {flag} another file")
        if self.manifests is not None and is_file(self.manifests):
            raise ConfigError(
                f"{self.manifests} is a file", hint="give --manifests a folder, which is made"
            )


def split_words(flag: str, text: str) -> list[str]:
    """The items of a list with commas, each once. Raises ConfigError if there is none."""
    items = list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    require(0 < len(items) <= MAX_VALUES, flag, text, f"1 to {MAX_VALUES} values with commas")
    return items


def numbers(flag: str, text: str, least: int, most: int) -> list[int]:
    """Whole numbers in ascending order, each once. Raises ConfigError."""
    values = []
    for word in split_words(flag, text):
        ok = word.isdecimal() and word.isascii() and least <= int(word[:12]) <= most
        require(ok, flag, text, f"whole numbers from {least:,} to {most:,} with commas")
        values.append(int(word))
    return sorted(set(values))
