"""Answers in the harmony format of gpt-oss: messages with channels and recipients.

Source: OpenAI, "OpenAI harmony response format" (2025). The text must hold the special tokens.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import count

from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content, Reasoning
from twostroke.text.answer_parsing.source import AnswerSource, MalformedCallError, Reading

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
# An answer begins behind "<|start|>assistant" of the prompt, or writes that itself.
_BEGINNINGS = ("<|channel|>", "<|start|>", " to=")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION = re.compile(r"to=functions\.([^\s<]+)")


def harmony_parts(source: AnswerSource) -> Reading[None]:
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
