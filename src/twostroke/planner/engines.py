"""The engines that are searched: a model on devices, with formats and limits, and its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import sqrt
from typing import cast

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.core.kv_formats import KVCacheDtypeName
from twostroke.model_spec.number_formats import cache_format, weight_format
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.planner.apart.prompt_curve import PromptCurve
from twostroke.planner.options import SearchOptions, numbers, split_words
from twostroke.planner.step_curve import NO_DRAFTS, DraftSetting, StepCurve
from twostroke.planner.traffic import Lengths, answers_alone
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import Efficiencies
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, hardware_names, load_hardware
from twostroke.simulator.deployment.deployment import (
    Deployment,
    deploy_with,
    find_efficiencies,
    make_cost_model,
)
from twostroke.simulator.deployment.options import DeploymentOptions

# Deviations that the cache keeps free, so that requests of random lengths rarely preempt others.
SPARE_DEVIATIONS = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """One replica's configuration.

    Attributes:
        gpu: Name of a sheet, or a path to one.
        dp: Groups of ``tp`` devices with requests of their own, which share experts.
        pp: Groups of all these that have layers of their own.
        ep: Whether devices have whole experts instead of parts of each.
        weights: Format, by its own name. ``kv_cache`` likewise.
        seqs: Most requests at once; ``budget``: most tokens of a step; of each of ``dp`` groups.
    """

    gpu: str
    tp: int
    weights: str
    kv_cache: str
    seqs: int
    budget: int
    drafts: DraftSetting = NO_DRAFTS
    dp: int = 1
    pp: int = 1
    ep: bool = False

    @property
    def memory_key(self) -> tuple[object, ...]:
        """What decides the cost model: all but the scheduler's limits."""
        split = self.tp, self.dp, self.pp, self.ep
        return self.gpu, split, self.weights, self.kv_cache, self.drafts

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts engines by name."""
        return self.gpu, self.tp, self.dp, self.pp, self.ep, self.seqs, self.budget

    @property
    def parallel(self) -> Parallel:
        return Parallel(tensor=self.tp, data=self.dp, pipeline=self.pp, expert=self.ep)

    @property
    def num_devices(self) -> int:
        return self.tp * self.dp * self.pp

    @property
    def devices_text(self) -> str:
        """How many of which device; how a model is split, if not by tensors alone."""
        text = f"{self.num_devices} x {self.gpu}"
        if self.parallel.splits_tensors_only:
            return text
        ways = {"TP": self.tp, "DP": self.dp, "PP": self.pp}
        words = [f"{name}{size}" for name, size in ways.items() if size > 1] + ["EP"] * self.ep
        return f"{text} ({' '.join(words)})"

    @property
    def formats_text(self) -> str:
        drafts = f", {self.drafts.tokens} drafts" if self.drafts.tokens else ""
        return f"{self.weights} weights, {self.kv_cache} KV{drafts}"

    def describe(self) -> str:
        return f"{self.devices_text}, {self.formats_text}"


@dataclass(slots=True)
class EngineBuilder:
    """Cost models, step curves and deployments of engines, each made once.

    Args:
        length: Most tokens of one request.
    """

    model: str
    search: SearchOptions
    lengths: Lengths
    length: int
    _spec: ModelSpec = field(init=False)
    _sheets: dict[str, HardwareSheet] = field(init=False, default_factory=dict)
    _efficiencies: dict[str, Efficiencies] = field(init=False, default_factory=dict)
    _costs: dict[tuple[object, ...], RooflineCostModel] = field(init=False, default_factory=dict)
    _curves: dict[tuple[object, ...], StepCurve] = field(init=False, default_factory=dict)
    _prompt_curves: dict[tuple[object, ...], PromptCurve] = field(init=False, default_factory=dict)
    _answer_limits: dict[EngineChoice, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._spec = find_model(self.model)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def sheet(self, gpu: str) -> HardwareSheet:
        if gpu not in self._sheets:
            self._sheets[gpu] = load_hardware(gpu)
        return self._sheets[gpu]

    def with_lengths(self, lengths: Lengths) -> EngineBuilder:
        """A builder for other lengths; cost models are shared."""
        other = replace(self, lengths=lengths)
        other._sheets, other._efficiencies = self._sheets, self._efficiencies
        other._costs = self._costs
        return other

    def cost(self, engine: EngineChoice) -> RooflineCostModel:
        """Raises ConfigError if the devices cannot share the model."""
        key = engine.memory_key
        if key not in self._costs:
            options, cache = self.options(engine), self.cache(engine)
            if engine.drafts.costs:
                self._costs[key] = make_cost_model(options, cache)
                return self._costs[key]
            sheet = self.sheet(engine.gpu)
            if engine.gpu not in self._efficiencies:
                self._efficiencies[engine.gpu] = find_efficiencies(sheet, options)
            self._costs[key] = RooflineCostModel(
                sheet,
                self._spec,
                engine.parallel,
                Dtypes(weights=engine.weights, kv_cache=engine.kv_cache),
                self._efficiencies[engine.gpu],
            )
        return self._costs[key]

    def curve(self, engine: EngineChoice) -> StepCurve:
        key = (*engine.memory_key, engine.budget)
        if key not in self._curves:
            self._curves[key] = self._make_curve(engine, self.lengths)
        return self._curves[key]

    def answer_curve(self, engine: EngineChoice) -> StepCurve:
        """Steps of an engine that only decodes, and computes each prompt's last token."""
        key = (*engine.memory_key, engine.budget, "answers")
        if key not in self._curves:
            self._curves[key] = self._make_curve(engine, answers_alone(self.lengths))
        return self._curves[key]

    def answer_limit(self, engine: EngineChoice) -> float:
        """Most requests that decode at once in an engine that only decodes.

        Raises InsufficientMemoryError.
        """
        if engine not in self._answer_limits:
            limit = self.most_running(self.deployment(engine))
            curve = self.answer_curve(engine)
            curve.reach(limit)
            self._answer_limits[engine] = min(limit, float(curve.most))
        return self._answer_limits[engine]

    def prompt_curve(self, engine: EngineChoice) -> PromptCurve:
        """Steps of an engine that only computes prompts."""
        key = (*engine.memory_key, engine.budget)
        if key not in self._prompt_curves:
            cost = self.cost(engine)
            self._prompt_curves[key] = PromptCurve(cost, self.lengths, engine.budget, engine.dp)
        return self._prompt_curves[key]

    def _make_curve(self, engine: EngineChoice, lengths: Lengths) -> StepCurve:
        # A prompt is in one group, and has at most its budget in a step.
        budget = engine.budget * engine.dp
        return StepCurve(self.cost(engine), lengths, budget, engine.drafts, engine.budget)

    def deployment(self, engine: EngineChoice) -> Deployment:
        """Raises InsufficientMemoryError if the model does not fit."""
        scheduler = SchedulerConfig(max_num_seqs=engine.seqs, max_num_batched_tokens=engine.budget)
        return deploy_with(self.cost(engine), self.options(engine), self.cache(engine), scheduler)

    def options(self, engine: EngineChoice, replicas: int = 1) -> DeploymentOptions:
        search, drafts = self.search, engine.drafts
        return DeploymentOptions(
            model=self.model,
            gpu=engine.gpu,
            tp=engine.tp,
            data_parallel_size=engine.dp,
            pipeline_parallel_size=engine.pp,
            enable_expert_parallel=engine.ep,
            replicas=replicas,
            router="least-loaded",
            weight_dtype=engine.weights,
            max_model_len=self.length,
            speculative_tokens=drafts.tokens,
            acceptance=drafts.acceptance if drafts.tokens else 0.7,
            speculative_model=search.draft_model if drafts.tokens else None,
            efficiencies=search.efficiencies,
            serving_stack=search.serving_stack,
        )

    def cache(self, engine: EngineChoice) -> CacheConfig:
        return CacheConfig(kv_cache_dtype=cast(KVCacheDtypeName, engine.kv_cache))

    def most_running(self, deployment: Deployment) -> float:
        """Requests that decode at once at most: by ``--max-num-seqs``, or by the KV cache."""
        return min(float(deployment.scheduler.max_num_seqs), self.most_cached(deployment))

    def most_cached(self, deployment: Deployment) -> float:
        """Requests of these lengths whose KV cache fits, with some room for their spread."""
        info, lengths = deployment.info, self.lengths
        if not deployment.kv_bytes:
            return float(deployment.scheduler.max_num_seqs)
        blocks = info.num_blocks / info.kv_groups.count
        shared = lengths.cached // info.block_size
        mean = lengths.context / info.block_size + 0.5 - shared
        if info.kv_groups.has_windows:
            mean = float(info.kv_groups.most_blocks(round(lengths.context), info.block_size))
            blocks, shared = float(info.num_blocks), 0
        spare = SPARE_DEVIATIONS * sqrt(lengths.context_variance) / info.block_size
        # mean * n + spare * sqrt(n) = blocks
        root = (sqrt(spare**2 + 4 * mean * max(blocks - shared, 0.0)) - spare) / (2 * mean)
        return max(root**2, 1.0)


