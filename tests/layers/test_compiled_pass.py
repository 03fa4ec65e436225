"""Protects: all layers in one call compute what the layers called one by one compute."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.models.wide_families import WIDE_FAMILIES
from tests.steps import StepDriver
from twostroke.core.errors import InsufficientMemoryError
from twostroke.kernels.library import load_library
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.compiled import decoder_pass as compiled_pass
from twostroke.layers.pages import fresh_tensor
from twostroke.layers.recurrent_state import Segment
from twostroke.models import decoder, token_tables
from twostroke.observability.profile import COMPONENTS, StepProfiler
from twostroke.runtime import backends, torch_executor
from twostroke.runtime.state_tensors import StepStates

SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "torch_dtype": "bfloat16"}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": tiny_config("llama", **SHAPE),
    "llama-biases-one-kv-head": tiny_config(
        "llama", attention_bias=True, mlp_bias=True, num_key_value_heads=1, head_dim=32, **SHAPE
    ),
    "mistral-window": tiny_config("mistral", sliding_window=7, **SHAPE),
    "qwen2-tied": tiny_config("qwen2", tie_word_embeddings=True, **SHAPE),
    "qwen3": tiny_config("qwen3", head_dim=48, **SHAPE),
}
# Others are made of the same kinds of layers, put together in other ways.
OTHERS = (
    "llama-linear-rope-biases",
    "qwen2-window-above",
    "phi4-partial",
    "granite",
    "olmo2",
    "olmo3",
    "smollm3",
    "glm4",
    "cohere2",
    "gemma2",
    "gemma3",
)
# Layers that are recurrent, or one half alone.
RECURRENT = (
    "qwen3.5",
    "qwen3.5-moe",
    "qwen3-next",
    "granite-hybrid",
    "granite-hybrid-rope",
    "granite-hybrid-experts",
    "bamba",
    "lfm2",
    "lfm2-biases",
    "nemotron-h",
    "nemotron-h-experts",
    "mamba2",
    "falcon-h1",
)
# Heads of several shapes, caches that are shared, layers with embeddings of their own.
SEVERAL_SHAPES = ("gemma4", "gemma4-shared", "gemma4-moe")
LATENT = ("deepseek-v2", "deepseek-v3", "kimi-k2")
EXPERTS = (
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "glm4-moe",
    "gpt-oss",
    "llama4",
    "llama4-all-experts",
)
FAMILIES |= {name: WIDE_FAMILIES[name] | {"intermediate_size": 96} for name in OTHERS}
SIZES = (  # --quantization needs multiples of 32
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "intermediate_size_mlp",
)
FAMILIES |= {
    name: raw | {size: 96 for size in SIZES if size in raw}
    for name, raw in (
        (name, WIDE_FAMILIES[name]) for name in (*EXPERTS, *RECURRENT, *SEVERAL_SHAPES, *LATENT)
    )
}
FAMILIES["nemotron-h-experts-first"] = FAMILIES["nemotron-h-experts"] | {
    "hybrid_override_pattern": "EM*EM"
}
# As published ones: the gate comes before the norm, and no step is too long.
FAMILIES["falcon-h1"] |= {"mamba_norm_before_gate": False, "mamba_d_ssm": 96}
del FAMILIES["falcon-h1"]["time_step_limit"]
for own in FAMILIES.values():
    if "linear_value_head_dim" in own:
        own["linear_value_head_dim"] = 16
    if "moe_latent_size" in own:
        own["moe_latent_size"] = 32
    if own.get("q_lora_rank"):
        own["q_lora_rank"] = 32
    if own.get("hidden_size_per_layer_input"):
        own["hidden_size_per_layer_input"] = 32
TOKENS = torch.randint(0, 96, (120,), generator=torch.Generator().manual_seed(1)).tolist()
CHUNKS = [70, 1, 3, 45, 1]


def load(folder: Path, family: str, **options: Any) -> StepDriver:
    raw = FAMILIES[family]
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(raw, std=0.15).items()}
    return StepDriver.load(write_checkpoint(folder, raw, tensors), block_size=4, **options)


def kept_of(driver: StepDriver) -> list[Tensor]:
    """What lasts from step to step."""
    kv = driver.executor.kv
    return [*kv.keys, *kv.values, *kv.recurrent.tensors()]


def logits(driver: StepDriver) -> torch.Tensor:
    driver.reset()
    return driver.chunked_logits(TOKENS, CHUNKS)


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_call_equals_layer_by_layer(
    instruction_set: str, family: str, quantization: str | None, tmp_path: Path
) -> None:
    driver = load(tmp_path, family, quantization=quantization)
    model = driver.executor.model
    compiled, steps = model.compiled_pass, []
    assert compiled is not None

    def run(x: Tensor, *arguments: Any) -> Tensor:
        steps.append(len(x))
        return compiled(x, *arguments)

    model.compiled_pass = run  # type: ignore[assignment]
    together = logits(driver)
    assert steps == CHUNKS
    kept = [tensor.clone() for tensor in kept_of(driver)]
    model.compiled_pass = None
    one_by_one = logits(driver)
    assert torch.equal(together, one_by_one)
    assert kept and all(map(torch.equal, kept, kept_of(driver)))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_alone_are_what_they_are_among_all(
    instruction_set: str, family: str, tmp_path: Path
) -> None:
    driver = load(tmp_path, family)
    counts, rows = {"a": 70, "b": 1, "c": 45}, torch.tensor([3, 69, 70, 115])

    def states(rows: torch.Tensor | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        driver.reset()
        for tensor in kept_of(driver):
            tensor.zero_()  # what a pass does not write is missed
        for name, count in counts.items():
            driver.add(name, TOKENS[:count])
        hidden = driver.forward(counts, rows)
        return hidden, [tensor.clone() for tensor in kept_of(driver)]

    for one_by_one in (False, True):
        if one_by_one:
            driver.executor.model.compiled_pass = None
        whole, written = states(None)
        few, caches = states(rows)
        assert torch.equal(few, whole[rows])
        assert all(map(torch.equal, caches, written))
        assert states(rows[:0])[0].shape == (0, driver.executor.model.spec.hidden_size)


def test_the_last_layer_ends_early_for_rows_without_a_draw(tmp_path: Path) -> None:
    """A chunk before the last: only rows that go on differ from what came into the last layer."""
    driver = load(tmp_path, "llama")
    model = driver.executor.model
    assert isinstance(model, decoder.Decoder) and model.compiled_pass is not None
    driver.add("a", TOKENS[:70])
    seen: list[Tensor] = []

    def embed(token_ids: Tensor) -> Tensor:
        seen.append(decoder.Decoder.embed(model, token_ids))
        return seen[-1]

    model.embed = embed  # type: ignore[method-assign]
    states = {}
    for name, rows in (
        ("none", torch.empty(0, dtype=torch.int64)),
        ("last", torch.tensor([69])),
        ("all", None),
    ):
        driver.requests["a"].num_computed_tokens = 0
        driver.forward({"a": 70}, rows)
        states[name] = seen[-1]
    # The row that goes on takes the first place.
    assert torch.equal(states["none"][1:], states["last"][1:])
    assert not (states["none"] == states["all"]).all(-1).any()


@pytest.mark.parametrize("family", ["llama-biases-one-kv-head", "qwen3"])
def test_without_the_kernels_logits_stay_near(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 by PyTorch's operators alone: they round in the same places as the kernels."""
    compiled = logits(load(tmp_path, family))
    for module in (token_tables, backends, torch_executor):
        monkeypatch.setattr(module, "load_library", lambda: None)
    driver = load(tmp_path, family)
    assert driver.executor.model.compiled_pass is None
    assert isinstance(driver.executor.passes.backend, SdpaBackend)
    by_torch = logits(driver)
    assert (by_torch - compiled).abs().mean() < 0.02 * compiled.abs().mean()


