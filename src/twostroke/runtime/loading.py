"""From a configuration to an executor: model, KV tensors, and the hooks that join its steps."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import torch

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.checkpoints.samples import sample_checkpoint
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.errors import ConfigError
from twostroke.core.kv_groups import STATE_KEY_BYTES
from twostroke.core.operator.sampling_defaults import read_overrides
from twostroke.core.pooling import PoolingAbility
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.check_states import check_states, check_without_states
from twostroke.engine.executor import ExecutorInfo
from twostroke.kernels.library import load_library
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_tiers.block_file import KEY_BYTES, BlockKind
from twostroke.kv_tiers.open_tiers import open_transfers
from twostroke.kv_tiers.transfers import Transfers
from twostroke.model_spec.generation_config import read_sampling_defaults
from twostroke.model_spec.spec import ModelSpec
from twostroke.model_spec.vectors.pooling_ability import read_pooling_ability
from twostroke.model_spec.vectors.score_head import with_scores
from twostroke.models.foreign.decoder import ForeignDecoder
from twostroke.models.language_model import LanguageModel
from twostroke.models.support import read_runnable
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.runtime.adapters.open_store import adapter_places, open_store
from twostroke.runtime.adapters.places import AdapterPlaces
from twostroke.runtime.adapters.store import AdapterStore
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.block_bytes import BlockAndStateBytes, BlockBytes
from twostroke.runtime.caches.allocate import Caches, allocate_caches
from twostroke.runtime.checkpoints.foreign import load_foreign_target
from twostroke.runtime.constraints.states import ConstraintStates
from twostroke.runtime.device import release_cached_memory, resolve_device
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.hooks.make_hooks import make_hooks
from twostroke.runtime.hooks.vectors import Vectors
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.passes.record import record_passes
from twostroke.runtime.phase_clock import PhaseClock
from twostroke.runtime.ranks.first import FirstBackend, FirstModel, OtherRanks
from twostroke.runtime.ranks.processes import RankProcesses
from twostroke.runtime.ranks.start import ModelKind, start_ranks
from twostroke.runtime.speculation.drafting import DraftModel, load_draft, load_heads, make_proposer
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.runtime.vectors.dense_modules import DenseModules
from twostroke.runtime.vectors.scoring import ScoreHead
from twostroke.runtime.weights import load_model
from twostroke.spec_decode.base import Proposer
from twostroke.spec_decode.choose import synthetic_acceptance
from twostroke.spec_decode.medusa import MedusaHeads


class _Models(NamedTuple):
    """What computes: the target, and what drafts for it; ``draft`` with a cache of its own."""

    target: LanguageModel
    draft: DraftModel | None
    heads: MedusaHeads | None

    @property
    def weight_bytes(self) -> int:
        draft = 0 if self.draft is None else self.draft.weight_bytes
        return self.target.weight_bytes + draft + (self.heads.nbytes if self.heads else 0)


class _Target(NamedTuple):
    """``scores_pairs`` and ``places``: see ``load_model``."""

    checkpoint: Checkpoint
    spec: ModelSpec
    device: torch.device
    max_model_len: int
    scores_pairs: bool
    places: AdapterPlaces | None


def load_torch_executor(
    config: EngineConfig,
    checkpoint: Checkpoint | None = None,
    *,
    profiler: Profiler = NO_PROFILE,
    grammars: GrammarCompiler | None = None,
    adapters: Adapters | None = None,
) -> TorchExecutor:
    """Find, check and load the model that ``config`` names, and allocate the KV cache.

    Args:
        checkpoint: If it was found already (a Hub id costs a request).
        profiler: Measures the parts of each step.
        grammars: For requests whose answers have a form; without it, they fail.
        adapters: Those that requests may name, which are loaded here; by default as configured.

    Raises:
        ConfigError: The device does not exist, ``max_model_len`` exceeds the model's context
            length, or the model cannot be run as configured.
        ModelLoadError: The checkpoint is missing, broken or not supported.
        InsufficientMemoryError: Weights, or the KV cache of one full-length request, do not fit.
    """
    with ExitStack() as opened:  # what must be ended if the rest fails
        executor = _load(config, checkpoint, profiler, grammars, adapters, opened)
        opened.pop_all()
        return executor


def _load(
    config: EngineConfig,
    checkpoint: Checkpoint | None,
    profiler: Profiler,
    grammars: GrammarCompiler | None,
    adapters: Adapters | None,
    opened: ExitStack,
) -> TorchExecutor:
    clock = PhaseClock()
    device = resolve_device(config.model.device)
    checkpoint = checkpoint or find_checkpoint(config.model.model, config.model.revision)
    spec, foreign = _read_spec(config, checkpoint, device, profiler)
    defaults, max_new_tokens = _sampling_defaults(config.model, checkpoint)
    max_model_len = _max_model_len(config.model.max_model_len, spec)
    score_head = ScoreHead.load(checkpoint, spec.hidden_size, device)
    is_foreign = foreign is not None
    kind = ModelKind(is_foreign=is_foreign, scores_pairs=score_head is not None)
    processes = start_ranks(config, spec, device, max_model_len, opened, kind)
    _share_threads(device)
    clock.mark("config")
    places = adapter_places(config.adapters, is_foreign=is_foreign)
    wanted = _Target(checkpoint, spec, device, max_model_len, score_head is not None, places)
    target = foreign or _load_target(config, wanted, profiler, processes)
    store = open_store(config.adapters, target, places, adapters)
    models = _complete(config, checkpoint, target, max_model_len)
    release_cached_memory()  # what loading used for a moment counts as taken otherwise
    clock.mark("weights")
    caches = allocate_caches(config, target, models.draft, max_model_len, processes)
    model_id = _model_id(config, checkpoint, target, caches.target, max_model_len)
    pooling = _pooling(config.model, checkpoint, spec)
    vectors = Vectors(DenseModules.load(checkpoint.path, pooling, device), score_head)
    transfers, num_parts = _open_transfers(config, model_id, caches)
    clock.mark("kv_cache")
    info = replace(
        _describe(spec, models, caches, max_model_len),
        model_id=model_id,
        sampling_defaults=defaults,
        max_new_tokens=max_new_tokens,
        generates=score_head is None and _generates(config.model, target, spec),
        pooling=pooling,
        device=str(device),
        runs_ahead=_runs_ahead(config, target, profiler),
        num_state_parts=num_parts,
        tiers=_tier_infos(transfers, caches.target),
        load_seconds=clock.seconds,
    )
    hooks = _hooks(config, models, caches, transfers, grammars, vectors, store)
    if processes is not None:
        hooks.insert(0, OtherRanks(processes))
    backend = attention_backend(target.spec, caches.target)
    backend = backend if processes is None else FirstBackend(backend)
    executor = TorchExecutor(target, caches.target, backend, info, hooks, profiler)
    return record_passes(executor, config, profiler, clock)


def _runs_ahead(config: EngineConfig, model: LanguageModel, profiler: Profiler) -> bool:
    """Whether steps are launched ahead: on a GPU that does not wait for the host in passes."""
    on_gpu, is_asked = model.device.type == "cuda", config.scheduler.async_scheduling
    return on_gpu and is_asked and not model.asks_host and profiler is NO_PROFILE


def _hooks(
    config: EngineConfig,
    models: _Models,
    caches: Caches,
    transfers: Transfers | None,
    grammars: GrammarCompiler | None,
    vectors: Vectors,
    store: AdapterStore | None,
) -> list[PassHook]:
    """All that joins the steps, with what guesses tokens ahead."""
    proposer = _make_proposer(config, models, caches)
    acceptance = synthetic_acceptance(config.speculation.resolve())
    target = models.target
    constraints = ConstraintStates(grammars, target.spec.vocab_size, target.device)
    return make_hooks(transfers, proposer, acceptance, constraints, vectors, store)


def _generates(options: ModelOptions, model: LanguageModel, spec: ModelSpec) -> bool:
    """Whether it is to write text, and can: a model without a language head loads as if tied."""
    return options.runner != "pooling" and model.spec.tied == spec.tied


def _read_spec(
    config: EngineConfig, checkpoint: Checkpoint, device: torch.device, profiler: Profiler
) -> tuple[ModelSpec, ForeignDecoder | None]:
    """What the model consists of; and the model itself, if transformers' code runs it."""
    foreign = load_foreign_target(config, checkpoint, device, profiler)
    spec = read_runnable(checkpoint) if foreign is None else foreign.spec
    (check_states if spec.state_bytes() else check_without_states)(config)
    return spec, foreign


