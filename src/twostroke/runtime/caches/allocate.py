"""The KV tensors of a model and of what drafts for it, as many blocks as fit."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from twostroke.core.config import CacheConfig, EngineConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.kv_groups import KVGroups
from twostroke.kv_cache.state_room import StateSize, state_size
from twostroke.layers.kv_layout import format_name
from twostroke.model_spec.layer_groups import LayerGroups, groups_beside
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.cache_layouts import cache_layouts
from twostroke.runtime.caches.kv_size import plan_cache_size
from twostroke.runtime.caches.largest_step import blocks_of_largest, measured_peak
from twostroke.runtime.device import release_cached_memory
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.ranks.first import FirstKV
from twostroke.runtime.ranks.processes import RankProcesses
from twostroke.runtime.speculation.drafting import DraftModel
from twostroke.runtime.state_tensors import StateTensors, stored_shapes


class Caches(NamedTuple):
    """The KV tensors of the target and of its draft model; ``block_bytes`` are of both."""

    target: KVTensors
    draft: KVTensors | None
    bytes_per_token: int
    groups: KVGroups
    block_bytes: int
    num_slots: int
    state: StateSize


def allocate_caches(
    config: EngineConfig,
    target: LanguageModel,
    draft: DraftModel | None,
    max_model_len: int,
    processes: RankProcesses | None = None,
) -> Caches:
    """Allocate as many blocks as fit, the same number for both models.

    Args:
        processes: Those that have shares of the target, which allocate as many blocks each.

    Raises:
        InsufficientMemoryError: Not even one request of ``max_model_len`` tokens fits.
    """
    block_size, cache_dtype = config.cache.block_size, config.cache.kv_format
    decoders: list[LanguageModel | DraftModel] = [target] if draft is None else [target, draft]
    formats = [format_name(cache_dtype, each.dtype) for each in decoders]
    members = _members(config, target)
    scheduler = config.scheduler.for_device(gpu=target.device.type == "cuda")
    groups = KVGroups(members.windows, scheduler.max_num_batched_tokens)
    in_slot = members.bytes_per_slot(target.spec, formats[0])
    if draft is not None:
        in_slot += draft.spec.kv_bytes_per_token(formats[1])
    block_bytes = block_size * int(in_slot)
    shapes = stored_shapes(target.state_shapes, config.cache.mamba_ssm_cache_dtype)
    state_bytes = sum(shape.nbytes for layer in shapes for shape in layer)
    bytes_per_token = sum(map(_kv_bytes_per_token, decoders, formats))
    speculation = config.speculation.resolve()
    state = state_size(config.cache, state_bytes, bytes_per_token, speculation)
    num_blocks, num_slots = plan_cache_size(
        _share_of_rank(config, target),
        block_bytes=block_bytes,
        groups=groups,
        max_model_len=max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        device=target.device,
        state=state,
        beside=_peak_beside(config, target, max_model_len, groups, processes),
    )
    kv = allocate_target(config, target, num_blocks, num_slots, processes)
    draft_kv = None
    if draft is not None:
        layouts = cache_layouts(draft.spec, cache_dtype, draft.dtype, block_size)
        draft_kv = KVTensors(layouts, num_blocks, draft.device)
    return Caches(kv, draft_kv, bytes_per_token, groups, block_bytes, num_slots, state)


def _peak_beside(
    config: EngineConfig,
    target: LanguageModel,
    length: int,
    groups: KVGroups,
    processes: RankProcesses | None,
) -> int:
    """Bytes that steps need beside the cache of a GPU; not measured where ranks share a model."""
    if target.device.type != "cuda" or processes is not None:
        return 0
    block_size = config.cache.block_size
    blocks = blocks_of_largest(config, length, block_size, groups, gpu=True)
    try:
        return measured_peak(allocate_target(config, target, blocks, 1), target, config, length)
    except torch.OutOfMemoryError as error:
        raise InsufficientMemoryError(
            "the largest step does not fit beside the weights",
            hint="lower --max-num-batched-tokens or --max-num-seqs",
        ) from error
    finally:
        release_cached_memory()  # it would count as taken


def allocate_target(
    config: EngineConfig,
    target: LanguageModel,
    num_blocks: int,
    num_slots: int = 0,
    processes: RankProcesses | None = None,
) -> KVTensors:
    """The KV tensors of a model, or of one rank's share of it.

    Args:
        num_slots: Slots of recurrent state.
        processes: Those of the other ranks, which do the same.
    """
    size, device = config.cache.block_size, target.device
    layouts = cache_layouts(target.spec, config.cache.kv_format, target.dtype, size)
    shapes = stored_shapes(target.state_shapes, config.cache.mamba_ssm_cache_dtype)
    states = StateTensors(shapes, num_slots, device)
    layers = _members(config, target).layers
    if processes is None:
        return KVTensors(layouts, num_blocks, device, layers, states, size)
    processes.allocate(num_blocks)
    return FirstKV(processes, layouts, num_blocks, device, layers, states, size)


def _members(config: EngineConfig, target: LanguageModel) -> LayerGroups:
    speculation = config.speculation.resolve()
    return groups_beside(target.spec, None if speculation is None else speculation.method)


def _share_of_rank(config: EngineConfig, target: LanguageModel) -> CacheConfig:
    """What one rank may take: on a CPU, all ranks together take what is configured."""
    cache, ranks = config.cache, config.model.tensor_parallel_size
    if ranks == 1:
        return cache
    memory = None if cache.kv_cache_memory is None else cache.kv_cache_memory // ranks
    share = cache.memory_share / ranks if target.device.type == "cpu" else cache.memory_share
    return replace(cache, kv_cache_memory=memory, memory_share=share)


def _kv_bytes_per_token(model: LanguageModel | DraftModel, format_: str) -> int:
    return int(model.spec.kv_bytes_per_token(format_))
