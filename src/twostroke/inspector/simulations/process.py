"""Answers questions of pages in processes of their own, which can be stopped.

On a thread an answer would
hold the interpreter's lock that the engine needs many times a step; a process
of low priority takes only what is left, and ends at its time limit whatever it does. It stays for a
minute, so that a page which asks often waits for no interpreter to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import weakref

import msgspec

from twostroke.core.errors import InvalidRequestError, TwostrokeError
from twostroke.questions.answering import ANSWERED, IDLE_SECONDS, REFUSED

# Modules that call ``answer_lines``. Names and no imports: they stand above the inspector.
SIMULATOR = "twostroke.simulator.answer_question"
INSIDE = "twostroke.runtime.look_inside"
MAX_SECONDS = 30.0


class SimulationError(TwostrokeError):
    """An answer took too long, or its process failed."""


class SimulationProcess:
    """Answers one question at a time, on a thread that waits.

    Args:
        max_seconds: For a question, the start of the process included.
        module: What answers.
    """

    def __init__(self, max_seconds: float = MAX_SECONDS, module: str = SIMULATOR) -> None:
        self._max_seconds, self._module = max_seconds, module
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[[subprocess.Popen[bytes]], SimulationProcess] | None = None
        self._stays_until = 0.0

    async def run(self, asked: msgspec.Struct) -> bytes:
        """The answer as JSON.

        Raises:
            InvalidRequestError: It is refused: a model that does not fit its devices.
            SimulationError: The time limit was exceeded, or the process failed.
        """
        return await asyncio.to_thread(self._run, asked)

    def close(self) -> None:
        """End the process, if there is one; another question starts a new one."""
        self._process, end = None, self._end
        if end is not None:
            end()  # once: what has ended is not kept for the interpreter's exit

    def _run(self, asked: msgspec.Struct) -> bytes:
        question = msgspec.json.encode(asked) + b"\n"
        with self._asking:
            timed_out = threading.Event()
            process = self._running()
            timer = threading.Timer(self._max_seconds, _stop, (process, timed_out))
            timer.start()
            try:
                answer = _exchange(process, question)
            finally:
                timer.cancel()
            self._stays_until = time.monotonic() + IDLE_SECONDS / 2
            if not answer.endswith(b"\n"):  # no answer, or half of one
                self.close()
        if timed_out.is_set():
            raise SimulationError(
                f"the answer took longer than {self._max_seconds:g} s and was stopped",
                hint="ask for fewer requests or tokens",
            )
        if answer.startswith(REFUSED):
            reason = msgspec.json.decode(answer[len(REFUSED) :], type=str)
            raise InvalidRequestError(reason, hint="ask for something else, or less")
        if not answer.startswith(ANSWERED):
            raise SimulationError("the answer failed; the server's log has the cause")
        return answer[len(ANSWERED) :].rstrip()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process; a new one where it has ended, or may be about to since nobody asked."""
        is_late = time.monotonic() > self._stays_until
        if self._process is None or is_late or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                (sys.executable, "-m", self._module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a terminal's Ctrl-C is the server's: it ends this one
            )
            self._end = weakref.finalize(self, _end, self._process)
        return self._process


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """The line that answers; nothing where the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended, or its pipes are closed
        process.stdin.write(question)
        process.stdin.flush()
        return process.stdout.readline()
    return b""


def _stop(process: subprocess.Popen[bytes], timed_out: threading.Event) -> None:
    timed_out.set()
    process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
