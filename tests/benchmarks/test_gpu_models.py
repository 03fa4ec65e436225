"""The benchmarks of a GPU that need none to be wrong: models, steps, records, the page."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import page
from benchmarks.gpu.environment import Record
from benchmarks.gpu.models import APART, COMING, drafted_steps, mixed_steps, steps_of
from benchmarks.gpu.predict import MODELS as PREDICTED
from benchmarks.gpu.predict import rows_of
from benchmarks.gpu.random_model import MODELS, random_executor

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "num_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize("name", ["8B bf16", "30B-A3B bf16", "Qwen3-Next 80B-A3B fp8"])
def test_steps_of_a_small_model_of_each_kind(name: str) -> None:
    config = MODELS[name].config
    config |= {key: value for key, value in TINY.items() if key in config}
    executor = random_executor(
        config, torch.device("cpu"), max_model_len=512, num_blocks=200, dtype=torch.float32
    )
    assert executor.kv.recurrent.exist == ("linear_num_key_heads" in config)
    steps = dict(steps_of(executor, (1, 3), (40,), 4))
    assert list(steps) == ["decode 1", "decode 3", "prefill 40"]
    steps = dict(mixed_steps(executor, 2, 70))
    assert list(steps) == ["mixed, 2 alone", "mixed, with 70", "mixed, a token"]
    assert steps["mixed, a token"] < steps["mixed, with 70"] and COMING < APART * COMING
    drafted = dict(drafted_steps(executor, (1, 3), 24))
    names = ["decode 1, 4 drafts, a token", "decode 3, 4 drafts, a token"]
    assert list(drafted) == ([] if executor.kv.recurrent.exist else names)
    executor.close()


def test_all_that_was_predicted_can_be_measured(tmp_path: Path) -> None:
    assert list(MODELS) == list(PREDICTED)
    for name, (public, weights) in PREDICTED.items():
        assert MODELS[name].name == public
        assert (MODELS[name].quantization or "bf16") == weights


def test_a_record_is_there_from_its_first_row_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(tmp_path / "results", "models", "cpu")
    record.add({"model": "8B fp8", "step": "decode 1", "ms": 3.0})
    record.add({"model": "8B fp8", "failed": "out of memory"})
    (path,) = (tmp_path / "results").glob("models-cpu-*.json")
    assert json.loads(path.read_text())["rows"] == record.rows
    path.rename(path.with_name("models-cuda-2026-01-01.json"))
    rows = rows_of("8B fp8", *PREDICTED["8B fp8"])
    sealed = {"date": "2026-01-01", "commit": "c", "seal": "s", "rows": rows}
    (tmp_path / "results" / "prediction-h200.json").write_text(json.dumps(sealed))
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results")
    lines = [line for line in page.prediction() if line.startswith("| 8B fp8 | decode ")]
    assert lines[0].endswith("| 3 |") and lines[1].endswith("|  |")


def test_a_session_goes_on_where_a_part_fails(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "ran $2"\n[ "$2" != benchmarks.gpu.draws ]\n')
    python.chmod(0o755)
    command = ["sh", str(ROOT / "benchmarks/gpu/session.sh"), str(tmp_path), "third", "kernels"]
    environment = {**os.environ, "PYTHON": str(python), "WORKERS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    ran = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert done.returncode == 1 and "== draws: exit status 1" in done.stdout
    assert ran[1:3] == ["benchmarks.gpu.products", "benchmarks.gpu.attention"]
    assert ran[-2:] == ["benchmarks.gpu.memory", "pytest"]
