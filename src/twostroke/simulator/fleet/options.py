"""What can be asked of a simulated deployment; the command line derives its flags from these
fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal, get_args

from twostroke.bench.options import require
from twostroke.core.errors import ConfigError
from twostroke.simulator.cost.efficiencies import stack_names

RouterName = Literal["round-robin", "least-loaded", "prefix-affinity"]
MAX_DEVICES = 10_000
# Tokens of a request; a KV cache has a block for each at most.
LONGEST = 2**24
TARGETS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """Which model runs in which precision on which hardware."""

    model: str = "llama-3.1-8b"
    """A public model by name, a config.json or its folder, pilot, or a Hub id that was downloaded
    before.
    """
    gpu: str = "h100"
    """Hardware by name (a wrong one lists them), or a sheet of your own (.toml)."""
    tp: int = 1
    """Devices that share the model (tensor parallelism)."""
    replicas: int = 1
    """Engines, each on devices of its own."""
    router: RouterName = "round-robin"
    """How requests are dealt out to replicas; prefix-affinity: to where the longest known beginning
    went.
    """
    weight_dtype: str = "auto"
    """Format of the weights (bf16, fp8, int8, int4, nvfp4 ...); auto takes the checkpoint's."""
    kv_cache_dtype: str = "auto"
    """Format of the KV cache (bf16, fp8)."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; by default the model's context length, as far as
    memory goes.
    """
    speculative_tokens: int = 0
    """Tokens drafted for each request and step."""
    acceptance: float = 0.7
    """Probability that a draft is accepted, given that those before it were."""
    speculative_model: str | None = None
    """Model that drafts; without one (n-gram) drafts cost nothing."""
    efficiencies: str = "auto"
    """Shares of the data sheet: auto (fitted where it was measured), data-sheet (as if not), a file
    of calibrate's.
    """
    kernel_tables: Path | None = None
    """Measured kernels of this hardware (JSON), which correct the coefficients where they cover a
    shape.
    """
    serving_stack: str | None = None
    """Serving software whose time on the host counts: vllm, sglang or trtllm; by default vllm's, on
    a CPU our own.
    """
    price_per_hour: float | None = None
    """US dollars for one device; by default the sheet's."""

    def __post_init__(self) -> None:
        for name in ("tp", "replicas"):
            require(
                1 <= getattr(self, name) <= MAX_DEVICES,
                f"--{name}",
                getattr(self, name),
                f"from 1 to {MAX_DEVICES:,}",
            )
        known = stack_names()
        ok = self.serving_stack is None or self.serving_stack in known
        require(ok, "--serving-stack", self.serving_stack, "one of " + ", ".join(known))
        require(
            self.router in get_args(RouterName),
            "--router",
            self.router,
            "one of " + ", ".join(get_args(RouterName)),
        )
        ok = self.max_model_len is None or 2 <= self.max_model_len <= LONGEST
        require(
            ok,
            "--max-model-len",
            self.max_model_len,
            f"from 2 (a token in, a token out) to {LONGEST:,}",
        )
        require(
            0 <= self.speculative_tokens <= 64,
            "--speculative-tokens",
            self.speculative_tokens,
            "from 0 to 64",
        )
        require(0 <= self.acceptance <= 1, "--acceptance", self.acceptance, "from 0 to 1")
        ok = self.price_per_hour is None or 0 <= self.price_per_hour <= 1e6
        require(ok, "--price-per-hour", self.price_per_hour, "from 0 to a million")
        if self.speculative_model is not None and not self.speculative_tokens:
            hint = "give both: --speculative-model NAME --speculative-tokens 4"
            raise ConfigError("--speculative-model needs --speculative-tokens", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is reported, and where."""

    slo: str | None = None
    """Targets in seconds that a good request meets, such as ttft=0.5,tpot=0.05 (also e2el)."""
    sweep: tuple[str, ...] = ()
    """Several values of any flag, side by side: rate=1:16 (doubling), rate=1:16:6 (six, evenly),
    gpu=h100,l40s.
    """
    interval: bool = False
    """Run also with each end of the cost model's interval, and report what that does to the
    results.
    """
    compare: tuple[Path, ...] = ()
    """An earlier report (JSON) to show beside this one (repeat the flag for more)."""
    compare_only: bool = False
    """Simulate nothing: show the reports of --compare beside each other."""
    output_json: Path | None = None
    """Write all results here."""
    output_html: Path | None = None
    """Write a page with plots here; it needs no network."""
    output_csv: Path | None = None
    """Write one row per request here."""
    metrics: Path | None = None
    """Write what the live server's /metrics would say at the end here."""
    record: Path | None = None
    """Write every step's event to this JSONL file, as serve --record does; a file for each replica:
    FILE.0.jsonl ...
    """
    jump: bool = True
    """Take runs of decode steps in one go; the results are the same, byte for byte."""

    def __post_init__(self) -> None:
        self.targets()
        if self.compare_only:
            if not self.compare:
                raise ConfigError(
                    "--compare-only needs --compare",
                    hint="give both: --compare-only --compare a.json --compare b.json",
                )
            for name in ("sweep", "output_csv", "metrics", "record"):
                if getattr(self, name):
                    flag = "--" + name.replace("_", "-")
                    raise ConfigError(
                        f"{flag} needs a simulation", hint=f"leave out {flag} or --compare-only"
                    )
        for name in ("output_json", "output_html", "output_csv", "metrics", "record"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.parent.is_dir():
                flag = "--" + name.replace("_", "-")
                raise ConfigError(
                    f"{path.parent} is no folder", hint=f"make it, or give another {flag}"
                )
            if path is not None and path.is_dir():
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{path} is a folder", hint=f"give {flag} a file in it")

    def targets(self) -> dict[str, float]:
        """Metric (``ttft``, ``tpot``, ``e2el``) to the most seconds that a good request may
        take.
        """
        found: dict[str, float] = {}
        for text in self.slo.split(",") if self.slo else ():
            name, _, limit = text.strip().partition("=")
            try:
                found[name] = float(limit)
            except ValueError:
                found[name] = -1
            if name not in TARGETS or not 0 < found[name] < inf:
                hint = "in seconds, such as --slo ttft=0.5,tpot=0.05"
                raise ConfigError(
                    f"--slo {text!r} is not ttft=, tpot= or e2el= and a number of seconds",
                    hint=hint,
                )
        return found
