"""What a device has left for the KV cache, against logs of servers that started on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.cost.hardware_sheet import SHEETS
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions

GIB = 2**30


def kv_gib(
    model: str,
    gpu: str,
    tp: int = 1,
    *,
    share: float = 0.9,
    tokens: int = 8192,
    weights: str = "auto",
) -> float:
    made = deploy(
        DeploymentOptions(model=model, gpu=gpu, tp=tp, weight_dtype=weights),
        CacheConfig(gpu_memory_utilization=share),
        SchedulerConfig(max_num_batched_tokens=tokens, max_num_seqs=256),
    )
    return made.kv_bytes / GIB


def test_room_for_keys_and_values_is_that_of_servers() -> None:
    """What vLLM's worker says it has available, in its own logs (GiB).

    Llama 3 8B on one and two H100 (https://github.com/vllm-project/vllm/pull/10511).
    """
    assert kv_gib("llama-3-8b", "h100") == pytest.approx(53.29, rel=0.03)
    used_by_each_of_two = 7.48 + 3.58 + 1.26  # weights, what is not PyTorch's, activations
    measured = 0.9 * 79.22 - used_by_each_of_two
    assert kv_gib("llama-3-8b", "h100", 2) == pytest.approx(measured, rel=0.03)


def test_deepseek_in_fp8_needs_more_than_four_b200() -> None:
    """Weights leave 3.0 GiB of nine tenths of a B200; context, libraries and buffers take 3.2.

    The checkpoint has 688.6 GB, of which 15.4 are the layer that drafts and its copies of the
    embedding and the head: the rest over four devices, and of the latent projections all on each.
    """
    deepseek = find_model("deepseek-v3")
    assert deepseek.weight_bytes(None, 1) == pytest.approx(688.6e9 - 15.4e9, rel=0.005)
    assert deepseek.weight_bytes(None, 4) / GIB == pytest.approx(157.5, rel=0.001)
    with pytest.raises(InsufficientMemoryError, match="does not fit") as caught:
        kv_gib("deepseek-v3", "b200", 4)
    hint = str(caught.value.hint)
    assert "--tp 8" in hint and "--weight-dtype int4" in hint  # fp8 blocks are fp8
    assert kv_gib("deepseek-v3", "b200", 8) > 70
    assert kv_gib("deepseek-v3", "b200", 4, share=0.95) > 5


def test_a_sheet_says_what_driver_and_collectives_keep(tmp_path: Path) -> None:
    """The driver's part is no part of a share; collectives keep theirs where there are several."""
    text = (SHEETS / "mi300x.toml").read_text()
    plain, kept = tmp_path / "plain.toml", tmp_path / "kept.toml"
    plain.write_text(text)
    text = text.replace("memory_bandwidth", f"reserved_bytes = {GIB}\nmemory_bandwidth", 1)
    kept.write_text(text.replace("[link]", f"[link]\nbuffer_bytes = {2 * GIB}", 1))
    lost = [
        kv_gib("llama-3-8b", str(plain), tp) - kv_gib("llama-3-8b", str(kept), tp) for tp in (1, 2)
    ]
    assert lost == pytest.approx([0.9, 2.9], abs=0.01)
