"""From Anthropic's messages to the turns of a chat, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from twostroke.core.errors import InvalidRequestError
from twostroke.server.anthropic.block_fields import BlockFields, MessageFields, text_block
from twostroke.server.anthropic.message_request import PromptFields
from twostroke.server.anthropic.source_fields import texts_of
from twostroke.server.calls.prompt import message_length
from twostroke.server.generation.encoding import beside_loop, check_length
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.chat_messages import turn_options
from twostroke.server.openai.template_variables import THINKING_VARIABLES
from twostroke.server.openai.tools.request_tools import ToolFields, template_tools
from twostroke.server.state.served_model import ServedModel
from twostroke.text.tokenizer import LONG_TEXT

# Claude Code puts a line of its own before the system prompt, other digits in each request: with
# it no two prompts would share a prefix.
ATTRIBUTION = "x-anthropic-billing-header"
BLOCK_CHARS = 64  # a block takes as long as this many characters
_EFFORTS = {"xhigh": "high", "max": "high"}  # templates know three


class MessageTurns(NamedTuple):
    """Messages and rendering of a ``Call``, and what of the request they do not show, as paths."""

    messages: list[dict[str, Any]]
    rendering: dict[str, Any]
    ignored: list[str]


async def read_turns(
    model: ServedModel, body: PromptFields, tools: Mapping[int, ToolFields] | None
) -> MessageTurns:
    """The turns of a request.

    Args:
        tools: Those that the answer may call, by their places.

    Raises:
        InvalidRequestError: A text is not Unicode, or the last message cannot be continued.
        RequestTooLargeError: They are longer than any prompt.
    """
    variables, ignored = _template_variables(model, body)
    slow = sum(map(_size, body.messages)) > LONG_TEXT
    turns, unread = await beside_loop(partial(_turns, body), slow=slow)
    continued = turns[-1]["role"] == "assistant"
    if continued and "tool_calls" in turns[-1]:
        raise InvalidRequestError(
            "the last message holds a tool_use without a tool_result",
            param=f"messages[{len(body.messages) - 1}].content",
            hint="append a user message with the tool's result",
        )
    check_length(model, sum(map(message_length, turns)), "messages")
    for turn in turns:
        if turn["role"] != "assistant":  # templates know no thoughts and calls of others
            turn.pop("reasoning_content", None)
            turn.pop("tool_calls", None)
    functions = template_tools(tools.values()) if tools else None
    rendering = {**turn_options(None, continued), **variables, "tools": functions}
    return MessageTurns(turns, rendering, body.dropped_fields() + unread + ignored)


def _size(message: MessageFields) -> int:
    """How long a message takes to convert, in characters of text."""
    content = message.content
    return BLOCK_CHARS + (len(content) if isinstance(content, str) else BLOCK_CHARS * len(content))


def _turns(body: PromptFields) -> tuple[list[dict[str, Any]], list[str]]:
    """The turns of a chat, and which kinds of blocks they do not show."""
    _check_texts(body)
    system = texts_of(body.system)
    shown = [text for text in system if not text.startswith(ATTRIBUTION)]
    ignored = [f"system.{ATTRIBUTION}"] if len(shown) < len(system) else []
    entries = [("system", list(map(text_block, shown)))] if shown else []
    entries += [(message.role, message.blocks()) for message in body.messages]
    names: dict[str, str] = {}
    turns: list[dict[str, Any]] = []
    # Messages of one role in a row are one turn.
    for role, group in groupby(entries, key=itemgetter(0)):
        turns += _turns_of(role, [block for _, blocks in group for block in blocks], names)
    kinds = {block.type for _, blocks in entries for block in blocks}
    if "redacted_thinking" in kinds:
        ignored.append("messages[].content[].redacted_thinking")
    return turns, ignored


def _turns_of(
    role: str, blocks: Sequence[BlockFields], names: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """The turns that one role has in a row: results of tools are turns of their own.

    Args:
        names: Names of the tools by the ids of calls so far; those of these blocks are added.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    num_results = 0
    for block in blocks:
        match block.type:
            case "text" | "document" | "search_result":
                texts.append(block.shown())
            case "thinking":
                thoughts.append(block.thinking or "")
            case "tool_use":
                names[block.id or ""] = block.name or ""
                calls.append(_call(block))
            case "tool_result":
                if texts:
                    yield _turn(role, texts)
                num_results, texts = num_results + 1, []
                called = names.get(block.tool_use_id or "")
                result = _turn("tool", block.result_texts())
                yield result | _given(name=called, tool_call_id=block.tool_use_id)
    if texts or thoughts or calls or not num_results:
        thought = "".join(thoughts)
        shown = _given(reasoning_content=thought or None, tool_calls=calls or None)
        yield _turn(role, texts) | shown


def _turn(role: str, texts: Sequence[str]) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _call(block: BlockFields) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": block.name or "", "arguments": arguments}
    return _given(id=block.id) | {"type": "function", "function": function}


def _template_variables(model: ServedModel, body: PromptFields) -> tuple[dict[str, Any], list[str]]:
    """What ``thinking`` and ``output_config`` say to the template, and which of it is not read."""
    read = model.chat_encoder.template.variables
    values: dict[str, Any] = {}
    ignored: list[str] = []
    if (thinking := body.thinking) is not None:
        wanted = thinking.type != "disabled"
        choices = {name: wanted for name in THINKING_VARIABLES if name in read}
        values |= choices
        # A model that always thinks does so without being asked, too.
        if not choices and not (wanted and model.reasoning_parser is not None):
            ignored.append("thinking.type")
        if wanted and thinking.budget_tokens is not None:
            if "thinking_budget" in read:
                values["thinking_budget"] = thinking.budget_tokens
            elif model.reasoning_parser is None:
                ignored.append("thinking.budget_tokens")
    if body.output_config is not None and (effort := body.output_config.effort) is not None:
        if "reasoning_effort" in read:
            values["reasoning_effort"] = _EFFORTS.get(effort, effort)
        else:
            ignored.append("output_config.effort")
    return values, ignored


def _check_texts(body: PromptFields) -> None:
    """Refuse lone surrogates, under the names that the client has for the fields."""
    check_unicode("system", texts_of(body.system))
    for i, message in enumerate(body.messages):
        for j, block in enumerate(message.blocks()):
            path = f"messages[{i}].content" + ("" if isinstance(message.content, str) else f"[{j}]")
            texts = [block.thinking, block.id, block.name, block.tool_use_id, block.shown()]
            if block.input is not None:
                texts.append(json.dumps(block.input, ensure_ascii=False))
            check_unicode(path, [text for text in texts if text is not None])
