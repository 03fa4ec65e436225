"""Answers that are gathered from outputs."""

from __future__ import annotations

import pytest

from twostroke.core.errors import ErrorMessage, RequestFailedError
from twostroke.core.logprobs import PositionLogprobs, TokenLogprob
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.answer import CollectedAnswer, output_error, raise_output_error


def output(*token_ids: int, text: str = "", **fields: object) -> RequestOutput:
    values = {
        "request_id": "r",
        "index": 0,
        "num_prompt_tokens": 3,
        "num_cached_tokens": 2,
        **fields,
    }
    return RequestOutput(token_ids=list(token_ids), text=text, **values)  # type: ignore[arg-type]


def position(token: int, logprob: float) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token, logprob, 1), [])


def test_pieces_are_joined() -> None:
    answer = CollectedAnswer(index=1)
    answer.add(output(prompt_logprobs=[position(1, -1.0)]))
    answer.add(
        output(5, text="a", prompt_logprobs=[position(2, -2.0)], logprobs=[position(5, -0.5)])
    )
    assert (answer.finish_reason, answer.stop_reason) == (None, None)
    answer.add(
        output(
            6,
            7,
            text="bc",
            logprobs=[position(6, -0.25), position(7, -1.0)],
            finish_reason=FinishReason.STOP,
            stop_reason="END",
        )
    )
    assert (answer.index, answer.text, answer.token_ids) == (1, "abc", [5, 6, 7])
    assert [entry.chosen.token_id for entry in answer.logprobs] == [5, 6, 7]
    assert answer.prompt_logprobs == [position(1, -1.0), position(2, -2.0)]
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, "END")
    assert (answer.cumulative_logprob, answer.num_cached_tokens) == (-1.75, 2)
    assert answer.error is None


def test_outputs_are_not_changed() -> None:
    """They may be shared: the log-probabilities of an output are its maker's."""
    first, second = output(1, logprobs=[position(1, -1.0)]), output(2, logprobs=[position(2, -2.0)])
    answer = CollectedAnswer()
    answer.add(first)
    answer.add(second)
    assert (first.token_ids, first.logprobs) == ([1], [position(1, -1.0)])


def test_a_failure_keeps_what_there_was() -> None:
    answer = CollectedAnswer()
    answer.add(output(1, text="half"))
    failed = output(
        finish_reason=FinishReason.ERROR,
        error=ErrorMessage.of(RequestFailedError("the pass failed")),
    )
    answer.add(failed)
    assert (answer.text, answer.finish_reason) == ("half", FinishReason.ERROR)
    assert isinstance(answer.error, RequestFailedError)
    assert isinstance(output_error(failed), RequestFailedError)
    with pytest.raises(RequestFailedError, match="the pass failed"):
        raise_output_error(failed)
    raise_output_error(output(1))
