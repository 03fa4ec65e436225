"""The processes of the ranks that follow, as the first one sees them."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from twostroke.core.config import EngineConfig
from twostroke.core.errors import EngineDeadError
from twostroke.distributed.ranks import Ranks
from twostroke.engine.process.frames import encode_frame, receive_frame
from twostroke.engine.process.process_link import how_it_ended
from twostroke.runtime.ranks.messages import (
    AllocateBlocks,
    BlocksAllocated,
    RankAnswer,
    RankIsHere,
    RankLoaded,
    RankOrder,
    RankRefused,
    StartRank,
)

MODULE = "twostroke.runtime.ranks.follow"
_ANSWERS: msgspec.msgpack.Decoder[RankAnswer] = msgspec.msgpack.Decoder(RankAnswer)
PASS_SECONDS = 60.0  # that a rank waits for another one within a pass
END_SECONDS = 5.0  # for a rank to end by itself


@dataclass(frozen=True, slots=True)
class _Follower:
    rank: int
    process: subprocess.Popen[bytes]
    connection: socket.socket


class RankProcesses:
    """Starts one process for each rank but this one, and tells them all the same.

    Raises:
        EngineDeadError: One ended at once, or did not come.
    """

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        max_model_len: int,
        *,
        scores_pairs: bool = False,
    ) -> None:
        size = config.model.tensor_parallel_size
        self._num_threads = torch.get_num_threads()
        self._failure: EngineDeadError | None = None
        self._followers: list[_Follower] = []
        self._folder = tempfile.TemporaryDirectory(prefix="twostroke-ranks-")  # 0700
        file = str(Path(self._folder.name, "ranks"))
        self._ranks: Ranks | None = None
        try:
            for rank in range(1, size):
                own = StartRank(
                    config,
                    rank,
                    file,
                    device_of_rank(device, rank),
                    max_model_len,
                    scores_pairs,
                    logging.getLogger("twostroke").getEffectiveLevel(),
                )
                self._followers.append(_start(own, size))
            self._wait_for(RankIsHere)
            self._ranks = Ranks.join(file, 0, size, PASS_SECONDS, device)
            self._folder.cleanup()  # all have met
        except BaseException:
            self.close()
            raise

    @property
    def ranks(self) -> Ranks:
        assert self._ranks is not None  # until it is closed
        return self._ranks

    def wait_until_loaded(self) -> None:
        """Raises what keeps a rank from loading its share."""
        self._wait_for(RankLoaded)

    def allocate(self, num_blocks: int) -> None:
        """Have all allocate their shares of the KV cache; raises what keeps one from it."""
        self.tell(AllocateBlocks(num_blocks))
        self._wait_for(BlocksAllocated)
        for follower in self._followers:
            follower.connection.settimeout(PASS_SECONDS)

    def part(self, error: EngineDeadError) -> EngineDeadError:
        """Tell nothing more: this rank has left a pass in which the others wait for it.

        Returns what every further order is refused with: ``error``, or one before it.
        """
        self._failure = self._failure or error
        return self._failure

    def tell(self, order: RankOrder) -> None:
        """Send an order to all; they carry out one after the other, beside this process.

        Raises:
            EngineDeadError: A process is gone.
        """
        if (failure := self._failure) is not None:
            raise EngineDeadError(failure.message, hint=failure.hint) from failure
        frame = encode_frame(order)
        for follower in self._followers:
            try:
                follower.connection.sendall(frame)
            except OSError as error:
                raise self.lost(follower) from error

    def lost(self, follower: _Follower | None = None) -> EngineDeadError:
        """What is to be raised once a pass has failed: which rank has ended, if one has."""
        deadline = time.monotonic() + 1.0  # a signal takes a moment
        while True:
            for each in self._followers:
                if (code := each.process.poll()) is not None:
                    return _dead(f"the process of rank {each.rank} {how_it_ended(code)}")
            if time.monotonic() > deadline:
                which = "a rank" if follower is None else f"the process of rank {follower.rank}"
                return _dead(f"{which} of the tensor-parallel model hangs")
            time.sleep(0.01)

    def ended(self) -> str:
        """Which process has ended without a word, if one has: no order told of it, and none can."""
        if self._failure is not None:
            return ""
        for each in list(self._followers):  # on another thread: they may be closed meanwhile
            if (code := each.process.poll()) is not None:
                return f"the process of rank {each.rank} {how_it_ended(code)}"
        return ""

    def close(self) -> None:
        """End the processes; those that do not end by themselves are killed."""
        for follower in self._followers:
            with suppress(OSError):
                follower.connection.shutdown(socket.SHUT_RDWR)
            follower.connection.close()
        deadline = time.monotonic() + END_SECONDS
        for follower in self._followers:
            try:
                follower.process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                follower.process.kill()
                follower.process.wait()
        self._followers.clear()
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = None
        torch.set_num_threads(self._num_threads)
        self._folder.cleanup()

    def _wait_for(self, wanted: type[RankIsHere | RankLoaded | BlocksAllocated]) -> None:
        for follower in self._followers:
            data = receive_frame(follower.connection)
            if data is None:
                raise self.lost(follower)
            answer: RankAnswer = _ANSWERS.decode(data)
            if isinstance(answer, RankRefused):
                raise answer.error.to_exception()
            assert isinstance(answer, wanted)


def device_of_rank(first: torch.device, rank: int) -> str:
    """Each rank has a GPU of its own, from the first one's on; all share the CPU."""
    return "cpu" if first.type == "cpu" else f"cuda:{(first.index or 0) + rank}"


def threads_of_rank(size: int) -> int:
    """Threads of each rank on a CPU."""
    return max(torch.get_num_threads() // size, 1)


def _start(start: StartRank, size: int) -> _Follower:
    ours, theirs = socket.socketpair()
    threads = {"OMP_NUM_THREADS": str(threads_of_rank(size))} if start.device == "cpu" else {}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],  # in this process's group: what kills it all, kills it, too
            env={**os.environ, **threads},
        )
    follower = _Follower(start.rank, process, ours)
    with suppress(OSError):  # it has ended; who waits for its answer says so
        ours.sendall(encode_frame(start))
    return follower


def _dead(message: str) -> EngineDeadError:
    return EngineDeadError(message, hint="see the log; restart the server")
