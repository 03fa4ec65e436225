"""A tokenizer's vocabulary in the form that llguidance takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

END_OF_ANSWER = b"<|end of the answer|>"


class Vocabulary:
    """What llguidance asks of a tokenizer (its ``TokenizerWrapper``).

    One token is added behind the tokenizer's own: it stands for the end of an answer, whatever
    tokens end it in the model. So a grammar depends on the tokenizer alone.

    Attributes:
        tokens: The bytes of each token, by id.
        special_token_ids: Those that are no text; a grammar allows them by their id only.
    """

    is_tokenizer_wrapper = True
    bos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        size = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self.eos_token_id = size
        self.tokens: Sequence[bytes] = [*map(tokenizer.token_bytes, range(size)), END_OF_ANSWER]
        self.special_token_ids: Sequence[int] = [*sorted(tokenizer.special_ids), size]

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of a forced text, as the model itself would have written it."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)


def load_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """The vocabulary with its prefix tree: half a second for 128,000 tokens."""
    from llguidance import LLTokenizer

    return LLTokenizer(Vocabulary(tokenizer))  # type: ignore[arg-type]  # as TokenizerWrapper is
