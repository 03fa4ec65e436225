"""Options of a simulated deployment; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import check_fields, within
from twostroke.core.flags.values import require
from twostroke.core.speculation_config import (
    Method,
    MethodName,
    Probability,
    Speculation,
    SpeculationConfig,
)
from twostroke.routing.routers import RouterName
from twostroke.simulator.cost.configuration import Parallel
from twostroke.simulator.cost.efficiencies import stack_names

MAX_DEVICES = 10_000
# Tokens of a request; a KV cache has a block for each at most.
MAX_LENGTH = 2**24
NumDevices = Annotated[int, within(1, MAX_DEVICES)]
Bandwidth = Annotated[float, within(0.001, 1e5, "from 0.001 to 100000 (GB/s)")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """Which model runs in which precision on which hardware."""

    model: str = "llama-3.1-8b"
    """A public model by name, a config.json or its folder, pilot, or a downloaded Hub id."""
    gpu: str = "h100"
    """Hardware by name (a wrong one lists them), or a sheet of your own (.toml)."""
    tp: NumDevices = 1
    """Devices that share the model (tensor parallelism)."""
    data_parallel_size: NumDevices = 1
    """Groups of --tp devices in each replica with requests of their own; they share experts."""
    pipeline_parallel_size: NumDevices = 1
    """Groups of all these devices that have layers of their own."""
    enable_expert_parallel: bool = False
    """Devices of a replica have whole experts, not parts of each."""
    replicas: NumDevices = 1
    """Engines, each on its own devices; with --autoscale those at the beginning."""
    router: RouterName = "round-robin"
    """Chooses each request's replica; prefix-affinity: the last one with the same prompt prefix;
    kv-occupancy: the one that is least full.
    """
    slow_start: Annotated[float, within(0, 86_400)] = 0.0
    """Seconds in which a replica that --autoscale or --fail brings gets a growing part of what
    others get.
    """
    weight_dtype: str = "auto"
    """Format of the weights (bf16, fp8, int8, int4, nvfp4 ...); auto takes the checkpoint's."""
    max_model_len: Annotated[
        int | None,
        within(2, MAX_LENGTH, f"from 2 (a token in, a token out) to {MAX_LENGTH:,}"),
    ] = None
    """Most tokens of prompt and output; by default the model's context, if memory has room."""
    speculation: Method | None = None
    """Guess tokens ahead as `twostroke serve --speculation` does; how many come true, --acceptance
    says.
    """
    speculative_config: str | None = None
    """The method and its settings, as JSON: `{"method": "ngram", "num_speculative_tokens": 5}`."""
    speculative_tokens: Annotated[int, within(0, 64)] = 0
    """Tokens drafted for each request and step: exactly, or with --speculation at most."""
    acceptance: Probability = 0.7
    """Probability that a draft is accepted, given that those before it were."""
    speculative_model: str | None = None
    """Model that drafts; without one (n-gram) drafts cost nothing."""
    host_bandwidth: Bandwidth = 25.0
    """GB/s between a device and its host's memory: for --preemption swap and tiers."""
    disk_bandwidth: Bandwidth = 3.0
    """GB/s of the host's disk: for --kv-disk, whose folder the simulator does not touch, and for
    weights of replicas that --autoscale starts.
    """
    start_seconds: Annotated[float | None, within(0, 86_400)] = None
    """Seconds until a replica that --autoscale starts takes requests; by default 30, and its
    weights at --disk-bandwidth.
    """
    efficiencies: str = "auto"
    """auto (fitted to the device), data-sheet (shared by all), or a file of twostroke calibrate."""
    kernel_tables: Path | None = None
    """Measured kernels of this hardware (JSON); they correct the coefficients where they can."""
    serving_stack: str | None = None
    """Software whose host time counts: vllm, sglang, trtllm; default: vllm, on a CPU twostroke."""
    price_per_hour: Annotated[float | None, within(0, 1e6, "from 0 to a million")] = None
    """US dollars for one device; by default the sheet's."""

    def __post_init__(self) -> None:
        check_fields(self)
        stacks = stack_names()
        ok = self.serving_stack is None or self.serving_stack in stacks
        require(ok, "--serving-stack", self.serving_stack, "one of " + ", ".join(stacks))
        speculation = self.resolve_speculation()
        if self.speculative_model is not None and speculation is None:
            hint = "give both: --speculative-model NAME --speculative-tokens 4"
            raise ConfigError("--speculative-model needs --speculative-tokens", hint=hint)

    @property
    def num_devices(self) -> int:
        """Devices of one replica."""
        return self.parallel.num_devices

    @property
    def parallel(self) -> Parallel:
        """How the model is split over them."""
        return Parallel(
            tensor=self.tp,
            data=self.data_parallel_size,
            pipeline=self.pipeline_parallel_size,
            expert=self.enable_expert_parallel,
        )

    def resolve_speculation(self) -> Speculation | None:
        """How far ahead tokens are guessed, and how likely a guess is right."""
        settings = SpeculationConfig(
            speculation=self.speculation, speculative_config=self.speculative_config
        ).resolve()
        tokens, model = self.speculative_tokens, self.speculative_model
        if settings is None:
            if not tokens:
                return None
            method: MethodName = "ngram" if model is None else "draft"
            settings = Speculation(method=method, num_speculative_tokens=tokens, adaptive=False)
        elif model is not None and settings.method != "draft":
            hint = "leave it out, or give --speculation draft"
            message = f"--speculative-model means nothing with method {settings.method}"
            raise ConfigError(message, hint=hint)
        if settings.method == "draft" and model is None and settings.model is None:
            if self.model != "pilot":
                raise ConfigError(
                    f"no draft model is known for {self.model}", hint="name --speculative-model"
                )
            model = "pilot-draft"
        rate = self.acceptance
        if settings.method == "synthetic":
            rate = settings.acceptance_rate
        return replace(
            settings,
            num_speculative_tokens=tokens or settings.num_speculative_tokens,
            model=model or settings.model,
            acceptance_rate=rate,
        )
