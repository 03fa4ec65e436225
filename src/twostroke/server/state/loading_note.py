"""What a server says of itself until its models are there."""

from __future__ import annotations


class LoadingNote:
    """One sentence, written by the thread that loads and read by the event loop's.

    Attributes:
        text: Why there is no model yet.
    """

    def __init__(self) -> None:
        self.text = "the model is loading"

    def say(self, text: str) -> None:
        """It is this from now on."""
        self.text = text
