"""Files with a few bytes changed, for the readers' tests.

``TWOSTROKE_FUZZ_EXAMPLES=100000 pytest -k mutated`` tries as many of each.
"""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError


def num_examples(default: int) -> int:
    return int(os.environ.get("TWOSTROKE_FUZZ_EXAMPLES", default))


def mutated(data: bytes, seed: int) -> bytes:
    """With a few bytes or numbers changed, cut out or put in, mostly within the head."""
    chance, changed = random.Random(seed), bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(changed), 700) if chance.random() < 0.9 else len(changed))
        kind = chance.randrange(5)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            value = chance.choice(
                [0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1, chance.getrandbits(64)]
            )
            changed[at : at + 8] = struct.pack("<Q", value)
        elif kind == 2:
            del changed[at : at + chance.randint(1, 40)]
        elif kind == 3:
            changed[at:at] = bytes(chance.randint(1, 40))
        else:
            del changed[at:]
        changed = changed or bytearray(b"G")
    return bytes(changed)


def read_or_refuse(read: Callable[[], Any]) -> bool:
    """Whether it was read; otherwise it was refused in one line."""
    try:
        read()
    except ModelLoadError as error:
        assert error.hint and "\n" not in str(error) and len(str(error)) < 600
        return False
    return True


def count_readable(path: Path, data: bytes, read: Callable[[], Any], examples: int) -> int:
    """How many of the mutations of ``data`` at ``path`` can be read; the others cost one line.

    None may take memory that its bytes do not justify.
    """
    path.write_bytes(data)
    read()  # what is imported and cached once
    num_read = 0
    tracemalloc.start()
    for seed in range(examples):
        changed = mutated(data, seed)
        path.write_bytes(changed)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        num_read += read_or_refuse(read)
        used = tracemalloc.get_traced_memory()[1] - before
        assert used < 100_000 + 20 * len(changed), seed
    tracemalloc.stop()
    return num_read
