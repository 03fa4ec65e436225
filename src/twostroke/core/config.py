"""Frozen configuration, one dataclass per concern, from which the command line has its flags.

Resolved once at start and never changed. Field docstrings are the help texts. Names are vLLM's
where the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

from twostroke.core.byte_sizes import parse_size
from twostroke.core.errors import ConfigError
from twostroke.core.flag_values import require

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
PolicyName = Literal["fcfs", "priority", "fair"]
Quantization = Literal["int8", "int4"]
Batching = Literal["continuous", "static"]
GenerationConfigSource = Literal["auto", "vllm"]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, in which precision, on which device."""

    model: str = "pilot"
    """`pilot` or `pilot-draft` (embedded), a local folder, or a Hugging Face Hub id."""
    revision: str | None = None
    """Branch, tag or commit of a Hub model."""
    dtype: Dtype = "auto"
    """Precision of weights and activations; `auto` takes the checkpoint's."""
    quantization: Quantization | None = None
    """Round the weights of linear layers while loading: `int8` or `int4`. On a CPU; half or a third
    of the bytes.

    On text that pilot was not trained on, about 0.03 % and 0.2 % of the likeliest tokens become
    others.
    """
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` takes a GPU where there is one."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; by default the model's context length."""
    generation_config: GenerationConfigSource = "auto"
    """Sampling defaults: `auto` takes those of the checkpoint's generation_config.json, `vllm`
    neutral ones.
    """
    seed: int | None = None
    """Makes requests without a seed of their own repeatable; by default they are seeded from the
    system.
    """

    def __post_init__(self) -> None:
        require(
            isinstance(self.model, str) and bool(self.model),
            "--model",
            self.model,
            "a model name or folder",
        )
        require(isinstance(self.device, str), "--device", self.device, "auto, cpu, cuda or cuda:N")
        ok = self.revision is None or isinstance(self.revision, str)
        require(ok, "--revision", self.revision, "a branch, tag or commit")
        require(self.seed is None or type(self.seed) is int, "--seed", self.seed, "an integer")
        require(
            self.dtype in get_args(Dtype),
            "--dtype",
            self.dtype,
            "one of " + ", ".join(get_args(Dtype)),
        )
        formats = get_args(Quantization)
        ok = self.quantization is None or self.quantization in formats
        require(ok, "--quantization", self.quantization, "one of " + ", ".join(formats))
        sources = get_args(GenerationConfigSource)
        ok = self.generation_config in sources
        require(ok, "--generation-config", self.generation_config, "one of " + ", ".join(sources))
        ok = self.max_model_len is None or (
            _is_count(self.max_model_len) and self.max_model_len > 1
        )
        require(
            ok,
            "--max-model-len",
            self.max_model_len,
            "at least 2, a token of prompt and one of output",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens per KV block."""
    kv_cache_memory: int | None = None
    """Bytes for the KV cache (accepts 512MiB, 2GiB); by default a share of what is free after the
    weights.
    """
    gpu_memory_utilization: float = 0.9
    """On a GPU: share of its memory that weights and KV cache may fill together."""
    cpu_memory_utilization: float = 0.25
    """On a CPU: share of the available memory that the KV cache may take."""
    enable_prefix_caching: bool = True
    """Keep the blocks of finished requests and reuse them for equal prefixes."""

    def __post_init__(self) -> None:
        require(
            _is_count(self.block_size) and self.block_size <= 1024,
            "--block-size",
            self.block_size,
            "from 1 to 1024",
        )
        if isinstance(self.kv_cache_memory, str):
            try:
                object.__setattr__(self, "kv_cache_memory", parse_size(self.kv_cache_memory))
            except ValueError as error:
                raise ConfigError(
                    f"--kv-cache-memory: {error}", hint="write it as 512MiB or 2GiB"
                ) from error
        ok = self.kv_cache_memory is None or _is_count(self.kv_cache_memory)
        require(ok, "--kv-cache-memory", self.kv_cache_memory, "a positive size")
        ok = isinstance(self.enable_prefix_caching, bool)
        require(ok, "--enable-prefix-caching", self.enable_prefix_caching, "true or false")
        for name in ("gpu_memory_utilization", "cpu_memory_utilization"):
            value = getattr(self, name)
            require(
                isinstance(value, (int, float)) and 0 < value <= 1,
                "--" + name.replace("_", "-"),
                value,
                "in (0, 1]",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How requests share the steps."""

    max_num_batched_tokens: int = 2048
    """Token budget: most tokens that go through the model in one step."""
    max_num_seqs: int = 64
    """Most requests that run at once."""
    max_prefill_chunk: int | None = None
    """Most prompt tokens of one request in one step; by default the whole budget."""
    policy: PolicyName = "fcfs"
    """`fcfs`: in order of arrival; `priority`: lower `priority` first; `fair`: the API key served
    least first.
    """
    fair_input_weight: float = 1.0
    """Under `--policy fair`: what a prompt token counts."""
    fair_output_weight: float = 2.0
    """Under `--policy fair`: what an output token counts."""
    batching: Batching = "continuous"
    """`static` starts no request before the whole running batch has ended (for comparison)."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            require(
                _is_count(getattr(self, name)),
                "--" + name.replace("_", "-"),
                getattr(self, name),
                "1 or more",
            )
        ok = self.max_prefill_chunk is None or _is_count(self.max_prefill_chunk)
        require(ok, "--max-prefill-chunk", self.max_prefill_chunk, "1 or more")
        policies = get_args(PolicyName)
        require(self.policy in policies, "--policy", self.policy, "one of " + ", ".join(policies))
        for name in ("fair_input_weight", "fair_output_weight"):
            value = getattr(self, name)
            ok = isinstance(value, (int, float)) and 0 < value < 1e6
            require(ok, "--" + name.replace("_", "-"), value, "above 0 and below 1000000")
        require(
            self.batching in ("continuous", "static"),
            "--batching",
            self.batching,
            "continuous or static",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """What is kept of each step."""

    step_events: int = 4096
    """Step events held in memory (a ring; the oldest are dropped)."""
    record: str | None = None
    """Append every step event to this JSONL file."""

    def __post_init__(self) -> None:
        ok = self.record is None or isinstance(self.record, str)
        require(ok, "--record", self.record, "the name of a file")
        require(_is_count(self.step_events), "--step-events", self.step_events, "1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All of the engine's configuration."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)

    @classmethod
    def from_flat(cls, options: Mapping[str, Any]) -> EngineConfig:
        """Build from one flat mapping of field names, as ``LLM(model, **options)`` takes them.

        Raises:
            ConfigError: For an unknown name, with the nearest known one.
        """
        rest = dict(options)
        sections: dict[str, Any] = {
            section.name: _take(section.default_factory, rest)  # type: ignore[arg-type]
            for section in fields(cls)
        }
        if rest:
            raise _unknown(next(iter(rest)), cls)
        return cls(**sections)


T = TypeVar("T")


def _take(section: type[T], options: dict[str, Any]) -> T:
    names = [f.name for f in fields(section)]  # type: ignore[arg-type]
    return section(**{name: options.pop(name) for name in names if name in options})


def _unknown(name: str, cls: type[EngineConfig]) -> ConfigError:
    from difflib import get_close_matches

    names = [
        option.name
        for section in fields(cls)
        for option in fields(section.default_factory)  # type: ignore[arg-type]
    ]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else "known options: " + ", ".join(sorted(names))
    return ConfigError(f"unknown option {name!r}", hint=hint)
