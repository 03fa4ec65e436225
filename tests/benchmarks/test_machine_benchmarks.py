"""Protects: what the benchmarks of growth, memory, quantisation and two trees compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import growth, memory, quantization, steps_in_turn
from tests.benchmarks.tiny import tiny_checkpoint
from training.bank import load_bank
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.model_spec.model_files import resolve_model
from twostroke.models.support import read_runnable
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.weights import loaded_bytes
from twostroke.text.tokenizer import Tokenizer


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tiny_checkpoint(tmp_path / "model", monkeypatch, vocab_size=512)


def test_a_step_is_judged_by_what_it_must_move_and_multiply(checkpoint: Path) -> None:
    config = EngineConfig.from_flat(
        {"model": str(checkpoint), "kv_cache_memory": 2**24, "block_size": growth.BLOCK}
    )
    executor, sheet = load_torch_executor(config), read_runnable(open_checkpoint(checkpoint))
    slow_memory, slow_products = growth.Machine(1e6, 1e15), growth.Machine(1e15, 1e6)
    kept = sheet.num_parameters - sheet.vocab_size * sheet.hidden_size
    point = growth.measure(executor, sheet, slow_memory, 3, 40, 1)
    assert point.bound == "memory" and point.ms > 0
    moved = 2 * kept + 3 * 40 * sheet.kv_bytes_per_token()
    assert point.roofline_ms == pytest.approx(moved / 1e6 * 1e3)
    point = growth.measure(executor, sheet, slow_products, 3, 40, 1)
    assert point.bound == "arithmetic"
    layer = sheet.layers[0].attention
    assert layer is not None and len(sheet.layers) == 1
    attention = 4 * 40 * sheet.num_layers * layer.heads * layer.key_dim
    assert point.roofline_ms == pytest.approx(3 * (2 * kept + attention) / 1e6 * 1e3)
    assert executor.inputs.num_live == 0
    executor.close()


def test_points_are_drawn(tmp_path: Path) -> None:
    machine = growth.Machine(1e9, 1e12)
    points = [
        growth.Point(b, c, b + c / 100, b, "memory", machine) for b in (1, 2) for c in (128, 512)
    ]
    growth.draw(points, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_a_servers_memory_is_read_with_its_cache_in_use(checkpoint: Path) -> None:
    resident = memory.measure(checkpoint, 2**24, None)
    assert resident.weights == loaded_bytes(read_runnable(open_checkpoint(checkpoint)), 2)
    assert 50e6 < resident.healthy <= resident.peak
    assert resident.loaded - resident.healthy > 2**23  # pages of the cache are there now
    assert resident.beside == resident.loaded - resident.weights - 2**24


def test_coarser_weights_diverge_more(checkpoint: Path) -> None:
    torch.manual_seed(0)
    passage = quantization.Passage([5, 300, 310, 17, 4, 290, 12, 9], 0)
    errors = quantization.errors(checkpoint, [passage], False)
    assert errors["bfloat16"].divergence == 0 and errors["bfloat16"].same == 1
    assert 0 < errors["int8"].divergence < errors["int4"].divergence <= errors["int4"].worst
    judged = quantization.errors(checkpoint, [quantization.Passage(passage.ids, 5)], True)
    vocabulary = read_runnable(open_checkpoint(checkpoint)).vocab_size
    # Random weights know nothing.
    assert judged["int8"].perplexity == pytest.approx(vocabulary, rel=0.5)


def test_held_out_passages_are_judged_on_their_answers() -> None:
    pilot = resolve_model("pilot")
    tokenizer = Tokenizer.from_folder(pilot)
    (passage,) = quantization.held_out(pilot, 1)
    answer = tokenizer.decode(passage.ids[passage.start :])
    assert any(item.answer in answer for item in load_bank().items)


def test_two_trees_take_the_same_steps_in_turn(
    checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps_in_turn.main(
        str(checkpoint), steps_in_turn.THIS, batches=(2,), input_len=5, output_len=4, rounds=3
    )
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["2", "prefill"], ["2", "decode"]]
    assert [line.split()[-2:] for line in lines[1:]] == [["2", "100%"], ["6", "100%"]]
    pairs = [((2.0, True, [[1]]), (1.0, True, [[1]])), ((4.0, True, [[1]]), (3.0, True, [[2]]))]
    assert steps_in_turn.summary_line(pairs).split() == ["3000.00", "2000.00", "0.625", "2", "50%"]