def test_room_grows_with_the_step(instruction_set: str, tmp_path: Path) -> None:
    driver = load(tmp_path, "llama")
    few = driver.chunked_logits(TOKENS[:40], [2, 1, 37])
    driver.reset()
    whole = driver.chunked_logits(TOKENS[:40], [40])
    assert torch.equal(whole, few)


def test_a_step_after_one_that_got_no_room_asks_for_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too little memory a request ends; the next step asks for its room anew."""
    expected = logits(load(tmp_path / "fine", "llama"))
    driver = load(tmp_path / "short", "llama")
    failures: list[Exception] = [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError()]

    def pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if failures:
            raise failures.pop()
        return fresh_tensor(shape, dtype)

    monkeypatch.setattr(compiled_pass, "fresh_tensor", pages)
    while failures:
        driver.add("a", TOKENS[:50])
        with pytest.raises(InsufficientMemoryError):
            driver.step({"a": 50})
        driver.reset()
    assert torch.equal(logits(driver), expected)


def test_an_mlp_takes_tokens_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logits(load(tmp_path / "whole", "llama-biases-one-kv-head"))
    # Steps of 70 and 45 tokens then go in five parts and three.
    monkeypatch.setattr(compiled_pass, "MLP_TOKENS", 16)
    assert torch.equal(logits(load(tmp_path / "parts", "llama-biases-one-kv-head")), whole)


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_many_tokens_go_from_one_attention_to_the_next_in_parts(
    instruction_set: str, quantization: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On three threads, parts of at most 4 of 70 and 45 tokens.

    The others of 1 and 3 tokens are shared as before.
    """
    whole = logits(load(tmp_path / "whole", "mistral-window", quantization=quantization))
    monkeypatch.setattr(compiled_pass, "PART_TOKENS", 4)
    driver = load(tmp_path / "parts", "mistral-window", quantization=quantization)
    library = load_library()
    assert library is not None
    library.set_num_threads(3)
    assert torch.equal(logits(driver), whole)


