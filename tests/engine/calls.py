"""Calls and executors that the engine's tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.errors import (
    ErrorMessage,
    NonFiniteLogitsError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.message_client import MessageClient
from twostroke.engine.llm_engine import LLMEngine
from twostroke.sampling.request_state import RequestState
from twostroke.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(byte_level())


class TextExecutor(FakeExecutor):
    """Says given token sequences, one per request id, whatever the prompt."""

    def __init__(self, says: dict[str, list[int]], num_drafts: int = 0) -> None:
        super().__init__(num_drafts=num_drafts)
        self.info = replace(self.info, vocab_size=TOKENIZER.vocab_size, eos_token_ids=frozenset())
        self.says = says

    def next_token(self, request: RequestState, token_ids: list[int]) -> int:
        says, position = self.says[request.request_id], len(token_ids) - request.answer_start
        return says[position] if position < len(says) else 0


class NanExecutor(FakeExecutor):
    """Reports one request's numbers as broken in its second step."""

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        if "bad" in result.token_ids and plan.scheduled["bad"].start > 0:
            del result.token_ids["bad"]
            result.errors["bad"] = ErrorMessage.of(NonFiniteLogitsError("NaN"))
        return result


def call(request_id: str, prompt: list[int] | None = None, **params: Any) -> GenerationRequest:
    fields = {"max_tokens": 6, "ignore_eos": True, "detokenize": False, **params}
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt or [1, 2, 3],
        params=SamplingParams(**fields),
    )


def finish(engine: LLMEngine, limit: int = 200) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left; outputs by request, integrity checked after each step."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(limit):
        if not engine.has_work():
            break
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.kv.check_integrity()
    assert not engine.has_work()
    assert engine.scheduler.kv.pool.num_free == engine.scheduler.kv.pool.num_blocks
    return outputs


def num_cached(client: MessageClient, call: GenerationRequest) -> int:
    """Tokens of a call's prompt that a client takes for cached."""
    return client.prefixes.num_cached(client.prefixes.as_request(call))
