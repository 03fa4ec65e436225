"""A job on standard input, its answer on standard output: the process of a comparison.

It has limits of its own, in case that whoever started it is gone: processor time, memory. A server
on the same processors goes first.
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec

from twostroke.core.errors import TwostrokeError
from twostroke.questions.replay import Failure, Replay, ReplayJob
from twostroke.simulator.replay.replay import replay

CPU_SECONDS = 60
MEMORY_BYTES = 4 << 30
NICENESS = 10


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ReplayJob)
    try:
        answer: Replay | Failure = replay(job)
    except TwostrokeError as error:
        answer = Failure(error.message, error.hint or "")
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
