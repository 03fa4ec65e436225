"""The parts of an answer as content blocks: thoughts, texts and calls, one after the other."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from twostroke.text.answer_parsing.parts import (
    AnswerPart,
    CallArguments,
    CallStarted,
    Content,
    Reasoning,
)

_EMPTY = Raw(b"{}")


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStart(Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: ContentBlock


class ContentBlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Delta


class ContentBlockStop(Struct, tag_field="type", tag="content_block_stop"):
    index: int


BlockEvent = ContentBlockStart | ContentBlockDelta | ContentBlockStop


class BlockWriter:
    """Turns the parts of one answer into the events of its blocks.

    A block has one kind of part; the next kind, and each call, begins a new one. White space
    between calls is no block.

    Args:
        show_thoughts: Whether thoughts become blocks.
        omit_thoughts: Those blocks have no text.
    """

    def __init__(self, *, show_thoughts: bool = True, omit_thoughts: bool = False) -> None:
        self._show_thoughts = show_thoughts
        self._omit_thoughts = omit_thoughts
        self._num_blocks = 0
        self._open: ContentBlock | None = None
        self._space = ""  # that may be the beginning of a text
        self._thought = hashlib.blake2b(digest_size=32)

    def write(self, parts: Iterable[AnswerPart]) -> list[BlockEvent]:
        """The events of further parts."""
        events: list[BlockEvent] = []
        for part in parts:
            match part:
                case Content(text):
                    self._write_text(events, text)
                case Reasoning(text) if self._show_thoughts:
                    self._write_thought(events, text)
                case CallStarted(_, name):
                    self._space = ""
                    block = ToolUseBlock(f"toolu_{uuid.uuid4().hex[:24]}", name, _EMPTY)
                    self._begin(events, block)
                    # At least one delta, also if the answer ends here.
                    self._delta(events, InputJsonDelta(""))
                case CallArguments(_, text):
                    self._delta(events, InputJsonDelta(text))
        return events

    def end(self) -> list[BlockEvent]:
        """The last events. An answer of white space alone is a text."""
        events: list[BlockEvent] = []
        if self._space and not self._num_blocks:
            self._begin(events, TextBlock(""))
            self._delta(events, TextDelta(self._space))
        self._close(events)
        return events

    def _write_text(self, events: list[BlockEvent], text: str) -> None:
        if not isinstance(self._open, TextBlock):
            text = self._space + text
            if not text.strip():
                self._space = text
                return
            self._space = ""
            self._begin(events, TextBlock(""))
        self._delta(events, TextDelta(text))

    def _write_thought(self, events: list[BlockEvent], text: str) -> None:
        if not isinstance(self._open, ThinkingBlock):
            self._begin(events, ThinkingBlock("", ""))
            self._thought = hashlib.blake2b(digest_size=32)
        self._thought.update(text.encode("utf-8", "surrogatepass"))
        if not self._omit_thoughts:
            self._delta(events, ThinkingDelta(text))

    def _begin(self, events: list[BlockEvent], block: ContentBlock) -> None:
        self._close(events)
        self._open = block
        events.append(ContentBlockStart(self._num_blocks, block))
        self._num_blocks += 1

    def _delta(self, events: list[BlockEvent], delta: Delta) -> None:
        events.append(ContentBlockDelta(self._num_blocks - 1, delta))

    def _close(self, events: list[BlockEvent]) -> None:
        if isinstance(self._open, ThinkingBlock):
            # Clients leave thoughts without a signature out of later turns.
            digest = base64.b64encode(self._thought.digest()).decode()
            self._delta(events, SignatureDelta(digest))
        if self._open is not None:
            events.append(ContentBlockStop(self._num_blocks - 1))
        self._open = None


def whole_blocks(events: Iterable[BlockEvent]) -> list[ContentBlock]:
    """The blocks that events add up to."""
    blocks: list[ContentBlock] = []
    texts: list[dict[str, list[str]]] = []
    for event in events:
        if isinstance(event, ContentBlockStart):
            blocks.append(event.content_block)
            texts.append({})
        elif isinstance(event, ContentBlockDelta):
            for name, text in msgspec.structs.asdict(event.delta).items():
                texts[-1].setdefault(name, []).append(text)
    return [_filled(block, fields) for block, fields in zip(blocks, texts)]


def _filled(block: ContentBlock, fields: dict[str, list[str]]) -> ContentBlock:
    joined: dict[str, Any] = {name: "".join(texts) for name, texts in fields.items()}
    if isinstance(block, ToolUseBlock):
        joined = {"input": _object(joined["partial_json"])}
    return msgspec.structs.replace(block, **joined)


def _object(text: str) -> Raw:
    """JSON text as it is, or an empty object where an answer was cut off within a call."""
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return _EMPTY
    return Raw(text.encode())
