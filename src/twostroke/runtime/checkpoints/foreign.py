"""A model by transformers' code in place of ours, where the configuration wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.model_spec.reader import stated_dtype
from twostroke.models.foreign.choose import runs_by_transformers
from twostroke.observability.profile import Profiler
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.weights import check_memory, choose_dtype

if TYPE_CHECKING:
    from twostroke.models.foreign.decoder import ForeignDecoder


def load_foreign_target(
    config: EngineConfig, checkpoint: Checkpoint, device: torch.device, profiler: Profiler
) -> ForeignDecoder | None:
    """The model, or ``None`` where our own code is to run it.

    Raises:
        ConfigError: An option needs our own code.
        ModelLoadError, InsufficientMemoryError: As ``load_foreign`` and ``load_model`` say.
    """
    raw = checkpoint.config
    if not runs_by_transformers(raw, config.model.model_impl):
        return None
    _check_options(config)
    files = TensorFiles(checkpoint.tensors())
    dtype = choose_dtype(stated_dtype(raw) or files.main_dtype, config.model.dtype)
    check_memory(files.num_elements * dtype.itemsize, device)
    # Imported here: seconds that our own families do not need.
    from twostroke.models.foreign.loading import load_foreign

    return load_foreign(checkpoint.path, raw, dtype, device, profiler)


def _check_options(config: EngineConfig) -> None:
    hint = "leave it out: this model runs by transformers' code"
    if config.model.quantization is not None:
        raise ConfigError("--quantization rounds weights of twostroke's own families", hint=hint)
    speculation = config.speculation.resolve()
    if speculation is not None and speculation.method in ("early-exit", "medusa", "mtp"):
        raise ConfigError(
            f"speculation by {speculation.method} needs one of twostroke's own families", hint=hint
        )
