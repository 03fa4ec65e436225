"""Protects: what knows nothing of recurrent state is refused at the start, and names its flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import tiny_config, write_checkpoint
from tests.fakes import FakeExecutor
from tests.runtime.mixed_models import hybrid_spec
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.engine.check_states import check_states
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime import loading


@pytest.mark.parametrize("method", ["early-exit", "medusa"])
def test_what_drafts_with_the_models_own_layers_is_refused(method: str) -> None:
    config = EngineConfig.from_flat({"model": "hybrid", "speculation": method})
    with pytest.raises(ConfigError, match=f"recurrent layers, .*{method} of --speculation"):
        LLMEngine(FakeExecutor(num_state_slots=8), config=config)


def test_loading_refuses_before_the_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(loading, "read_runnable", lambda folder: hybrid_spec())
    config = EngineConfig.from_flat({"model": "hybrid", "device": "cpu", "speculation": "medusa"})
    with pytest.raises(ConfigError, match="--speculation"):
        loading.load_torch_executor(config, open_checkpoint(tmp_path))


def test_a_plain_configuration_passes() -> None:
    check_states(EngineConfig.from_flat({"model": "hybrid"}))


def test_spacing_without_states_is_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, tiny_config("llama"))
    config = EngineConfig.from_flat({"model": "a", "device": "cpu", "state_spacing": 4})
    with pytest.raises(ConfigError, match=r"no recurrent layers, .* --state-spacing"):
        loading.load_torch_executor(config, open_checkpoint(checkpoint))
