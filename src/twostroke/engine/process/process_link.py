"""An engine in a process of this machine, which the front end starts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from twostroke.core.config import EngineConfig
from twostroke.core.errors import EngineDeadError
from twostroke.engine.messages import Close
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.frames import encode_frame, has_come, receive_frame
from twostroke.engine.process.handshake import EngineRefused, StartAnswer, StartEngine
from twostroke.engine.process.socket_link import SocketLink
from twostroke.engine.process.start_watch import PATIENCE, StartWatch

MODULE = "twostroke.engine_process"
END_SECONDS = 30.0  # for the step that runs when the engine is closed
_ANSWERS: msgspec.msgpack.Decoder[StartAnswer] = msgspec.msgpack.Decoder(StartAnswer)
PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class ProcessLink(SocketLink):
    """An engine in another process, over a pair of sockets."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        super().__init__(connection)
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        return f"process {self.pid}"

    def why_ended(self) -> str | None:
        code = self._process.poll()
        return None if code is None else f"the engine's process {how_it_ended(code)}"

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it with the processes of its group: ranks that compute with it."""
        if self._process.poll() is None:  # else its number may be another's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.send(Close())
        self._closed = True
        deadline = time.monotonic() + END_SECONDS
        while not self.wait(0.02):
            if time.monotonic() > deadline:
                self.kill()
            # Its last outputs are dropped; it must not wait for room in the socket.
            while self._receive():
                pass
        self._release()


class ProcessSource(NamedTuple):
    """Implements ``EngineSource``: each engine is a process of its own.

    Attributes:
        alone: There is no other engine beside it: a server that has none says so, and ends its
            attempts. Beside others it is started again and again.
    """

    settings: StartEngine
    alone: bool = True

    @property
    def config(self) -> EngineConfig:
        return self.settings.config

    @property
    def pauses(self) -> Sequence[float]:
        return PAUSES

    @property
    def gives_up(self) -> bool:
        return self.alone

    @property
    def again(self) -> str:
        return "it is started again"

    def start(self) -> StartedEngine:
        return start_engine(self.settings)


def start_engine(start: StartEngine) -> StartedEngine:
    """Start an engine in a process of its own, and wait until it is ready.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: The engine cannot be started.
        EngineDeadError: Its process ended, or hung, before it was ready.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = theirs.fileno()
        # -P: a file in the current folder that is called like a module must not be run. A session
        # of its own: what a terminal sends to the server's group is the server's.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(descriptor)],
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,
            env=_environment(start.num_threads),
        )
    try:
        ours.sendall(encode_frame(start))
        _wait_for_answer(ours, process.pid)
        data = receive_frame(ours)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # it is not reaped: the number is still its own
        process.wait()
        ours.close()
        raise
    if data is None:
        code = process.wait()
        ours.close()
        raise EngineDeadError(
            f"the engine's process {how_it_ended(code)} before it was ready", hint="see the log"
        )
    answer = _ANSWERS.decode(data)
    if isinstance(answer, EngineRefused):
        process.wait()
        ours.close()
        raise answer.to_exception()
    return StartedEngine(ProcessLink(process, ours), answer.facts)


def _wait_for_answer(connection: socket.socket, pid: int) -> None:
    """Raises ``EngineDeadError`` if the process stops to work before it has said anything."""
    watch = StartWatch(pid, PATIENCE)
    while not has_come(connection, 1.0):
        if watch.hangs():
            raise EngineDeadError(
                f"the engine's process did nothing for {PATIENCE:g} s while it started",
                hint="see the log; something may have stopped it",
            )


def _environment(num_threads: int) -> dict[str, str]:
    """Set a number of threads, unless the user has set one."""
    wanted = {"OMP_NUM_THREADS": str(num_threads)} if num_threads else {}
    return {**wanted, **os.environ}


def how_it_ended(code: int) -> str:
    """The end of a sentence about a process: which signal or status ended it."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"
