"""Records an executor's passes when it starts, as configured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import torch

from twostroke.core.config import EngineConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.runtime.device import as_current
from twostroke.runtime.passes.decode_graphs import Capture, CudaCapture, graph_sizes
from twostroke.runtime.phase_clock import PhaseClock
from twostroke.runtime.torch_executor import TorchExecutor


def record_passes(
    executor: TorchExecutor, config: EngineConfig, profiler: Profiler, clock: PhaseClock
) -> TorchExecutor:
    """On a GPU, unless ``--enforce-eager``.

    Not under a profiler, which measures each part of a pass. Returns the executor.
    """
    on_gpu = executor.model.device.type == "cuda"
    if not on_gpu or config.model.enforce_eager or profiler is not NO_PROFILE:
        return executor
    sizes = graph_sizes(config.scheduler.for_device(gpu=True).max_num_seqs)
    try:
        record_graphs(executor, sizes, CudaCapture(), _shown)
    except torch.OutOfMemoryError as error:
        executor.close()
        raise InsufficientMemoryError(
            "there is too little memory beside the KV cache to record decode passes",
            hint="lower --gpu-memory-utilization or --max-num-seqs, or give --enforce-eager",
        ) from error
    except BaseException:
        executor.close()
        raise
    clock.mark("cuda_graphs")
    return executor


def record_graphs(
    executor: TorchExecutor,
    sizes: Sequence[int],
    capture: Capture,
    progress: Callable[[int], Iterable[int]] = range,
) -> None:
    """Record passes over one token of each request, if the model allows.

    Args:
        sizes: The numbers of requests, rising.
        progress: Gives the numbers below one, as each is to be recorded.
    """
    with as_current(executor.model.device):
        executor.passes.record(sizes, capture, progress, executor.info.max_model_len)


def _shown(count: int) -> Iterable[int]:
    """The numbers below ``count``, with a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        return range(count)
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(range(count), "recording CUDA graphs", console=console, transient=True)