@pytest.mark.parametrize(
    "family",
    ["qwen3.5", "nemotron-h-experts", "falcon-h1", "lfm2", "gemma4", "deepseek-v3", "llama4"],
)
def test_parts_and_turns_of_every_kind_of_layer_change_no_bit(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few tokens a part and a turn, on three threads; keys, values and states as well."""
    monkeypatch.setattr(compiled_pass, "PART_TOKENS", 4)
    monkeypatch.setattr(compiled_pass, "MLP_TOKENS", 16)
    driver = load(tmp_path, family)
    library = load_library()
    assert library is not None and driver.executor.model.compiled_pass is not None
    library.set_num_threads(3)
    in_parts = logits(driver)
    kept = [tensor.clone() for tensor in kept_of(driver)]
    driver.executor.model.compiled_pass = None
    assert torch.equal(in_parts, logits(driver))
    assert all(map(torch.equal, kept, kept_of(driver)))


@pytest.mark.parametrize("family", ["qwen3.5", "nemotron-h", "falcon-h1", "lfm2"])
def test_states_are_copied_as_one_by_one(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several segments of one request, whose states go to two slots more, or to three."""
    driver = load(tmp_path, family, max_num_seqs=8)
    recurrent, model = driver.executor.kv.recurrent, driver.executor.model
    segments = [Segment(0, 1, (0, 1)), Segment(1, 40, (0, 2, 3, 4)), Segment(40, 70, (0,))]
    states = StepStates(recurrent._layers, segments)
    monkeypatch.setattr(recurrent, "of_step", lambda *_: states)
    found = []
    for one_by_one in (False, True):
        if one_by_one:
            model.compiled_pass = None
        for tensor in kept_of(driver):
            tensor.zero_()
        driver.reset()
        driver.add("a", TOKENS[:70])
        hidden = driver.forward({"a": 70}, torch.tensor([69]))
        found.append([hidden, *(tensor.clone() for tensor in kept_of(driver))])
    assert all(map(torch.equal, *found))
    first = recurrent.tensors()[0]
    assert first[2].any() and torch.equal(first[2], first[3])
    assert torch.equal(first[2], first[4])


def test_a_profile_of_parts_adds_up_to_the_time_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_pass, "PART_TOKENS", 8)
    profiler = StepProfiler()
    driver = load(tmp_path, "llama", profiler=profiler)
    library = load_library()
    assert library is not None
    library.set_num_threads(3)
    driver.add("a", TOKENS[:100])
    start = time.perf_counter()
    driver.step({"a": 100})
    passed = time.perf_counter() - start
    seconds = profiler.take()
    assert seconds["GEMM"] > 0 and seconds["norms, activations"] > 0
    assert sum(seconds.values()) <= passed


def test_a_profile_counts_the_kernels_seconds_and_changes_nothing(tmp_path: Path) -> None:
    unmeasured = logits(load(tmp_path, "llama"))
    profiler = StepProfiler()
    driver = load(tmp_path, "llama", profiler=profiler)
    driver.add("a", TOKENS[:50])
    driver.step({"a": 50})
    seconds = profiler.take()
    for name in ("input building", "attention", "GEMM", "norms, activations", "sampling"):
        assert seconds[name] > 0, name
    assert list(seconds) == list(COMPONENTS)
    assert torch.equal(logits(driver), unmeasured)


def test_a_profile_without_the_kernels(tmp_path: Path) -> None:
    raw = tiny_config("llama")
    folder, profiler = write_checkpoint(tmp_path, raw, random_tensors(raw)), StepProfiler()
    driver = StepDriver.load(folder, profiler=profiler, block_size=4)
    assert driver.executor.model.compiled_pass is None
    driver.add("a", TOKENS[:50])
    driver.step({"a": 50})
    seconds = profiler.take()
    for name in ("input building", "attention", "GEMM", "norms, activations", "sampling"):
        assert seconds[name] > 0, name
