"""Protects: a process that stops, at any moment of its work, is seen to hang by its reports."""

from __future__ import annotations

from queue import SimpleQueue

from tests.fakes import FakeExecutor
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.message_loop import MessageLoop
from twostroke.engine.messages import Drain, EngineMessage, EngineReply, StepReport


def test_it_is_busy_from_the_first_step_of_a_request_to_its_last_and_between_them() -> None:
    engine, replies = LLMEngine(FakeExecutor()), list[EngineReply]()
    inbox: SimpleQueue[EngineMessage | Drain] = SimpleQueue()
    params = SamplingParams(max_tokens=6, ignore_eos=True, detokenize=False)
    engine.submit(GenerationRequest(request_id="a", prompt_token_ids=[1, 2, 3], params=params))
    inbox.put(Drain())
    MessageLoop(engine, inbox, replies.append).serve()
    reports = [reply for reply in replies if isinstance(reply, StepReport)]
    assert sum(bool(report.outputs) for report in reports) == 6
    *steps, last = [report.status.busy_since for report in reports]
    assert all(since is not None for since in steps)
    assert last is None, "there is nothing left to do"
