"""Protects: a broken safetensors file costs one line, and no more memory than its bytes justify."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from tests.mutated_files import count_readable, num_examples
from twostroke.checkpoints.folder import read_safetensors

EXAMPLES = num_examples(500)


def test_mutated_files_cost_a_line_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = save({f"layers.{i}.weight": torch.ones(3, i + 1) for i in range(9)}, {"format": "pt"})

    def read() -> None:
        for tensor in read_safetensors([path]).values():
            assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= path.stat().st_size

    num_read = count_readable(path, data, read, EXAMPLES)
    assert 0 < num_read < EXAMPLES  # both happen
