"""Runs the command line on hostile input, and states what any outcome must look like."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import psutil

from twostroke.cli.main import run

# After which a command hangs, also on a busy machine.
SECONDS = 30
# What a command may allocate beyond what the process has: asking for more fails.
ALLOWED_BYTES = 2 * 2**30
GROWTH_BYTES = 2**29


class Outcome(NamedTuple):
    """What one command line led to."""

    code: int
    stderr: str


class HungError(BaseException):
    """The command did not end in time; no handler of the command may take it for its own."""


def outcome(*arguments: str) -> Outcome:
    """Run a command; fails unless it succeeds, or says ``error:`` and ``hint:`` and nothing else.

    Exceptions that leave the command, hangs and gigabytes fail, too.
    """
    # As strict about letters as a terminal is.
    stdout, stderr = TextIOWrapper(BytesIO(), "utf-8"), StringIO()
    with _bounded(arguments), redirect_stdout(stdout), redirect_stderr(stderr):
        code = run(arguments)
        stdout.flush()
    result = Outcome(code, stderr.getvalue())
    where = (arguments, result)
    assert result.code in (0, 1, 2), where
    assert "Traceback" not in result.stderr, where
    if result.code:
        lines = result.stderr.rstrip("\n").split("\n")
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1 and len(errors[0]) > len("error: "), where
        after = lines[lines.index(errors[0]) + 1 :]
        assert len(after) == 2 and not after[0] and after[1].startswith("hint: "), where
        # A refusal names what it refuses, and does not repeat a megabyte of it.
        assert len(result.stderr) < 5000, where
    return result


@contextmanager
def _bounded(arguments: Sequence[str]) -> Iterator[None]:
    def give_up(signum: int, frame: FrameType | None) -> None:
        raise HungError(f"{SECONDS} s and no end: {arguments}")

    process = psutil.Process()
    before = process.memory_info()
    old_limits = resource.getrlimit(resource.RLIMIT_AS)
    old_handler = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (before.vms + ALLOWED_BYTES, old_limits[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, old_limits)
        signal.signal(signal.SIGALRM, old_handler)
    growth = process.memory_info().rss - before.rss
    assert growth < GROWTH_BYTES, (arguments, f"{growth / 2**20:.0f} MiB kept")


def hostile_paths(folder: Path, *, make: bool = True) -> list[str]:
    """Names of things that are no readable file; some are made in ``folder``."""
    if make and not folder.exists():
        folder.mkdir()
        os.mkfifo(folder / "fifo")
        (folder / "a folder").mkdir()
        (folder / "empty").write_bytes(b"")
        unreadable = folder / "unreadable"
        unreadable.write_text("x")
        unreadable.chmod(0)
        (folder / "loop").symlink_to(folder / "loop")
        (folder / "binary").write_bytes(bytes(range(256)) * 64)
    names = ["fifo", "a folder", "empty", "unreadable", "loop", "binary", "missing", "empty/x"]
    return [
        *(str(folder / name) for name in names),
        *("", "/", ".", "~nobody-of-that-name/x", "x" * 300, "x/" * 3000, "\N{SNOWMAN}", "a\nb"),
        *("/dev/zero", "/dev/full", "/proc/self/mem", "\udcff"),
    ]


NUMBERS = (
    *("0", "-1", "1", "2", "10000000000000000000000", "1" * 5000, "1e400", "-1e400", "1e-400"),
    *("nan", "-nan", "inf", "-inf", "0x10", "1_000", "1.5", "1e3", "\u0661\u0662", "+3", " 4 "),
    *("", "x", "\N{SNOWMAN}", "None", "true", "-", "--", "1,2", "a\nb", "\udcff"),
)
TEXTS = (
    *("", " ", "x" * 100_000, "\N{SNOWMAN}", "a\nb", "\udcff", "-", "--", "=", ":", ","),
    *("auto", "none", "nan", "{}", "[", "%s", "../..", "a=b", "ttft=nan", "ttft=inf", "ttft=0"),
    *("rate=1:1e300", "rate=nan:inf", "rate=0:1", "rate=1:2:1e9", "tp=1.5", "seed=" + "9" * 5000),
    *("ttft:nan", "ttft:1e400", "50,50", "0,100", "\u0665", "1" * 5000),
)
