"""Runs a replay in a process of its own, with limits: the engine must not feel it.

The server imports no simulator; both know the messages. The process ends with its answer, its time,
or its caller, whichever comes first.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable

import msgspec

from twostroke.core.errors import InvalidRequestError
from twostroke.questions.replay import Failure, Replay, ReplayJob

COMMAND = (sys.executable, "-m", "twostroke.simulator.replay")
_FAILURES = msgspec.json.Decoder(Failure)  # made once: several threads read
_REPLAYS = msgspec.json.Decoder(Replay)
MAX_SECONDS = 45.0  # beside an engine that has the processor first
POLL_SECONDS = 0.25


class NobodyWaitsError(Exception):
    """The caller has left."""


class ReplayFailedError(Exception):
    """The process ended without an answer; the message is the last that it wrote."""


async def run_replay(
    job: ReplayJob,
    is_gone: Callable[[], Awaitable[bool]],
    *,
    seconds: float = MAX_SECONDS,
    poll: float = POLL_SECONDS,
) -> Replay:
    """The answer of a process of its own.

    Args:
        is_gone: Whether nobody waits for the answer any more; then the process ends.
        poll: Seconds from one look at it to the next.

    Raises:
        InvalidRequestError: It takes too long, or the replay refuses the job.
        NobodyWaitsError: ``is_gone`` said so.
        ReplayFailedError: The process failed.
    """
    # A thread waits for it: an event loop of uvloop cannot be closed beside a process of its own,
    # and a server that ends does not let a cancelled call wait for one.
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    talk = asyncio.ensure_future(asyncio.to_thread(process.communicate, msgspec.json.encode(job)))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    try:
        while not (await asyncio.wait({talk}, timeout=poll))[0]:
            if loop.time() > deadline:
                raise InvalidRequestError(
                    f"the replay of {len(job.requests):,} requests takes more than {seconds:g} s",
                    param="end",
                    hint="choose a shorter range",
                )
            if await is_gone():
                raise NobodyWaitsError
    finally:
        if not talk.done() or talk.cancelled():
            process.kill()  # the thread sees its end, and closes its pipes
        await asyncio.wait({talk})
    output, complaints = talk.result()
    return _read(output, complaints)


def _read(output: bytes, complaints: bytes) -> Replay:
    try:
        answer = msgspec.json.decode(output, type=dict[str, msgspec.Raw])
        if "failed" in answer:
            failure = _FAILURES.decode(output)
            raise InvalidRequestError(failure.failed, param="begin", hint=failure.hint or None)
        return _REPLAYS.decode(output)
    except msgspec.DecodeError:
        last = complaints.decode(errors="replace").strip().splitlines()[-1:]
        raise ReplayFailedError(*last) from None
