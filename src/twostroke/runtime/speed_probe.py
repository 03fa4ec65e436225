"""How fast a device is now: a product limited by arithmetic, a copy limited by memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

ROWS, WIDTH = 256, 1024
# Larger than any cache: 64 MiB read, 64 MiB written.
COPIED = 1 << 26
PRODUCTS, COPIES, TRIES = 9, 5, 3
# Large enough for all threads to have a part, small enough for the second-level cache.
SMALL = 384


class SpeedProbe:
    """Measures the speed of a device with known work.

    A call takes some 50 ms on two cores; ``flops`` alone about two. Threads are PyTorch's, as the
    engine's are.

    Args:
        device: What the engine runs on.

    Attributes:
        gpu: What the device calls itself; empty for a processor.
        threads: That compute on a processor.
        torch: Its version.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self.gpu = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else ""
        self.threads = torch.get_num_threads()
        self.torch = str(torch.__version__)
        dtype = _fast_dtype(self._device)
        self._left = torch.ones(ROWS, WIDTH, dtype=dtype, device=self._device)
        self._right = torch.ones(WIDTH, WIDTH, dtype=dtype, device=self._device)
        self._product = torch.empty(ROWS, WIDTH, dtype=dtype, device=self._device)
        self._small = torch.ones(SMALL, SMALL, dtype=dtype, device=self._device)
        self._small_product = torch.empty_like(self._small)
        self._source = torch.ones(COPIED, dtype=torch.uint8, device=self._device)
        self._target = torch.ones(COPIED, dtype=torch.uint8, device=self._device)
        self()  # the first of each pays for setting up

    def __call__(self) -> tuple[float, float]:
        """FLOP/s and bytes/s (read and written): medians of several products and copies."""
        flops = median(self.flops() for _ in range(PRODUCTS))
        return flops, median(2 * COPIED / self._seconds(self._copy) for _ in range(COPIES))

    def keep_busy(self, seconds: float) -> None:
        """Compute with all threads for about so long, on data so small that caches keep theirs.

        A hypervisor may move a virtual core that sleeps, and let two of them share a physical one
        from then on.
        """
        until, shortest = time.perf_counter() + seconds, 0.0
        while (left := until - time.perf_counter()) > 0:
            if left > shortest:  # else it would end too late, by a millisecond where cores are slow
                took = self._seconds(self._multiply_small)
                shortest = min(took, shortest or took)

    def flops(self) -> float:
        """FLOP/s of the best of a few products, the first of which finds its matrices in no cache.

        Short enough to be asked between two steps, and leaves most of the last cache alone.
        """
        return 2 * ROWS * WIDTH * WIDTH / min(self._seconds(self._multiply) for _ in range(TRIES))

    def _multiply(self) -> None:
        torch.mm(self._left, self._right, out=self._product)

    def _multiply_small(self) -> None:
        torch.mm(self._small, self._small, out=self._small_product)

    def _copy(self) -> None:
        self._target.copy_(self._source)

    def _seconds(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - began


def _fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the processor multiplies it.

    PyTorch's emulation is a hundred times slower (AVX2: 0.9 GFLOP/s).

    Speeds are only ever compared with others of the same machine.
    """
    return (
        torch.bfloat16
        if device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        else torch.float32
    )
