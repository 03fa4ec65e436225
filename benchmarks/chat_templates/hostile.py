"""What a rendering of a hostile template ends in, in a process of its own."""

from __future__ import annotations

import os
import resource
import signal
from typing import NamedTuple

from benchmarks.chat_templates.candidates import CANDIDATES, PROCESSES
from tests.text.test_template_budget import DOUBLED, LOOPS, PADDED, TWICE, USER

MEMORY_BYTES = 6 << 30
MAX_SECONDS = 15
START = "{% set ns = namespace(x='aa') %}"
SOURCES = [
    *(START + TWICE.replace("CALL", call) for call in DOUBLED),
    *(f"{{% set y = {call} %}}" for call in PADDED),
    *(START + source for source in LOOPS),
]


class Ending(NamedTuple):
    how: str  # refused, rendered, killed
    seconds: float  # of processor time, the worker's included
    peak_mb: float  # beside what the process had before, or all of a process of its own
    detail: str = ""


def attack(name: str, source: str) -> Ending:
    """Render ``source`` with the candidate ``name``, within limits that protect this machine."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _render(name, source, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if not answer:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        dead = signal.Signals(number).name if number else f"exit {os.WEXITSTATUS(status)}"
        return Ending("server dead: " + dead, seconds, usage.ru_maxrss / 1024)
    how, peak, detail = answer.split("|", 2)
    return Ending(how, seconds, float(peak), detail)


def _render(name: str, source: str, writing: int) -> None:
    """In the child; it never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        text = CANDIDATES[name](source)(USER, {})
        how, detail = "rendered", f"{len(text)} characters"
    except BaseException as error:
        how, detail = "refused", str(error).strip()[:100]
    PROCESSES.close()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    peak = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024
    os.write(writing, f"{how}|{peak:.0f}|{detail}".encode())
    os._exit(0)
