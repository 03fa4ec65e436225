"""Which device to run on, and how much memory it has left."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import psutil
import torch
from torch import Tensor

from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.core.freed_memory import return_freed_memory
from twostroke.core.operator.host_memory import free_host_memory


def resolve_device(name: str) -> torch.device:
    """The device of ``--device``; ``auto`` takes the first GPU where there is one.

    Raises:
        ConfigError: There is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"unknown device {name!r}", hint="give --device auto, cpu, cuda or cuda:N"
        ) from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ConfigError(
            f"device {name!r} is not supported", hint="give --device auto, cpu, cuda or cuda:N"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            "no CUDA device is available",
            hint="give --device cpu, or install a PyTorch with CUDA and check nvidia-smi",
        )
    index = device.index or 0
    if index >= torch.cuda.device_count():
        message = f"there is no {name}: this machine has {torch.cuda.device_count()} CUDA devices"
        raise ConfigError(message, hint="give --device cuda:N with a smaller N")
    return torch.device("cuda", index)


def name_of_gpu(name: str) -> str:
    """What the GPU of ``--device`` calls itself."""
    return torch.cuda.get_device_name(resolve_device(name))


def clock_of(device: torch.device) -> Callable[[], float]:
    """A clock that waits until the device has done all work that was started."""

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one in here: Triton's kernels, graphs and events go to that."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Integers as int64 on a device; what runs there is not waited for."""
    tensor = torch.tensor(numbers, dtype=torch.int64)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on ``device``, within the limits of control groups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host_memory()


def held_memory(device: torch.device) -> int:
    """Bytes of a GPU that this process's tensors hold, with what PyTorch keeps for more."""
    return int(torch.cuda.memory_reserved(device))


def begin_peak(device: torch.device) -> int:
    """Forget the peak of a GPU's tensors. Returns the bytes that they take now."""
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def peak_memory(device: torch.device) -> int:
    """The most bytes that a GPU's tensors took since ``begin_peak``."""
    return int(torch.cuda.max_memory_allocated(device))


def total_memory(device: torch.device) -> int:
    """Bytes of memory that ``device`` has."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(psutil.virtual_memory().total)


def release_cached_memory() -> None:
    """Give back what allocators keep of freed memory: it counts as taken.

    These are torch's on a GPU and the C library's.

    Weights that are read, packed and dropped leave holes in glibc's heaps, 200 MiB of a 665 MiB
    model.
    """
    if torch.cuda.is_available() and torch.cuda.memory_reserved():
        torch.cuda.empty_cache()
    return_freed_memory()


def memory_error(error: Exception) -> InsufficientMemoryError | None:
    """The typed error if memory ran out; ``None`` if this error says something else.

    Memory runs out with one of torch's two errors, Python's, or the operating system's.
    """
    of_the_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    ours = isinstance(error, torch.OutOfMemoryError | MemoryError) or of_the_system
    if ours or "DefaultCPUAllocator" in str(error):
        hint = (
            "lower --max-num-batched-tokens or --max-prefill-chunk, or leave more memory beside the"
            " KV cache"
        )
        return InsufficientMemoryError("the step needs more memory than there is", hint=hint)
    return None
