"""The harmony format of gpt-oss: thoughts, calls and the answer are messages in channels.

Source: OpenAI, "OpenAI harmony response format" (2025). The text must hold the special tokens.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import count

from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content, Reasoning
from twostroke.text.answer_parsing.source import AnswerSource, MalformedCallError, Reading
from twostroke.tools.base import CallRule, ToolFamily, ToolSchemas
from twostroke.tools.rules import Rules

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
# An answer begins after "<|start|>assistant" of the prompt, or writes that itself.
_BEGINNINGS = ("<|channel|>", "<|start|>", " to=")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION = re.compile(r"to=functions\.([^\s<]+)")
FINAL_MESSAGE = "<|channel|>final<|message|>"


def read_parts(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
    """Analysis is reasoning, a message to a function a call, all else content.

    A header that the end of the answer cuts off is nothing. An answer without one is content.
    """
    indices = count()
    in_headers = False
    while not (yield from source.at_end()):
        source.keep()
        in_headers = in_headers or (yield from source.next_is(*_BEGINNINGS)) is not None
        try:
            header, _ = yield from source.text_until("<|message|>")
        except MalformedCallError:
            if source.ended and in_headers:
                source.take_since_mark()
                return
            raise
        in_headers = True
        channel, function = _CHANNEL.search(header), _FUNCTION.search(header)
        if function is not None:
            index = next(indices)
            yield CallStarted(index, function[1])
            yield from source.json_value(partial(CallArguments, index))
            yield from source.skip_space()
            if (yield from source.at_end()):
                return
            if (yield from source.next_is(*_ENDS)) is None:
                raise MalformedCallError("text after the arguments of a call")
            yield from source.until(_ENDS, Content)
        else:
            is_thought = channel is not None and channel[1] == "analysis"
            yield from source.until(_ENDS, Reasoning if is_thought else Content)


def add_thoughts(rules: Rules) -> None:
    """Add the rule ``thought``: a message before the last one."""
    headers = ("<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>")
    literals = " | ".join(rules.literal(header) for header in headers)
    end = rules.after_text("<|end|>", "ended")
    rules.add("thought", f"({literals}) {end} {rules.literal('<|start|>assistant')}")


def _call(call: CallRule) -> str:
    rules = call.rules
    headers = " | ".join(rules.literal(header) for header in _call_headers(call.function))
    # The token that ends a call may be one of the model's end tokens, or not.
    end = f"({rules.literal('<|call|>')})?" if rules.is_special("<|call|>") else ""
    return f"({headers}) {call.json()} {end}"


def _call_headers(name: str) -> list[str]:
    """How a message to a function may begin: its recipient is in the channel or in the role."""
    kinds = (" <|constrain|>json", " json", "")
    by_channel = [f"<|channel|>commentary to=functions.{name}{kind}" for kind in kinds]
    by_role = [f" to=functions.{name}<|channel|>commentary{kind}" for kind in kinds]
    return [f"{header}<|message|>" for header in by_channel + by_role]


def _messages(rules: Rules, other: str | None) -> str:
    """Thoughts, then a call or the answer."""
    add_thoughts(rules)
    answer = "" if other is None else f" | {rules.literal(FINAL_MESSAGE)} {other}"
    return f"thought* (call{answer})"


HARMONY = ToolFamily(
    name="openai",
    marks=("<|channel|>",),
    special_texts=(
        "<|channel|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "<|constrain|>",
        "<|call|>",
    ),
    messages=_messages,
    read=read_parts,
    call=_call,
)