def _describe(spec: ModelSpec, models: _Models, caches: Caches, max_model_len: int) -> ExecutorInfo:
    """What follows from the weights and the cache alone."""
    kv = caches.target
    return ExecutorInfo(
        model_id="",
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        num_blocks=kv.num_blocks,
        block_size=kv.block_size,
        kv_bytes_per_token=caches.bytes_per_token,
        kv_groups=caches.groups,
        kv_block_bytes=caches.block_bytes,
        num_state_slots=caches.num_slots,
        state_spacing=caches.state.spacing or 1,
        kv_cache_dtype=kv.format,
        weight_bytes=models.weight_bytes,
        eos_token_ids=frozenset(spec.eos_token_ids),
    )


def _pooling(options: ModelOptions, checkpoint: Checkpoint, spec: ModelSpec) -> PoolingAbility:
    ability = read_pooling_ability(checkpoint.path, checkpoint.config, spec.hidden_size, options)
    return with_scores(ability, checkpoint.config, options)


def _sampling_defaults(
    options: ModelOptions, checkpoint: Checkpoint
) -> tuple[dict[str, float], int | None]:
    """What the model's makers and the operator recommend, and the operator's bound of answers."""
    overrides = read_overrides(options.override_generation_config)
    recommended = {}
    if options.generation_config == "auto":
        recommended = read_sampling_defaults(checkpoint.generation, checkpoint.path)
    return overrides.over(recommended), overrides.max_new_tokens


