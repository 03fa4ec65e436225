"""The executor equals the naive reference, and keeps its promises.

These are copies, errors, log-probabilities and released state.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.fakes import failed_with
from tests.instruction_sets import selected
from tests.specs import respecify
from tests.steps import StepDriver
from twostroke.core.config import EngineConfig
from twostroke.core.errors import (
    ConfigError,
    InsufficientMemoryError,
    ModelLoadError,
    NonFiniteLogitsError,
)
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive, naive_logits
from twostroke.runtime.torch_executor import TorchExecutor

RAW = tiny_config("llama")
PROMPTS = {
    "a": torch.randint(0, 96, (23,), generator=torch.Generator().manual_seed(1)).tolist(),
    "b": torch.randint(0, 96, (9,), generator=torch.Generator().manual_seed(2)).tolist(),
    "c": torch.randint(0, 96, (2,), generator=torch.Generator().manual_seed(3)).tolist(),
}
BROKEN_TOKEN = 95  # its embedding is NaN in the `broken` checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", RAW)


@pytest.fixture(scope="module")
def broken_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = random_tensors(RAW)
    tensors["model.embed_tokens.weight"][BROKEN_TOKEN] = torch.nan
    return write_checkpoint(tmp_path_factory.mktemp("models") / "broken", RAW, tensors)


@pytest.fixture
def driver(folder: Path) -> StepDriver:
    return StepDriver.load(folder, block_size=4)


def expected_tokens(driver: StepDriver, name: str, count: int, **params: object) -> list[int]:
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": count, **params}
    sampling = SamplingParams(**settings)
    tokens, _ = generate_naive(
        driver.executor.model, PROMPTS[name], sampling, seed=driver.requests[name].spec.seed
    )
    return tokens


def test_a_mixed_batch_generates_what_the_naive_reference_does(driver: StepDriver) -> None:
    for name, prompt in PROMPTS.items():
        request = driver.add(name, prompt, temperature=0.9 if name == "b" else 0.0)
        respecify(request, seed=7)
    driver.step({"a": 10})
    driver.step({"a": 10, "b": 9})
    driver.step({"b": 1, "a": 3, "c": 2})
    for _ in range(12):
        driver.step({"c": 1, "a": 1, "b": 1})
    for name in PROMPTS:
        output = driver.requests[name].output_token_ids
        assert len(output) >= 12
        assert output == expected_tokens(
            driver, name, len(output), temperature=0.9 if name == "b" else 0.0
        )


def test_a_preempted_request_starts_again_in_other_blocks(driver: StepDriver) -> None:
    driver.add("a", PROMPTS["a"])
    driver.step({"a": 23})
    driver.step({"a": 1})
    driver.release("a")
    driver.add("b", PROMPTS["b"])
    driver.step({"b": 9})
    driver.step({"b": 1, "a": 25})
    driver.step({"b": 1, "a": 1})
    for name, num_tokens in (("a", 4), ("b", 3)):
        output = driver.requests[name].output_token_ids
        assert len(output) == num_tokens
        assert output == expected_tokens(driver, name, num_tokens)


def test_released_requests_leave_nothing_behind(driver: StepDriver) -> None:
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt)
    driver.step({name: len(prompt) for name, prompt in PROMPTS.items()})
    assert driver.executor.inputs.num_live == 3
    driver.reset()
    driver.executor.execute(driver.plan({}))
    assert driver.executor.inputs.num_live == 0


def test_prompt_logprobs_cover_every_prompt_token_but_the_first_once(driver: StepDriver) -> None:
    request = driver.add("a", PROMPTS["a"], prompt_logprobs=2, logprobs=1)
    parts = [driver.step({"a": count}) for count in (10, 1, 11, 1, 1)]
    scores = [entry for part in parts for entry in part.prompt_logprobs.get("a", [])]
    logprobs = torch.log_softmax(naive_logits(driver.executor.model, request.token_ids), -1)
    assert [entry.chosen.token_id for entry in scores] == PROMPTS["a"][1:]
    for position, entry in enumerate(scores):
        assert entry.chosen.logprob == pytest.approx(
            float(logprobs[position, PROMPTS["a"][position + 1]]), abs=1e-4
        )
        assert len(entry.top) == 2
    last = parts[3].logprobs["a"][0]
    assert last.chosen.token_id == request.token_ids[23]
    assert last.chosen.logprob == pytest.approx(float(logprobs[22].max()), abs=1e-4)


def test_a_failing_request_fails_alone_and_its_slots_are_zeroed(broken_folder: Path) -> None:
    driver = StepDriver.load(broken_folder, block_size=4)
    driver.add("a", [5, BROKEN_TOKEN, 7, 8, 9])
    driver.add("b", [11, 12, 13])
    driver.add("chunk", [1, BROKEN_TOKEN, 3, 4, 5])
    result = driver.step({"a": 5, "b": 3, "chunk": 2})
    assert set(result.errors) == {"a", "chunk"}
    assert (
        failed_with(result.errors["a"], NonFiniteLogitsError)
        and "request a" in result.errors["a"].message
    )
    assert set(result.token_ids) == {"b"}
    for cache in (*driver.executor.kv.keys, *driver.executor.kv.values):
        assert bool(torch.isfinite(cache).all())
        assert not bool(cache[driver.blocks["a"]].any())
    tokens, _ = generate_naive(
        driver.executor.model, [11, 12, 13], SamplingParams(temperature=0, max_tokens=1)
    )
    assert result.token_ids["b"] == tokens


def test_what_lies_beyond_the_window_fails_its_request_too(tmp_path: Path) -> None:
    """No token is sampled from it, but other requests would find it in the prefix cache."""
    raw = tiny_config("mistral", sliding_window=3, hidden_size=64, torch_dtype="bfloat16")
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(raw, std=0.1).items()}
    tensors["model.embed_tokens.weight"][BROKEN_TOKEN] = torch.nan
    driver = StepDriver.load(
        write_checkpoint(tmp_path, raw, tensors), block_size=4, max_model_len=256
    )
    prompt = [5, BROKEN_TOKEN, *[6] * 240]
    driver.add("a", prompt)
    driver.add("b", PROMPTS["b"])
    # Its last token sees none of it.
    assert bool(torch.isfinite(driver.forward({"a": len(prompt)})[-1]).all())
    driver.requests["a"].num_computed_tokens = 0
    result = driver.step({"a": len(prompt), "b": 9})
    assert failed_with(result.errors["a"], NonFiniteLogitsError)
    assert set(result.token_ids) == {"b"}
    assert all(
        bool(torch.isfinite(cache).all())
        for cache in (*driver.executor.kv.keys, *driver.executor.kv.values)
    )


def test_scores_that_are_not_finite_fail_their_request(tmp_path: Path) -> None:
    """The last layer's MLP is seen only in the scores of a chunk from which no token is drawn."""
    tensors = random_tensors(RAW)
    tensors["model.layers.1.mlp.down_proj.weight"][3] = torch.inf
    driver = StepDriver.load(write_checkpoint(tmp_path, RAW, tensors), block_size=4)
    driver.add("a", PROMPTS["a"], prompt_logprobs=1)
    driver.add("b", PROMPTS["b"])
    result = driver.step({"a": 10, "b": 4})
    assert set(result.errors) == {"a"} and not result.prompt_logprobs


