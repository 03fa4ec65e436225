"""``twostroke models``: what runs, and whether a checkpoint does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.models.tiny_families import FAMILIES
from tests.test_torch_free import HELP, heavy_imports
from twostroke.cli.main import run
from twostroke.models.registry import MODEL_TYPES


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert run(["models", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_list_names_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["model_type"]: row for row in answer(capsys)}
    assert set(MODEL_TYPES) < set(rows)
    assert rows["qwen3"]["path"] == "compiled"
    assert rows["gpt_oss"]["layers"] == ["attention", "experts"]
    assert "sinks" in rows["gpt_oss"]["features"]
    assert run(["models"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in rows)


@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"]])
def test_the_list_needs_no_torch(arguments: list[str]) -> None:
    assert heavy_imports(HELP, *arguments) == []


def test_a_checkpoint_that_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    raw = FAMILIES["lfm2"]
    write_checkpoint(tmp_path, raw)
    made = answer(capsys, str(tmp_path))
    assert made["runs"] and made["model_type"] == "lfm2" and made["path"] == "layer by layer"
    elements = sum(tensor.numel() for tensor in random_tensors(raw).values())
    assert made["parameters"] == elements and made["weight_bytes"] == 4 * elements
    # One layer of attention, two KV heads of 8; three convolutions that keep two tokens of 32.
    assert made["kv_bytes_per_token"] == 2 * 2 * 8 * 4
    assert made["state_bytes"] == 3 * 2 * 32 * 4
    assert run(["models", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "lfm2" in shown and "128 bytes a token" in shown and "768 bytes a request" in shown


def test_an_encoder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.models.encoders import write_encoder

    model = write_encoder(tmp_path, "RobertaModel")
    made = answer(capsys, str(tmp_path))
    count = sum(
        each.numel() for name, each in model.named_parameters() if not name.startswith("pooler")
    )
    assert made["runs"] and made["parameters"] == count and made["kv_bytes_per_token"] == 0


def test_a_decoder_by_transformers_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.models.foreign_models import write_foreign

    write_foreign(tmp_path, "stablelm")
    made = answer(capsys, str(tmp_path))
    assert made["runs"] and made["path"] == "transformers"
    assert made["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4  # layers, tensors, heads of 8, float32
    elements = (made["weight_bytes"], made["parameters"] * 4)
    assert elements[0] == elements[1]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt7"}, "model_type"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"layer_types": ["full_attention", "mystery"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"head_dim": 10}, "q_proj.weight"),
        ({"attention_bias": True}, "q_proj.bias"),
    ],
)
def test_a_checkpoint_that_does_not_run_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    raw = tiny_config("llama")
    write_checkpoint(tmp_path, raw)
    (tmp_path / "config.json").write_text(json.dumps({**raw, **changes}))
    refused = answer(capsys, str(tmp_path), code=1)
    assert refused["runs"] is False and named in refused["reason"] and refused["hint"]
    assert run(["models", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ") and named in shown.err