def _model_id(
    config: EngineConfig,
    checkpoint: Checkpoint,
    model: LanguageModel,
    kv: KVTensors,
    max_model_len: int,
) -> str:
    options = config.model
    states = " ".join(str(tensor.dtype) for tensor in kv.recurrent.tensors()[:2])
    precision = f"{model.dtype} {options.quantization} {kv.format} {_arithmetic(model)} {states}"
    if options.tensor_parallel_size > 1:
        precision += f" {options.tensor_parallel_size} ranks"
    ropes = [own.rope for layer in model.spec.layers if (own := layer.attention)]
    if any(rope.has_long_factors(max_model_len) for rope in ropes if rope):
        precision += " long factors"
    if config.transfer.is_between_machines:
        return content_fingerprint(checkpoint, precision)
    return model_fingerprint(checkpoint, precision)


def _share_threads(device: torch.device) -> None:
    """Our kernels take as many threads as PyTorch's."""
    if device.type == "cpu" and (library := load_library()) is not None:
        library.set_num_threads(torch.get_num_threads())


def _make_proposer(config: EngineConfig, models: _Models, caches: Caches) -> Proposer | None:
    speculation = config.speculation.resolve()
    if speculation is None:
        return None
    own = None
    if models.draft is not None and caches.draft is not None:
        own = (models.draft, caches.draft)
    return make_proposer(speculation, models.target, caches.target, own, models.heads)


def _load_target(
    config: EngineConfig, wanted: _Target, profiler: Profiler, processes: RankProcesses | None
) -> LanguageModel:
    """The model, or with ``processes`` this rank's share of it, which tells them of its passes."""
    model = load_model(
        wanted.checkpoint,
        wanted.spec,
        config.model.dtype,
        wanted.device,
        wanted.max_model_len,
        config.model.quantization,
        profiler,
        kv_format=config.cache.kv_format,
        scores_pairs=wanted.scores_pairs,
        places=wanted.places,
        group=None if processes is None else processes.ranks,
    )
    if processes is None:
        return model
    processes.wait_until_loaded()
    return FirstModel(model, processes)


def _complete(
    config: EngineConfig, checkpoint: Checkpoint, target: LanguageModel, max_model_len: int
) -> _Models:
    """The target with its draft model and its heads, where there are some."""
    draft = load_draft(config, checkpoint, target, max_model_len)
    return _Models(target, draft, load_heads(config, checkpoint, target))


def _tier_infos(transfers: Transfers | None, kv: KVTensors) -> list[TierInfo]:
    if transfers is None:
        return []
    states_alone = not kv.block_tensors()
    return [replace(info, states_alone=states_alone) for info in transfers.infos]


def _open_transfers(
    config: EngineConfig, model_id: str, caches: Caches
) -> tuple[Transfers | None, int]:
    """The tiers below the target's cache, and how many of their blocks a recurrent state takes.

    They are opened after all that can fail: that locks a folder.

    A draft model's keys and values are not kept there: when a block is full, it may have computed
    none of them.
    """
    if not config.needs_tiers:
        return None, 0
    kv, num_parts = caches.target, 0
    tensors = kv.block_tensors()
    blocks = BlockBytes(tensors) if tensors else None
    key_bytes = KEY_BYTES + (caches.groups.count > 1)
    memory: BlockBytes | BlockAndStateBytes
    if blocks is None or kv.recurrent.exist:
        memory = BlockAndStateBytes(blocks, kv.num_blocks, kv.recurrent.tensors())
        num_parts, key_bytes = memory.num_parts, key_bytes + STATE_KEY_BYTES
    else:
        memory = blocks
    size, length = config.cache.block_size, memory.block_bytes
    kind = BlockKind(model_id, memory.format, size, length, key_bytes)
    on_gpu = kv.device.type != "cpu"
    return open_transfers(
        config.tiers, memory, kind, on_gpu=on_gpu, exchange=config.transfer
    ), num_parts


def _max_model_len(wanted: int | None, model: ModelSpec) -> int:
    if wanted is None:
        return model.context_length
    if wanted > model.context_length:
        raise ConfigError(
            f"--max-model-len {wanted} exceeds the model's context length of {model.context_length}"
            " tokens",
            hint=f"give --max-model-len {model.context_length} or less",
        )
    return wanted


def _arithmetic(model: LanguageModel) -> str:
    """What computes keys and values: other kernels round them otherwise, and a block that outlives
    the process must not meet theirs.
    """
    if model.kernels is not None:
        return model.kernels.instruction_set
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    return f"{model.device.type} {torch.backends.cpu.get_cpu_capability()}"


def model_fingerprint(checkpoint: Checkpoint, precision: str) -> str:
    """Name and fingerprint: paths, sizes and times of the files, and how they are computed with.

    Hashing weights would be slow.
    """
    digest = hashlib.sha256(precision.encode())
    for path in checkpoint.files:
        stat = path.stat()
        digest.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return f"{checkpoint.path.resolve().name}@{digest.hexdigest()[:16]}"


def content_fingerprint(checkpoint: Checkpoint, precision: str) -> str:
    """A fingerprint that is the same wherever the files are."""
    digest = hashlib.sha256(precision.encode())
    for sample in sample_checkpoint(checkpoint):
        digest.update(sample)
    return digest.hexdigest()[:32]