def test_a_row_that_fails_only_in_the_logits_fails_alone(folder: Path, tmp_path: Path) -> None:
    tensors = random_tensors(RAW)
    tensors["lm_head.weight"][3] = torch.inf
    driver = StepDriver.load(write_checkpoint(tmp_path, RAW, tensors), block_size=4)
    driver.add("a", PROMPTS["a"])
    result = driver.step({"a": 23})
    assert failed_with(result.errors["a"], NonFiniteLogitsError) and not result.token_ids


def test_block_copies_read_every_source_first(driver: StepDriver) -> None:
    driver.add("a", PROMPTS["a"])
    driver.step({"a": 23})
    first, second = driver.blocks["a"][:2]
    kv = driver.executor.kv
    before = [cache.clone() for cache in (*kv.keys, *kv.values)]
    driver.executor.execute(driver.plan({}, copies=[(first, second), (second, first)]))
    for cache, old in zip((*kv.keys, *kv.values), before):
        assert torch.equal(cache[first], old[second]) and torch.equal(cache[second], old[first])


def test_a_forked_request_goes_on_from_a_copied_block(driver: StepDriver) -> None:
    driver.add("a", PROMPTS["a"])
    driver.step({"a": 22})
    fork = driver.add("fork", PROMPTS["a"])
    shared, last = driver.blocks["a"][:-1], driver.blocks["a"][-1]
    copied = driver.executor.info.num_blocks - 1
    driver.blocks["fork"] = [*shared, copied]
    fork.num_computed_tokens = 22
    driver.step({"a": 1, "fork": 1}, copies=[(last, copied)])
    driver.step({"a": 1, "fork": 1})
    assert (
        fork.output_token_ids
        == driver.requests["a"].output_token_ids
        == expected_tokens(driver, "a", 2)
    )


