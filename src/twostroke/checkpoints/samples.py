"""A part of each tensor of a checkpoint, which tells models apart without reading all of them."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator

from twostroke.checkpoints.checkpoint import Checkpoint

SAMPLE_BYTES = 64  # of the middle of each tensor: what was trained further differs in it


def sample_checkpoint(checkpoint: Checkpoint) -> Iterator[bytes]:
    """What its outputs follow from, the same on every machine: configuration, names, samples.

    Raises:
        ModelLoadError: Its files are gone.
    """
    stated = (checkpoint.config, checkpoint.generation)
    yield json.dumps(stated, sort_keys=True, default=str).encode()
    tensors = sorted(checkpoint.tensors().items())
    for path in sorted({stored.path for _, stored in tensors}):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name, stored in tensors:
                if stored.path == path:
                    yield f"{name}\0{stored.format}\0{stored.shape}\0".encode()
                    middle = stored.offset + stored.nbytes // 2
                    end = min(middle + SAMPLE_BYTES, stored.offset + stored.nbytes)
                    yield data[middle:end]
