"""Starts the other ranks of a tensor-parallel model, where it can be one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import torch

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.distributed.rank_spec import rank_spec
from twostroke.model_spec.spec import ModelSpec
from twostroke.runtime.ranks.processes import RankProcesses, threads_of_rank

_OWN_DRAFTS = ("ngram", "suffix", "draft", "medusa")  # read nothing of the target but its states


class ModelKind(NamedTuple):
    """Attributes:
    is_foreign: Transformers' own code runs it.
    scores_pairs: See ``load_model``.
    """

    is_foreign: bool
    scores_pairs: bool


def start_ranks(
    config: EngineConfig,
    spec: ModelSpec,
    device: torch.device,
    max_model_len: int,
    opened: ExitStack,
    kind: ModelKind,
) -> RankProcesses | None:
    """The processes of all ranks but this one, or ``None`` where there is one.

    Args:
        opened: Ends them.

    Raises:
        ConfigError: The model, or what else is configured, cannot be divided.
    """
    size = config.model.tensor_parallel_size
    if size == 1:
        return None
    check_ranks(config, is_foreign=kind.is_foreign)
    rank_spec(spec, size)
    if device.type == "cuda":
        last, count = (device.index or 0) + size, torch.cuda.device_count()
        if last > count:
            raise ConfigError(
                f"--tensor-parallel-size {size} from {device} on needs {last} GPUs, and this"
                f" machine has {count}",
                hint="give a smaller one",
            )
    processes = RankProcesses(config, device, max_model_len, scores_pairs=kind.scores_pairs)
    opened.callback(processes.close)
    if device.type == "cpu":
        torch.set_num_threads(threads_of_rank(size))
    return processes


def check_ranks(config: EngineConfig, *, is_foreign: bool) -> None:
    """Raise ConfigError for what only a model in one process has."""
    speculation = config.speculation.resolve()
    method = None if speculation is None else speculation.method
    for given, what in (
        (is_foreign, "models that transformers' own code runs"),
        (
            config.needs_tiers,
            "--preemption swap, --kv-host-memory, --kv-disk, --prefill-engines and --role",
        ),
        (config.adapters.wanted, "--lora and --enable-lora"),
        (method is not None and method not in _OWN_DRAFTS, f"--speculation {method}"),
    ):
        if given:
            raise ConfigError(
                f"--tensor-parallel-size does not work with {what}",
                hint="leave one of them out",
            )
