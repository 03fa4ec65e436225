"""Question and answer of ``POST /v1/inspect/compare``."""

from __future__ import annotations

from typing import Literal

import msgspec

from twostroke.questions.replay import ReplayedRequest, Side, StepTimesFit

Against = Literal["static", "whole", "chunk", "budget"]


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /v1/inspect/compare``.

    Attributes:
        begin: Start of the range on the engine's clock; requests that ran in it are replayed.
        end: End of the range.
        against: ``static``: a batch begins when the one before has ended; ``whole``: prompts are
            not cut into chunks; ``chunk``: into chunks of ``tokens``; ``budget``: steps of at most
            ``tokens``.
        tokens: For ``chunk`` and ``budget``.
    """

    begin: float
    end: float
    against: Against = "static"
    tokens: int | None = None


class ComparisonAnswer(msgspec.Struct):
    """The answer of ``POST /v1/inspect/compare``.

    Attributes:
        requests: Those of the range, and those that ran beside them before and after it.
        unfinished: Those of the range that had not ended; they are replayed as far as they got.
        left_out: Requests of the range whose beginning is no longer known.
        notes: Sentences on what the replay leaves out.
    """

    question: Question
    requests: list[ReplayedRequest]
    fit: StepTimesFit
    recorded: Side
    other: Side
    unfinished: int
    left_out: int
    notes: list[str]
