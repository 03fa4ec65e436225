"""Protects: what crosses between a front end and an engine is plain data, whole on both sides."""

from __future__ import annotations

from typing import Any

from tests import wire
from tests.engine.calls import TOKENIZER, call
from tests.fakes import FakeExecutor
from twostroke.core.errors import ErrorMessage, ShuttingDownError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.logprobs import PositionLogprobs, TokenLogprob
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.intake import Intake
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import (
    AbortRequest,
    AddRequest,
    Close,
    EngineMessage,
    ForgetRequest,
    make_requests,
)


def test_a_client_in_another_process_needs_only_bytes() -> None:
    """Validated from what the engine says of itself, sent as bytes, run, and read as bytes."""
    engine = LLMEngine(FakeExecutor())
    info = wire.decode(wire.encode(engine.info), type(engine.info))
    sent = wire.encode(Intake(info, None, seed=7).prepare(call("a", n=2, max_tokens=5), 0.0))
    engine.add(wire.decode(sent, AddRequest))
    outputs: list[RequestOutput] = []
    while engine.has_work():
        outputs += [wire.decode(wire.encode(output), RequestOutput) for output in engine.step()]
    same = LLMEngine(FakeExecutor())
    same.intake = Intake(same.info, None, seed=7)
    same.submit(call("a", n=2, max_tokens=5))
    expected: list[RequestOutput] = []
    while same.has_work():
        expected += same.step()
    assert outputs == expected
    assert sum(len(output.token_ids) for output in outputs) == 10


def test_messages_are_told_apart_on_the_other_side() -> None:
    error = ErrorMessage.of(ShuttingDownError("later", hint="elsewhere"))
    add = Intake(FakeExecutor().info, TOKENIZER, seed=1).prepare(
        call("a", bad_words=["no"], detokenize=True, logit_bias={3: 1.0}, stop=["x"]), 2.5
    )
    messages = [add, AbortRequest("a", error), AbortRequest("b"), ForgetRequest("c"), Close()]
    for message in messages:
        kind: Any = EngineMessage
        received = wire.decode(wire.encode(message), kind)
        assert received == message and type(received) is type(message)


def test_a_call_and_an_output_cross_a_wire_unchanged() -> None:
    generation = call("a", temperature=0.5, seed=-3, allowed_token_ids=[5, 4])
    assert wire.decode(wire.encode(generation), GenerationRequest) == generation
    position = PositionLogprobs(TokenLogprob(1, -0.5, 2), [TokenLogprob(3, -0.25, 1)])
    output = RequestOutput(
        "a", 1, [7], 3, 2, "text", [position], [position], FinishReason.STOP, "x", None, 3
    )
    assert wire.decode(wire.encode(output), RequestOutput) == output


def test_the_first_sample_leads_and_each_has_a_seed_of_its_own() -> None:
    message = Intake(FakeExecutor().info, None, seed=1).prepare(call("a", n=3), 0.0)
    requests = make_requests(message)
    assert [request.request_id for request in requests] == ["a#0", "a#1", "a#2"]
    assert [request.leader for request in requests] == [None, requests[0], requests[0]]
    assert len({request.spec.seed for request in requests}) == 3
