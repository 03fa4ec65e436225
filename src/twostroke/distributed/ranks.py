"""The processes that compute one model together, and what they exchange within a pass.

Tensor parallelism (Megatron-LM, arXiv:1909.08053): each process has some of the heads and some of
the columns of every MLP. What the branches of a layer add is then the sum over all processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from twostroke.core.errors import ConfigError, EngineDeadError


class Ranks:
    """One process's place among those that share a model. All of them call everything, in turn.

    Args:
        group: Their process group; its time limit ends a call that another process does not join.

    Attributes:
        rank: Which of them this is, from 0.
        size: How many they are.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank, self.size = group.rank(), group.size()

    @classmethod
    def join(cls, file: str, rank: int, size: int, seconds: float, device: torch.device) -> Ranks:
        """Meet the others at a file that only they may write.

        Raises:
            ConfigError: This process has joined others before.
            EngineDeadError: Some process did not come within ``seconds``.
        """
        if dist.is_initialized():
            raise ConfigError(
                "this process is part of a group of torch.distributed already",
                hint="load a second tensor-parallel model in a process of its own",
            )
        backend = "nccl" if device.type == "cuda" else "gloo"
        # What ranks of one machine exchange is not to be had from others.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        with _lost_process():
            dist.init_process_group(
                backend,
                init_method=f"file://{file}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=seconds),
            )
            group = dist.group.WORLD
            assert group is not None  # as it has just been made
            ranks = cls(group)
        ranks.all_true(True)  # none needs the file any more
        return ranks

    def sum(self, part: Tensor) -> Tensor:
        """The sum of every process's ``part``, float32, in the order of ranks.

        So the sum of an element depends on nothing but the parts, as exactness asks for: a ring
        adds the elements of a long tensor in different orders.
        """
        parts = self._gather(part.float().contiguous())
        total = parts[0]
        for other in parts[1:]:
            total = total + other
        return total

    def join_columns(self, part: Tensor) -> Tensor:
        """Every process's ``part`` [rows, columns] side by side, in the order of ranks."""
        return torch.cat(self._gather(part.contiguous()), -1)

    def from_first(self, tensor: Tensor) -> Tensor:
        """What the first process gives; the others' ``tensor`` is overwritten with it."""
        with _lost_process():
            dist.broadcast(tensor.view(torch.uint8), 0, self._group)  # any precision
        return tensor

    def all_true(self, is_true: bool) -> bool:
        """Whether it holds in every process."""
        with _lost_process():
            flag = torch.tensor([int(is_true)], dtype=torch.int32, device=self._device())
            dist.all_reduce(flag, dist.ReduceOp.MIN, self._group)
        return bool(flag.item())

    def leave(self) -> None:
        """Let go of the connections; what another process waits for in vain fails there."""
        dist.destroy_process_group(self._group)

    def _gather(self, part: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with _lost_process():
            dist.all_gather(parts, part, self._group)
        return parts

    def _device(self) -> torch.device:
        on_gpu = dist.get_backend(self._group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


@contextmanager
def _lost_process() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of torch.distributed, which has no kinds
        raise EngineDeadError(
            f"a process of the tensor-parallel model is gone or hangs: {error}",
            hint="see the log; restart the server",
        ) from error