def test_naive_generation_stops_at_stop_tokens_and_limits(driver: StepDriver) -> None:
    model, prompt = driver.executor.model, PROMPTS["b"]
    greedy = SamplingParams(temperature=0, max_tokens=6)
    tokens, reason = generate_naive(model, prompt, greedy)
    assert (len(tokens), reason) == (6, FinishReason.LENGTH)
    stopped, reason = generate_naive(model, prompt, greedy, eos_token_ids=frozenset({tokens[2]}))
    assert (stopped, reason) == (tokens[: tokens.index(tokens[2]) + 1], FinishReason.STOP)
    assert len(generate_naive(model, prompt, greedy, max_total_tokens=len(prompt) + 2)[0]) == 2


def test_info_describes_what_was_loaded(driver: StepDriver) -> None:
    info = driver.executor.info
    assert (info.vocab_size, info.max_model_len, info.block_size, info.device) == (
        96,
        128,
        4,
        "cpu",
    )
    assert info.num_blocks == 4 * 128 // 4
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert info.eos_token_ids == {2}
    assert set(info.load_seconds) >= {"config", "weights", "kv_cache"}


def test_closing_frees_the_tensors_and_may_be_repeated(driver: StepDriver) -> None:
    kept = weakref.ref(driver.executor.kv.keys[0])
    driver.executor.close()
    driver.executor.close()
    gc.collect()
    assert kept() is None and driver.executor.info.vocab_size == 96


def test_unusable_configurations_are_refused_with_a_hint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(**options: object) -> TorchExecutor:
        return load_torch_executor(
            EngineConfig.from_flat({"model": str(folder), "device": "cpu", **options})
        )

    with pytest.raises(ConfigError, match="context length of 256"):
        load(max_model_len=257)
    with pytest.raises(ConfigError, match="unknown device"):
        load(device="gpu")
    with pytest.raises(
        InsufficientMemoryError, match=r"one request of 256 tokens needs 64\.0 KiB"
    ) as failure:
        load(kv_cache_memory=32 * 1024)
    assert "--max-model-len" in str(failure.value.hint)
    assert load(kv_cache_memory=100 * 1024).info.num_blocks == 25
    with pytest.raises(ModelLoadError, match="no folder"):
        load(model="./nowhere")
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("M", (), {"available": 1000}))
    with pytest.raises(InsufficientMemoryError, match="the weights need"):
        load()


def test_blocks_of_other_kernels_are_another_models(tmp_path: Path) -> None:
    """A disk tier that outlives the process is not read by kernels that round otherwise."""
    raw = tiny_config("llama", torch_dtype="bfloat16")
    folder = write_checkpoint(tmp_path, raw, random_tensors(raw, dtype=torch.bfloat16))
    names = set()
    for instruction_set in ("avx2", "generic"):
        with selected(instruction_set) as there:
            assert there
            fields = {"model": str(folder), "device": "cpu", "kv_cache_memory": 2**20}
            names.add(load_torch_executor(EngineConfig.from_flat(fields)).info.model_id)
    assert len(names) == 2
