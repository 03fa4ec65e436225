"""Records an executor's passes when it starts, as configured."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from twostroke.core.config import EngineConfig
from twostroke.runtime.passes.decode_graphs import CudaCapture, graph_sizes
from twostroke.runtime.torch_executor import TorchExecutor


def record_passes(executor: TorchExecutor, config: EngineConfig) -> bool:
    """On a GPU, unless ``--enforce-eager``; they run ahead where nothing guesses further.

    Returns whether there was something to do.
    """
    if executor.model.device.type != "cuda" or config.model.enforce_eager:
        return False
    sizes = graph_sizes(config.scheduler.for_device(gpu=True).max_num_seqs)
    is_alone = config.speculation.resolve() is None
    executor.record_graphs(sizes, CudaCapture(), _shown, ahead=is_alone)
    return True


def _shown(count: int) -> Iterable[int]:
    """The numbers below ``count``, with a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        return range(count)
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(range(count), "recording CUDA graphs", console=console, transient=True)
