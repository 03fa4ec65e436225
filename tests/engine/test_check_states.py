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
from twostroke.core.errors import ConfigError, InvalidRequestError
from twostroke.engine.cache_orders import PinPrefix
from twostroke.engine.check_states import check_states
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime import loading

REFUSED: dict[str, dict[str, Any]] = {
    "--preemption": {"preemption": "swap"},
    "--kv-host-memory": {"kv_host_memory": 2**20},
    "--kv-disk": {"kv_disk": "blocks"},
    "--kv-events": {"kv_events": True},
    "--admission": {"admission": "predicted"},
}


@pytest.mark.parametrize("flag", REFUSED)
def test_an_engine_refuses_what_keeps_no_states(flag: str) -> None:
    config = EngineConfig.from_flat({"model": "hybrid", **REFUSED[flag]})
    with pytest.raises(ConfigError, match=rf"recurrent layers, and {flag} ") as raised:
        LLMEngine(FakeExecutor(num_state_slots=8), config=config)
    assert raised.value.hint is not None and flag in raised.value.hint


@pytest.mark.parametrize("method", ["early-exit", "medusa"])
def test_what_drafts_with_the_models_own_layers_is_refused(method: str) -> None:
    config = EngineConfig.from_flat({"model": "hybrid", "speculation": method})
    with pytest.raises(ConfigError, match=f"recurrent layers, .*{method} of --speculation"):
        LLMEngine(FakeExecutor(num_state_slots=8), config=config)


def test_loading_refuses_before_the_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(loading, "read_runnable", lambda folder: hybrid_spec())
    config = EngineConfig.from_flat({"model": "hybrid", "device": "cpu", "preemption": "swap"})
    with pytest.raises(ConfigError, match="--preemption"):
        loading.load_torch_executor(config, open_checkpoint(tmp_path))


def test_a_plain_configuration_passes() -> None:
    check_states(EngineConfig.from_flat({"model": "hybrid"}))


def test_spacing_without_states_is_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, tiny_config("llama"))
    config = EngineConfig.from_flat({"model": "a", "device": "cpu", "state_spacing": 4})
    with pytest.raises(ConfigError, match=r"no recurrent layers, .* --state-spacing"):
        loading.load_torch_executor(config, open_checkpoint(checkpoint))


def test_other_models_have_it_all() -> None:
    LLMEngine(FakeExecutor(), config=EngineConfig.from_flat({"model": "a", "kv_events": True}))


def test_a_pin_is_refused() -> None:
    engine = LLMEngine(FakeExecutor(num_state_slots=8))
    order = PinPrefix(token_ids=[1, 2, 3, 4, 5], cache_salt="", seconds=60)
    with pytest.raises(InvalidRequestError, match="no prefix can be pinned"):
        engine.cache.carry_out(order)
    assert not engine.scheduler.kv.pool.pinned
