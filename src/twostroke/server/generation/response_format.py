"""The seam between a generation and its API: outputs become the objects of that API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from twostroke.core.output import RequestOutput
from twostroke.core.prefix_hit import PrefixHit
from twostroke.engine.answer import CollectedAnswer


@dataclass(slots=True)
class CallTokens:
    """Tokens of one call so far, over all its prompts and samples, and when they came.

    Attributes:
        prompt: A prompt counts once, however many samples it has.
        cached: Those of them that the prefix cache had, by prompt.
        accepted: Tokens of the answers that were drafted before they were drawn.
        rejected: Drafts that were verified and wrong.
        arrived: When the client's call arrived. All times are those of ``time.monotonic``.
        submitted: When the engine got its prompts.
        begun: When the first output came, 0 before.
        hit: The prefix hit of a single prompt, where the model has recurrent layers.
    """

    prompt: int
    completion: int
    cached: list[int]
    accepted: int = 0
    rejected: int = 0
    arrived: float = 0.0
    submitted: float = 0.0
    begun: float = 0.0
    hit: PrefixHit | None = None


class ResponseFormat(Protocol):
    """What one route promises to send. Choices are numbered over all prompts.

    The choice of a sample is ``prompt * n + sample``. ``tokens`` is the generation's own: read it
    during the call, do not keep or change it.
    """

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        """The server-sent events for what a step added to a choice; empty while text is held back.

        Args:
            first: Nothing has been sent of this choice.
            last: Nothing follows, of no choice; what ends the stream is part of the events.
        """

    def failure(self, error: Exception) -> bytes:
        """The last events of a stream in which something has been sent already."""

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> object:
        """The whole answer, for JSON: ``answers`` has one entry for each choice, ended."""
