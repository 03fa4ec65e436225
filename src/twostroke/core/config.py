"""Frozen configuration, one dataclass per concern, from which the command line has its flags.

Resolved once at start and never changed. Field docstrings are the help texts. Names are vLLM's
where the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, cast, get_args

from twostroke.core.errors import ConfigError
from twostroke.core.flags.byte_sizes import parse_size
from twostroke.core.flags.values import DefaultByDevice, parse_seconds, require
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.core.operator.sampling_defaults import read_overrides
from twostroke.core.speculation_config import SpeculationConfig
from twostroke.core.targets import Target, parse_targets, read_target_file

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
PolicyName = Literal["fcfs", "priority", "fair", "deadline"]
Admission = Literal["queue", "predicted"]
Quantization = Literal["int8", "int4"]
KVCacheDtype = Literal["auto", "bfloat16", "float16", "float32", "int8", "int4", "fp8"]
# The same by other names, which vLLM or the simulator's reports use.
KVCacheDtypeName = Literal[KVCacheDtype, "bf16", "fp16", "fp32", "fp8_e4m3"]
_KV_CACHE_DTYPES: Mapping[str, KVCacheDtype] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8_e4m3": "fp8",
}
Batching = Literal["continuous", "static"]
GenerationConfigSource = Literal["auto", "vllm"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]


class DefaultByKeys(str):
    """A default: the policy without API keys until ``SchedulerConfig.for_keys`` knows of them.

    Attributes:
        with_keys: The policy of a server that asks for keys.
    """

    __slots__ = ()
    with_keys: PolicyName = "fair"


DEFAULT_POLICY = cast(PolicyName, DefaultByKeys("fcfs"))


def _for_device(value: int, gpu: bool) -> int:
    return value.gpu if gpu and isinstance(value, DefaultByDevice) else int(value)


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
    override_generation_config: str | None = None
    """Sampling defaults of your own over those, as JSON: `{"temperature": 0.7}`; `max_new_tokens`
    bounds every answer.
    """
    runner: Runner = "auto"
    """`generate` answers with text alone, `pooling` with embeddings and scores alone; `auto` does
    what the checkpoint was made for.
    """
    convert: Convert = "auto"
    """`embed` makes embeddings of any model, `classify` scores of pairs by its answer, no or yes,
    `none` neither; `auto` does what the checkpoint was made for, and under `--runner pooling` it
    embeds.
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
        require(
            self.runner in get_args(Runner), "--runner", self.runner, "auto, generate or pooling"
        )
        ways = get_args(Convert)
        require(self.convert in ways, "--convert", self.convert, "one of " + ", ".join(ways))
        read_overrides(self.override_generation_config)
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
    kv_cache_dtype: KVCacheDtypeName = "auto"
    """How keys and values are stored: `auto` as the model computes, `int8` and `int4` with scales
    in half and in a quarter of bfloat16's memory, `fp8` (e4m3) converted.
    """
    gpu_memory_utilization: float = 0.9
    """On a GPU: share of its memory that weights and KV cache may fill together."""
    cpu_memory_utilization: float = 0.25
    """On a CPU: share of the available memory that the KV cache may take."""
    enable_prefix_caching: bool = True
    """Keep the blocks of finished requests and reuse them for equal prefixes."""

    @property
    def kv_format(self) -> KVCacheDtype:
        """``kv_cache_dtype`` by its first name."""
        name = self.kv_cache_dtype
        return _KV_CACHE_DTYPES.get(name) or cast(KVCacheDtype, name)

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
        formats = get_args(KVCacheDtype)
        ok = self.kv_cache_dtype in get_args(KVCacheDtypeName)
        require(ok, "--kv-cache-dtype", self.kv_cache_dtype, "one of " + ", ".join(formats))
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

    max_num_batched_tokens: int = DefaultByDevice(2048, gpu=8192)
    """Token budget: most tokens that go through the model in one step."""
    max_num_seqs: int = DefaultByDevice(64, gpu=256)
    """Most requests that run at once."""
    max_prefill_chunk: int | None = None
    """Most prompt tokens of one request in one step; by default the whole budget."""
    policy: PolicyName = DEFAULT_POLICY
    """`fcfs`: in order of arrival; `priority`: lower `priority` first; `fair`: the API key served
    least first; `deadline`: the least time left before the prompt must begin, so that its TTFT
    target is met. Where `serve` is given API keys, the default is `fair`.
    """
    fair_input_weight: float = 1.0
    """Under `--policy fair`: what a prompt token counts."""
    fair_output_weight: float = 2.0
    """Under `--policy fair`: what an output token counts."""
    batching: Batching = "continuous"
    """`static` starts no request before the whole running batch has ended (for comparison)."""
    admission: Admission = "queue"
    """`predicted` refuses at once (429 with Retry-After) what would miss its TTFT target by
    --admission-factor; `queue` refuses only what finds the queue full.
    """
    admission_factor: float = 1.0
    """Under `--admission predicted`: refuse where the predicted TTFT exceeds the target times
    this.
    """
    tpot_target: float | None = None
    """Longest step while requests decode (accepts 40ms, 0.04s): each step takes as many prompt
    tokens as keep within it; by default, as many as --max-num-batched-tokens.
    """

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
        admissions = get_args(Admission)
        require(self.admission in admissions, "--admission", self.admission, "queue or predicted")
        factor = self.admission_factor
        ok = isinstance(factor, (int, float)) and 0.01 <= factor <= 100
        require(ok, "--admission-factor", factor, "from 0.01 to 100")
        if isinstance(self.tpot_target, str):
            try:
                object.__setattr__(self, "tpot_target", parse_seconds(self.tpot_target))
            except ValueError as error:
                raise ConfigError(
                    f"--tpot-target: {error}", hint="write it as 40ms or 0.04s"
                ) from error
        target = self.tpot_target
        ok = target is None or (type(target) in (int, float) and 1e-4 <= target <= 3600)
        require(ok, "--tpot-target", target, "from 0.1ms to 3600s")

    @property
    def measures_steps(self) -> bool:
        """Whether plans or refusals depend on how long earlier steps took."""
        return (
            self.policy == "deadline"
            or self.admission == "predicted"
            or self.tpot_target is not None
        )

    def for_device(self, *, gpu: bool) -> SchedulerConfig:
        """What was given, and that device's default for the rest."""
        return replace(
            self,
            max_num_batched_tokens=_for_device(self.max_num_batched_tokens, gpu),
            max_num_seqs=_for_device(self.max_num_seqs, gpu),
        )

    def for_keys(self) -> SchedulerConfig:
        """What was given, or else the policy of a server that asks for API keys."""
        if isinstance(self.policy, DefaultByKeys):
            return replace(self, policy=self.policy.with_keys)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """What is kept of each step."""

    step_events: int = 4096
    """Step events held in memory (a ring; the oldest are dropped)."""
    record: str | None = None
    """Append every step event to this JSONL file."""
    target: tuple[str, ...] = ()
    """What is good, such as `ttft=p95:0.3`, `tpot=p50:0.025`, `errors=0.001`, `kv=0.9`, `queue=25`
    (repeat the flag for more); `,key=NAME` and `,model=NAME` narrow it.
    """
    target_file: str | None = None
    """File with one target per line, beside those of --target."""

    def __post_init__(self) -> None:
        ok = isinstance(self.target, (tuple, list)) and all(isinstance(t, str) for t in self.target)
        require(ok, "--target", self.target, "a list of targets such as ttft=p95:0.3")
        parse_targets(self.target)
        ok = self.target_file is None or isinstance(self.target_file, str)
        require(ok, "--target-file", self.target_file, "the name of a file")
        ok = self.record is None or isinstance(self.record, str)
        require(ok, "--record", self.record, "the name of a file")
        require(_is_count(self.step_events), "--step-events", self.step_events, "1 or more")

    def targets(self) -> tuple[Target, ...]:
        """Those of the flags and of the file.

        Raises:
            ConfigError: The file cannot be read, or a target is malformed or there twice.
        """
        in_file = () if self.target_file is None else read_target_file(self.target_file)
        return parse_targets((*self.target, *in_file))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All of the engine's configuration."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    tiers: KVTierConfig = field(default_factory=KVTierConfig)
    chat: ChatTemplateConfig = field(default_factory=ChatTemplateConfig)

    def __post_init__(self) -> None:
        if self.tiers.needs_tiers and not self.cache.enable_prefix_caching:
            raise ConfigError(
                "--preemption swap, --kv-host-memory and --kv-disk need the prefix cache: blocks"
                " are found by their content",
                hint="leave out --no-enable-prefix-caching",
            )

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