def engines(builder: EngineBuilder) -> Iterator[EngineChoice]:
    """All engines that the options allow, whether they fit or not, in a fixed order.

    Raises:
        ConfigError: A device or a format is unknown.
    """
    search = builder.search
    seqs = numbers("--max-num-seqs", search.max_num_seqs, 1, 100_000)
    budgets = numbers("--max-num-batched-tokens", search.max_num_batched_tokens, 1, 10_000_000)
    drafts = [NO_DRAFTS]
    if search.acceptance is not None:
        costs = search.draft_model is not None
        counts = numbers("--drafts", search.drafts, 1, 64)
        drafts += [DraftSetting(count, search.acceptance, costs) for count in counts]
    for engine in devices_and_formats(builder):
        for draft in drafts:
            for limit in seqs:
                for budget in budgets:
                    yield replace(engine, drafts=draft, seqs=limit, budget=budget)


def devices_and_formats(builder: EngineBuilder) -> Iterator[EngineChoice]:
    """An engine of each device, each way to split the model, and each pair of formats.

    Raises:
        ConfigError: A device or a format is unknown.
    """
    search, stored = builder.search, builder.spec.format
    weights = dict.fromkeys(
        weight_format(stored if name == "auto" else name).name
        for name in split_words("--weight-dtype", search.weight_dtype)
    )
    caches = dict.fromkeys(
        cache_format(name).name for name in split_words("--kv-cache-dtype", search.kv_cache_dtype)
    )
    for gpu in gpu_names(search):
        for split in ways_to_split(builder, builder.sheet(gpu)):
            for weight in _runnable(weights, builder, gpu):
                for kv_cache in caches:
                    yield EngineChoice(
                        gpu=gpu,
                        tp=split.tensor,
                        dp=split.data,
                        pp=split.pipeline,
                        ep=split.expert,
                        weights=weight,
                        kv_cache=kv_cache,
                        seqs=1,
                        budget=1,
                    )


