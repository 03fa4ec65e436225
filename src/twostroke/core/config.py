"""Frozen configuration, one dataclass per concern, from which the command line has its flags.

Resolved once at start and never changed. Field docstrings are the help texts. Names are vLLM's
where the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import (
    SIZE,
    TIME,
    ByDevice,
    Count,
    KnownLater,
    Must,
    at_least,
    check_fields,
    within,
)
from twostroke.core.kv_formats import FIRST_NAMES, KVCacheDtype, KVCacheDtypeName, StateDtype
from twostroke.core.kv_tier_config import KVTierConfig, KVTransferConfig
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.core.operator.sampling_defaults import read_overrides
from twostroke.core.speculation_config import SpeculationConfig
from twostroke.core.targets import Target, parse_targets, read_target_file

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
PolicyName = Literal["fcfs", "priority", "fair", "deadline"]
Admission = Literal["queue", "predicted"]
Quantization = Literal["int8", "int4", "fp8"]
_ONE_OF_FORMATS = "one of " + ", ".join(get_args(KVCacheDtype))
Batching = Literal["continuous", "static"]
GenerationConfigSource = Literal["auto", "vllm"]
Runner = Literal["auto", "generate", "pooling"]
ModelImpl = Literal["auto", "twostroke", "transformers"]
Convert = Literal["auto", "none", "embed", "classify"]


MAX_TOKENS_OF_STEP = ByDevice(2048, gpu=8192)
MAX_RUNNING = ByDevice(64, gpu=256)
FileName = Annotated[str, Must("the name of a file")]
Share = Annotated[float, Must("in (0, 1]", lambda share: 0 < share <= 1)]
Weight = Annotated[float, Must("above 0 and below 1000000", lambda weight: 0 < weight < 1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, in which precision, on which device."""

    model: Annotated[str, Must("a model name or folder", bool)] = "pilot"
    """`pilot` or `pilot-draft` (embedded), a local folder or GGUF file, or a Hugging Face Hub
    id."""
    revision: Annotated[str | None, Must("a branch, tag or commit")] = None
    """Branch, tag or commit of a Hub model."""
    model_impl: Annotated[ModelImpl, Must("auto, twostroke or transformers")] = "auto"
    """Whose code runs the model: `twostroke` has its own families, `transformers` (an extra to
    install) runs most other decoders, slower; `auto` takes the first that can.
    """
    dtype: Dtype = "auto"
    """Precision of weights and activations; `auto` takes the checkpoint's, but bfloat16 for one of
    float16 whose quantised weights a CPU multiplies as they are stored.
    """
    quantization: Quantization | None = None
    """Round the weights of linear layers while loading: `int8` or `int4`, half or a third of the
    bytes, or on a GPU `fp8`, where activations are rounded too.

    On text that pilot was not trained on, about 0.03 % and 0.2 % of the likeliest tokens become
    others.
    """
    device: Annotated[str, Must("auto, cpu, cuda or cuda:N")] = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` takes a GPU where there is one."""
    tensor_parallel_size: Annotated[int, within(1, 64, "from 1 to 64")] = 1
    """Processes that compute the model together, each with a share of its heads and of its weights:
    on a CPU they divide the cores, else each has a GPU of its own, from `--device` on.
    """
    enforce_eager: bool = False
    """On a GPU: launch each kernel of a decode pass anew, in place of CUDA graphs; starts a few
    seconds sooner, and decodes more slowly.
    """
    max_model_len: Annotated[
        int | None, at_least(2, "at least 2, a token of prompt and one of output")
    ] = None
    """Most tokens of prompt and output together; by default the model's context length."""
    generation_config: GenerationConfigSource = "auto"
    """Sampling defaults: `auto` takes those of the checkpoint's generation_config.json, `vllm`
    neutral ones.
    """
    override_generation_config: str | None = None
    """Sampling defaults of your own over those, as JSON: `{"temperature": 0.7}`; `max_new_tokens`
    bounds every answer.
    """
    runner: Annotated[Runner, Must("auto, generate or pooling")] = "auto"
    """`generate` answers with text alone, `pooling` with embeddings and scores alone; `auto` does
    what the checkpoint was made for.
    """
    convert: Convert = "auto"
    """`embed` makes embeddings of any model, `classify` scores of pairs by its answer, no or yes,
    `none` neither; `auto` does what the checkpoint was made for, and under `--runner pooling` it
    embeds.
    """
    seed: Annotated[int | None, Must("an integer")] = None
    """Makes requests without a seed of their own repeatable; by default they are seeded from the
    system.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        read_overrides(self.override_generation_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: Annotated[int, within(1, 1024, "from 1 to 1024")] = 16
    """Tokens per KV block."""
    kv_cache_memory: Annotated[int | None, SIZE, at_least(1, "a positive size")] = None
    """Bytes for the KV cache (accepts 512MiB, 2GiB); by default a share of what is free after the
    weights.
    """
    kv_cache_dtype: Annotated[KVCacheDtypeName, Must(_ONE_OF_FORMATS)] = "auto"
    """How keys and values are stored: `auto` as the model computes, `int8` and `int4` with scales
    in half and in a quarter of bfloat16's memory, `fp8` (e4m3) converted.
    """
    gpu_memory_utilization: Share = 0.9
    """On a GPU: share of its memory that weights and KV cache may fill together."""
    cpu_memory_utilization: Share = 0.25
    """On a CPU: share of the available memory that the KV cache may take."""
    memory_share: Share = 1.0
    """Share of all this that the engine may take, where several use one device. Several models and
    replicas of one server divide it by themselves.
    """
    enable_prefix_caching: bool = True
    """Keep the blocks of finished requests and reuse them for equal prefixes."""
    state_spacing: Annotated[int | None, at_least(1, "at least 1")] = None
    """Blocks between two states that are kept, of a model with recurrent layers; by default as many
    as take no fewer bytes than a state.
    """

    mamba_ssm_cache_dtype: Annotated[StateDtype, Must("auto, float32 or bfloat16")] = "auto"
    """How the states of recurrent layers are stored: `auto` is float32, but simulated it is what
    the model's file or vLLM's default says; `bfloat16` takes half of the memory, and rounds after
    each token.
    """

    @property
    def kv_format(self) -> KVCacheDtype:
        """``kv_cache_dtype`` by its first name."""
        name = self.kv_cache_dtype
        return FIRST_NAMES.get(name) or cast(KVCacheDtype, name)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How requests share the steps, as given: device and API keys decide what is left open."""

    max_num_batched_tokens: Annotated[Count | None, MAX_TOKENS_OF_STEP] = None
    """Token budget: most tokens that go through the model in one step."""
    max_num_seqs: Annotated[Count | None, MAX_RUNNING] = None
    """Most requests that run at once."""
    max_prefill_chunk: Count | None = None
    """Most prompt tokens of one request in one step; by default the whole budget."""
    policy: Annotated[PolicyName | None, KnownLater("fcfs")] = None
    """`fcfs`: in order of arrival; `priority`: lower `priority` first; `fair`: the API key served
    least first; `deadline`: the least time left before the prompt must begin, so that its TTFT
    target is met. Where `serve` is given API keys, the default is `fair`.
    """
    fair_input_weight: Weight = 1.0
    """Under `--policy fair`: what a prompt token counts."""
    fair_output_weight: Weight = 2.0
    """Under `--policy fair`: what an output token counts."""
    async_scheduling: bool = True
    """On a GPU, plan and launch the next step while one runs."""
    batching: Annotated[Batching, Must("continuous or static")] = "continuous"
    """`static` starts no request before the whole running batch has ended (for comparison)."""
    admission: Annotated[Admission, Must("queue or predicted")] = "queue"
    """`predicted` refuses at once (429 with Retry-After) what would miss its TTFT target by
    --admission-factor; `queue` refuses only what finds the queue full.
    """
    admission_factor: Annotated[float, within(0.01, 100)] = 1.0
    """Under `--admission predicted`: refuse where the predicted TTFT exceeds the target times
    this.
    """
    tpot_target: Annotated[float | None, TIME, within(1e-4, 3600, "from 0.1ms to 3600s")] = None
    """Longest step while requests decode (accepts 40ms, 0.04s): each step takes as many prompt
    tokens as keep within it; by default, as many as --max-num-batched-tokens.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def measures_steps(self) -> bool:
        """Whether plans or refusals depend on how long earlier steps took."""
        return (
            self.policy == "deadline"
            or self.admission == "predicted"
            or self.tpot_target is not None
        )

    def for_keys(self) -> SchedulerOptions:
        """What was given, and else the policy of a server that asks for API keys."""
        return replace(self, policy=self.policy or "fair")

    def for_device(self, *, gpu: bool) -> SchedulerConfig:
        """What was given, and else that device's defaults; without keys, ``fcfs``."""
        values: dict[str, Any] = {
            "max_num_batched_tokens": MAX_TOKENS_OF_STEP.on(gpu=gpu),
            "max_num_seqs": MAX_RUNNING.on(gpu=gpu),
        }
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        values.update((name, value) for name, value in given.items() if value is not None)
        return SchedulerConfig(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(SchedulerOptions):
    """``SchedulerOptions`` with every value set; the defaults are a CPU's, without API keys."""

    max_num_batched_tokens: Count = MAX_TOKENS_OF_STEP.cpu
    max_num_seqs: Count = MAX_RUNNING.cpu
    policy: PolicyName = "fcfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """What is kept of each step."""

    step_events: Count = 4096
    """Step events held in memory (a ring; the oldest are dropped)."""
    record: FileName | None = None
    """Append every step event to this JSONL file."""
    target: Annotated[tuple[str, ...], Must("a list of targets such as ttft=p95:0.3")] = ()
    """What is good, such as `ttft=p95:0.3`, `tpot=p50:0.025`, `errors=0.001`, `kv=0.9`, `queue=25`
    (repeat the flag for more); `,key=NAME` and `,model=NAME` narrow it.
    """
    target_file: FileName | None = None
    """File with one target per line, beside those of --target."""

    def __post_init__(self) -> None:
        check_fields(self)
        parse_targets(self.target)

    def targets(self) -> tuple[Target, ...]:
        """The targets of the flags and of the file.

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
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    tiers: KVTierConfig = field(default_factory=KVTierConfig)
    chat: ChatTemplateConfig = field(default_factory=ChatTemplateConfig)
    adapters: LoraConfig = field(default_factory=LoraConfig)
    transfer: KVTransferConfig = field(default_factory=KVTransferConfig)

    def __post_init__(self) -> None:
        if self.needs_tiers and not self.cache.enable_prefix_caching:
            raise ConfigError(
                "--preemption swap, --kv-host-memory, --kv-disk, --prefill-engines and --role"
                " need the prefix cache: blocks are found by their content",
                hint="leave out --no-enable-prefix-caching",
            )

    @property
    def needs_tiers(self) -> bool:
        """Whether any block ever leaves the KV cache for another place, or comes from one."""
        return self.tiers.needs_tiers or self.transfer.is_used

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
