"""Conversations to token ids: the template's special tokens count, those that clients write don't.

A message that spells out ``<|im_end|>`` would end its turn, and could go on with a system prompt.
So special tokens in whatever a client sends are marked before the template sees it: after their
first character comes one that no text holds. At the marks the rendered prompt is cut, and its
pieces are encoded one by one. A template that does not pass the marks through gets a space in their
place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from twostroke.core.errors import InvalidRequestError, TwostrokeError
from twostroke.text.chat_messages import check_messages
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.documents import Document, render_with_documents
from twostroke.text.special_texts import SpecialTexts
from twostroke.text.tokenizer import Tokenizer

# Unicode keeps these for a program's own use; no text that is exchanged may hold them.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_MAX_PIECES = 1000
_SYSTEM, _USER, _ASSISTANT = (
    {"role": role, "content": "x"} for role in ("system", "user", "assistant")
)


class ChatEncoder:
    """Renders and encodes the conversations of one model.

    Args:
        special_tokens_in_messages: Recognise special tokens in messages, as ``transformers`` does.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        *,
        special_tokens_in_messages: bool = False,
    ) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self._recognises = special_tokens_in_messages

    @cached_property
    def special_texts(self) -> SpecialTexts:
        """Special tokens, and others that the template puts around turns."""
        texts, added = self.tokenizer.special_texts, self.tokenizer.added_texts
        framing = {t for text in self._frames() for t in added - texts if t in text}
        normalised = map(self._normalised, texts | framing)
        return SpecialTexts({*texts, *framing, *normalised})

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        documents: Sequence[Document] = (),
        **options: Any,
    ) -> list[int]:
        """The token ids of a conversation; see ``pieces``."""
        return self.tokenizer.encode_pieces(self.pieces(messages, documents, **options))

    def pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        documents: Sequence[Document] = (),
        **options: Any,
    ) -> list[str]:
        """The prompt, cut wherever a client's text spells out a special token.

        Args:
            documents: In them special tokens are broken up already.
            options: Further arguments of ``ChatTemplate.render``.

        Raises:
            InvalidRequestError: As ``ChatTemplate.render``.
        """

        try:
            # Tool arguments are JSON text, whose escapes would hide special tokens.
            checked = check_messages(messages, more_roles=self.template.roles)
            return self._pieces(checked, documents, options)
        except RecursionError as error:
            raise InvalidRequestError(
                "tools or their arguments are nested too deeply", param="messages"
            ) from error

    def _pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        documents: Sequence[Document],
        options: Mapping[str, Any],
    ) -> list[str]:
        def render(chat: Any, variables: Any) -> str:
            return render_with_documents(self.template, chat, documents, **variables)

        # The roles are fixed words, which the template compares.
        bare = [{k: v for k, v in message.items() if k != "role"} for message in messages]
        texts = [] if self._recognises else list(_texts([bare, options]))
        halves = self.special_texts.halves(texts) if len(texts) > 1 else frozenset[str]()
        if not halves and not any(map(self._is_special, texts)):
            return [render(messages, options)]

        def render_broken(gap: str) -> str:
            chat = self._broken(bare, gap, halves)
            for message, broken in zip(messages, chat, strict=True):
                broken["role"] = message["role"]
            return render(chat, self._broken(options, gap, halves))

        escaped = render_broken(" ")
        mark = next((mark for mark in _MARKS if not any(mark in text for text in texts)), None)
        if mark is None:
            return [escaped]
        marked = render_broken(mark)
        pieces = marked.split(mark)
        survived = " ".join(pieces) == escaped
        return pieces if survived and len(pieces) <= _MAX_PIECES else [escaped]

    def _is_special(self, text: str) -> bool:
        special = self.special_texts
        return special.is_in(text) or (
            self.tokenizer.matches_normalised and special.is_in(self._normalised(text))
        )

    def _broken(self, value: Any, gap: str, halves: frozenset[str]) -> Any:
        """``value`` with every text in it broken up."""
        if isinstance(value, str):
            return self.broken_text(value, gap, halves)
        if isinstance(value, Mapping):
            return {
                self._broken(name, gap, halves): self._broken(item, gap, halves)
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._broken(item, gap, halves) for item in value]
        return value

    def broken_text(self, text: str, gap: str, halves: frozenset[str]) -> str:
        """``text`` with ``gap`` in each special token, normalised or not, and in ``halves``."""
        special = self.special_texts
        if self.tokenizer.matches_normalised and not special.is_in(text):
            normalised = self._normalised(text)
            text = normalised if special.is_in(normalised) else text
        text = special.broken(text, gap)
        if halves:
            body = text.strip()
            start = text.find(body)
            stop = start + len(body)
            for half in halves:
                if text.endswith(half, start, stop):
                    text = text[: stop - len(half) + 1] + gap + text[stop - len(half) + 1 :]
                    stop += len(gap)
                if text.startswith(half, start):
                    text = text[: start + 1] + gap + text[start + 1 :]
                    stop += len(gap)
        return text

    def _normalised(self, text: str) -> str:
        normaliser = self.tokenizer.backend.normalizer
        matches = self.tokenizer.matches_normalised and normaliser is not None
        return str(normaliser.normalize_str(text)) if matches else text

    def _frames(self) -> Iterator[str]:
        """What the template writes around plain messages, as far as it accepts them."""
        for chat in ([_USER], [_USER, _ASSISTANT, _USER], [_SYSTEM, _USER]):
            try:
                yield self.template.render(chat, add_generation_prompt=False)
            except TwostrokeError:
                continue


def _texts(value: object) -> Iterator[str]:
    """Every text in messages and options, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name != "content":
                yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