def ways_to_split(builder: EngineBuilder, sheet: HardwareSheet) -> Iterator[Parallel]:
    """Ways to split the model over devices of a kind.

    Devices that share layers are joined directly. Groups with requests of their own are of use
    where they share experts: of a model without, they are replicas. They are no pipelines, too.
    """
    search, spec = builder.search, builder.spec
    has_experts = any(layer.experts for layer in spec.layers)
    tensors = numbers("--tp", search.tp, 1, 10_000)
    groups = numbers("--dp", search.dp, 1, 10_000) if has_experts else [1]
    stages = numbers("--pp", search.pp, 1, 10_000)
    experts = {"no": [False], "yes": [has_experts]}.get(search.ep, [False, has_experts])
    for tp, dp, pp in product(tensors, groups, stages):
        if tp * dp > sheet.link_domain or pp > spec.num_layers or not _divides(spec, tp):
            continue
        is_joined = tp * dp * pp <= sheet.link_domain or sheet.network_bandwidth
        if (dp > 1 and pp > 1) or not is_joined:
            continue
        # Groups share experts best as whole ones: parts of each are only searched if asked for.
        for expert in experts[-1:] if dp > 1 else dict.fromkeys(experts):
            if not expert or tp * dp > 1:
                yield Parallel(tensor=tp, data=dp, pipeline=pp, expert=expert)


def gpu_names(search: SearchOptions) -> list[str]:
    """The devices to consider, by the names of their sheets. Raises ConfigError."""
    if search.at_hand is not None and search.gpus == "all":
        return list(at_hand(search))
    names = split_words("--gpus", search.gpus)
    if names == ["all"]:
        return hardware_names()
    return list(dict.fromkeys(n if n.endswith(".toml") else load_hardware(n).name for n in names))


def at_hand(search: SearchOptions) -> dict[str, int]:
    """How many there are of each device; empty: as many as are wanted. Raises ConfigError."""
    counts: dict[str, int] = {}
    for word in split_words("--at-hand", search.at_hand) if search.at_hand is not None else ():
        name, _, count = (part.strip() for part in word.rpartition("="))
        if not name or not count.isdecimal() or not 0 < int(count[:9]) <= 1_000_000:
            raise ConfigError(
                f"--at-hand {word!r} is no device with a number",
                hint="write --at-hand h100=8,l40s=4",
            )
        counts[name if name.endswith(".toml") else load_hardware(name).name] = int(count)
    return counts


def _runnable(weights: Iterable[str], builder: EngineBuilder, gpu: str) -> list[str]:
    """Formats that a device runs: processors round to integers, and run what is stored."""
    if not builder.sheet(gpu).is_cpu:
        return list(weights)
    return [name for name in weights if name in ("int8", "int4", builder.spec.format)]


def _divides(spec: ModelSpec, tp: int) -> bool:
    try:
        spec.check_ranks(tp)
    except ConfigError:
        return False
    return True
