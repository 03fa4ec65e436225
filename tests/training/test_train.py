"""Protects: a resumed training is the one that never stopped; others are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.banks import small_bank
from training import data, train
from training.bank import Bank
from training.model import SIZES
from training.train import FALLS, Trainer
from twostroke.model_spec.model_files import resolve_model

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
}
MILLION_TOKENS = 0.004


class StoppedError(Exception):
    """Raised where a real run would be killed."""


class Watched(Trainer):
    """Keeps each step's loss and tokens, and stops before one of them."""

    def __init__(self, *args: Any, stop_before: int = -1, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stop_before = stop_before
        self.seen: list[tuple[float, int]] = []

    def step(self) -> tuple[float, int]:
        if self.progress.step == self.stop_before:
            raise StoppedError
        self.seen.append(super().step())
        return self.seen[-1]


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bank:
    """A small bank, with everything else of a run as small, and a checkpoint after every step."""
    monkeypatch.setitem(SIZES, "tiny", TINY)
    monkeypatch.setattr(train, "TOKENIZER_DIR", resolve_model("pilot"))
    monkeypatch.setattr(data, "POOL_EXAMPLES", 24)
    settings = {
        "TEACHER_STEPS": 2,
        "COPYING_STEPS": 1,
        "QUICK_PHRASINGS": 2,
        "QUICK_PER_SUITE": 1,
        "QUICK_TOKENS": 2,
    }
    for name, value in {**settings, "CHECKPOINT_SECONDS": 0.0}.items():
        monkeypatch.setattr(train, name, value)
    return small_bank(tmp_path)


def trainer(
    bank: Bank, run: Path, *, size: str = "tiny", tokens: float = MILLION_TOKENS, stop: int = -1
) -> Watched:
    return Watched(size, bank, run, tokens, 0, 256, 1e-3, "muon", stop_before=stop)


def checkpoint(run: Path) -> dict[str, Any]:
    """All that a run keeps, but for the time it took and the mean loss since its last line."""
    state: dict[str, Any] = torch.load(run / "checkpoint.pt", weights_only=True)
    for timed in ("seconds", "history", "loss"):
        del state["progress"][timed]
    return state


def same(left: Any, right: Any) -> bool:
    """Equality of nested dicts and lists, bit by bit where there are tensors."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else bool(left == right)


def test_a_resumed_run_takes_the_same_steps_to_the_same_weights(bank: Bank, tmp_path: Path) -> None:
    """Stopped in its second pool of examples, after a fall of the learning rate has ended."""
    whole = trainer(bank, tmp_path / "whole")
    assert not whole.resume()
    whole.begin(0)
    whole.run()
    stop = next(
        i for i in range(len(whole.seen)) if sum(n for _, n in whole.seen[:i]) > 0.7 * whole.total
    )
    first = trainer(bank, tmp_path / "stopped", stop=stop)
    first.begin(0)
    with pytest.raises(StoppedError):
        first.run()
    assert (len(first.settled), first.source.state()["pool"] > 0) == (1, True)
    second = trainer(bank, tmp_path / "stopped")
    assert second.resume()
    second.run()
    assert first.seen + second.seen == whole.seen
    assert len(second.settled) == len(FALLS)
    assert same(checkpoint(tmp_path / "stopped"), checkpoint(tmp_path / "whole"))


def test_a_checkpoint_of_something_else_is_refused(bank: Bank, tmp_path: Path) -> None:
    trainer(bank, tmp_path).save()
    with pytest.raises(SystemExit, match="another bank"):
        trainer(replace(bank, digest="other"), tmp_path).resume()
    with pytest.raises(SystemExit, match="another size or schedule"):
        trainer(bank, tmp_path, tokens=2 * MILLION_TOKENS).resume()
    with pytest.raises(SystemExit, match="another size or schedule"):
        trainer(bank, tmp_path, size="draft").resume()
    assert trainer(bank, tmp_path).resume()
