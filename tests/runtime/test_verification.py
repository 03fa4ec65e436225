"""Protects: drafts are judged row by row, and what is wrong with one harms no request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.steps import StepDriver
from twostroke.core.errors import InvalidRequestError
from twostroke.core.step import StepResult
from twostroke.runtime import verification

BROKEN_TOKEN = 95
PROMPT = torch.randint(0, 90, (11,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(params=[8, 16], ids=["sdpa", "compiled attention"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> StepDriver:
    raw = tiny_config("llama", head_dim=request.param)
    tensors = random_tensors(raw)
    tensors["model.embed_tokens.weight"][BROKEN_TOKEN] = torch.nan
    return StepDriver.load(write_checkpoint(tmp_path / "tiny", raw, tensors), block_size=4)


def without_drafts(driver: StepDriver, count: int, **params: Any) -> list[int]:
    request = driver.add("plain", PROMPT, **params)
    driver.step({"plain": len(PROMPT)})
    while request.num_output_tokens < count:
        driver.step({"plain": 1})
    driver.release("plain")
    return request.output_token_ids[:count]


def begin(driver: StepDriver, **params: Any) -> None:
    driver.add("a", PROMPT, **params)
    driver.step({"a": len(PROMPT)})


def verify(driver: StepDriver, drafts: list[int]) -> StepResult:
    """A step of one known token and ``drafts``; takes up what it gave, as a scheduler would."""
    request = driver.requests["a"]
    plan = driver.plan({"a": 1 + len(drafts)})
    plan.scheduled["a"].draft_token_ids = drafts
    plan.scheduled["a"].samples = True
    result = driver.executor.execute(plan)
    if "a" not in result.repeated:
        request.num_computed_tokens += 1 + result.num_accepted_drafts.get("a", 0)
    request.token_ids += result.token_ids.get("a", [])
    return result


def test_a_step_gives_the_accepted_drafts_and_one_token_more(driver: StepDriver) -> None:
    right = without_drafts(driver, 6)
    begin(driver)
    result = verify(driver, [*right[1:3], (right[3] + 1) % 90, *right[4:]])
    assert result.token_ids["a"] == right[1:4]
    assert result.num_accepted_drafts == {"a": 2}
    assert verify(driver, right[4:]).token_ids["a"][:2] == right[4:]


def test_log_probabilities_are_those_of_each_position(driver: StepDriver) -> None:
    right = without_drafts(driver, 4)
    begin(driver, logprobs=2)
    together = verify(driver, right[1:3]).logprobs["a"]
    driver.reset()
    begin(driver, logprobs=2)
    singly = [entry for _ in range(3) for entry in verify(driver, []).logprobs["a"]]
    for one, other in zip(together, singly, strict=True):
        assert one.chosen.token_id == other.chosen.token_id
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)


def test_a_draft_that_breaks_the_numbers_costs_a_step_and_no_token(driver: StepDriver) -> None:
    right = without_drafts(driver, 4)
    begin(driver)
    while len(driver.requests["a"].output_token_ids) < 4:
        done = len(driver.requests["a"].output_token_ids)
        result = verify(driver, [right[done], BROKEN_TOKEN] if done < 3 else [])
        assert not result.errors
        if result.repeated:
            assert not result.token_ids
            assert not verify(driver, []).errors
    assert driver.requests["a"].output_token_ids[:4] == right
    for cache in (*driver.executor.kv.keys, *driver.executor.kv.values):
        assert bool(cache.isfinite().all()), "what a wrong draft wrote was left there"


def test_a_position_without_any_token_fails_only_when_it_is_reached(driver: StepDriver) -> None:
    """Two of the tokens may be drawn, and a bad word forbids both behind the first of them."""
    allowed = without_drafts(driver, 1)[:1]
    begin(driver, allowed_token_ids=allowed)
    state = driver.executor.requests["a"]
    state.spec = replace(state.spec, bad_words_token_ids=((*allowed * 3, *allowed),))
    state.edits_logits = True
    result = verify(driver, allowed * 4)
    assert result.token_ids["a"] == allowed * 2, "what was drawn before it counts"
    assert not result.errors
    result = verify(driver, allowed)
    assert not result.token_ids
    error = result.errors["a"].to_exception()
    assert isinstance(error, InvalidRequestError)


def test_many_rows_are_drawn_in_parts(driver: StepDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many drafts there are, the logits of few rows exist at a time."""
    right = without_drafts(driver, 8, temperature=1.0, logprobs=1)
    monkeypatch.setattr(verification, "MAX_LOGITS", 2 * driver.executor.info.vocab_size)
    begin(driver, temperature=1.0, logprobs=1)
    result = verify(driver, right[1:7])
    assert result.token_ids["a"] == right[1:8]
    assert [entry.chosen.token_id for entry in result.logprobs["a"]] == right[1:8]
