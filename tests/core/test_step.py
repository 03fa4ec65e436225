"""Plans, results and errors as messages: their bookkeeping, and their way over a wire."""

from __future__ import annotations

import pytest

from tests import wire
from tests.specs import resolved
from twostroke.core.errors import (
    EngineDeadError,
    EngineError,
    ErrorMessage,
    InvalidRequestError,
    RequestFailedError,
    ShuttingDownError,
    TwostrokeError,
)
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.kv_tier_config import BlockTransfer
from twostroke.core.logprobs import PositionLogprobs, TokenLogprob
from twostroke.core.pooling import Pooling, PoolingParams
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import (
    Decision,
    NewRequest,
    Reason,
    ScheduledRequest,
    StepPlan,
    StepResult,
)


def test_a_removed_request_takes_its_tokens_and_copies_with_it() -> None:
    """Its blocks may be given away in the same step: a stale copy could overwrite the new
    owner's.
    """
    plan = StepPlan(step=0, time=0.0)
    for name, blocks in (("a", [1, 2]), ("b", [3])):
        plan.add(ScheduledRequest(name, 0, 5, False, len(blocks), 0, blocks))
        plan.new_requests[name] = NewRequest(resolved(name, [1] * 9))
    plan.block_copies = [(7, 2), (8, 3)]
    plan.remove("a", [1, 2])
    plan.remove("unknown", [])
    assert (list(plan.scheduled), plan.num_tokens, plan.block_copies) == (["b"], 5, [(8, 3)])
    assert list(plan.new_requests) == ["b"]


def test_plan_and_result_cross_a_wire_unchanged() -> None:
    """All that an executor in another process gets and gives, every field of it in use."""
    params = SamplingParams(
        seed=-5, stop=["x"], logit_bias={3: -1.5}, allowed_token_ids=[9, 1], bad_words=("no",)
    )
    plan = StepPlan(step=3, time=1.5, block_copies=[(1, 2)], released=["gone"])
    pooling = PoolingParams(dimensions=3, score_token_ids=(1, 2))
    plan.new_requests["a"] = NewRequest(
        ResolvedRequest(
            request_id="a#1",
            parent_id="a",
            index=1,
            prompt_token_ids=[1],
            params=params,
            max_total_tokens=9,
            seed=2**64 - 1,
            eos_token_ids=frozenset({7}),
            bad_words_token_ids=((1, 2), (3,)),
            priority=-1,
            cache_salt="salt",
            tenant="tenant",
            labels={"user": "u"},
            follows=True,
            num_following_samples=2,
            prediction_token_ids=[8, 4],
            pooling=pooling,
            vector=Pooling(task="embed", kind="last"),
            ttft_target=0.5,
            waited=0.25,
        ),
        [2],
    )
    plan.add(ScheduledRequest("a", 0, 4, True, 1, 0, [5], [], [8, 9], 3))
    plan.block_loads.append(BlockTransfer("a", [5, 6], [b"key", 7]))
    plan.block_saves.append(BlockTransfer("a", [6], [b"other"]))
    plan.decisions.append(Decision("b", Reason.PREEMPTED, "a", 2))
    assert wire.decode(wire.encode(plan), StepPlan) == plan
    position = PositionLogprobs(TokenLogprob(1, -0.5, 1), [TokenLogprob(1, -0.5, 1)])
    result = StepResult(
        token_ids={"a": [8, 4]},
        num_accepted_drafts={"a": 1},
        draft_token_ids={"a": [1]},
        repeated=["e"],
        logprobs={"a": [position, position]},
        prompt_logprobs={"a": [position]},
        loaded=["c"],
        failed_loads=["d"],
        errors={"b": ErrorMessage.of(InvalidRequestError("bad", param="x", hint="mend it"))},
        failure="why",
        duration=0.5,
        timings={"forward": 0.25},
    )
    assert wire.decode(wire.encode(result), StepResult) == result


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("bad", param="x", hint="mend it"),
        RequestFailedError("boom"),
        EngineDeadError("dead", hint="restart"),
        ShuttingDownError("later"),
    ],
)
def test_an_error_that_was_sent_is_the_same_error(error: TwostrokeError) -> None:
    sent = wire.decode(wire.encode(ErrorMessage.of(error)), ErrorMessage).to_exception()
    assert type(sent) is type(error)
    assert (sent.message, sent.hint) == (error.message, error.hint)
    assert vars(sent) == vars(error)


def test_an_error_of_an_unknown_kind_is_still_an_error() -> None:
    """A newer engine may send kinds of errors that this client does not have."""
    sent = ErrorMessage("NewKindOfError", "what happened", "what to do").to_exception()
    assert type(sent) is EngineError and sent.message == "what happened"
