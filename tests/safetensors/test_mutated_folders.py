"""Protects: a broken safetensors file costs one line, and no more memory than its bytes justify."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import torch
from safetensors.torch import save

from tests.mutated_files import mutated, num_examples, peak_bytes, read_or_refuse
from twostroke.checkpoints.folder import read_safetensors

EXAMPLES = num_examples(500)


def test_mutated_files_cost_a_line_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = save({f"layers.{i}.weight": torch.ones(3, i + 1) for i in range(9)}, {"format": "pt"})

    def read() -> None:
        for tensor in read_safetensors([path]).values():
            assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= path.stat().st_size

    path.write_bytes(data)
    read()  # what is imported and cached once
    num_read = 0
    tracemalloc.start()
    for seed in range(EXAMPLES):
        changed = mutated(data, seed)
        path.write_bytes(changed)
        was_read = False

        def try_once() -> None:
            nonlocal was_read
            was_read = read_or_refuse(read)

        assert peak_bytes(try_once) < 100_000 + 20 * len(changed), seed
        num_read += was_read
    tracemalloc.stop()
    assert 0 < num_read < EXAMPLES  # both happen
