"""How the answers to one call are read: as plain text, or as thoughts, content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from twostroke.constraints.thought_budget import NO_BOUND, ThoughtBudget
from twostroke.constraints.thoughts import Thought
from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.server.state.served_model import ServedModel
from twostroke.text.answer_parsing.answer_parts import AnswerParts
from twostroke.text.answer_parsing.reasoning import CLOSING, OPENING, plain_content, thought_then
from twostroke.text.answer_parsing.source import Reader
from twostroke.tools.base import ToolSchemas
from twostroke.tools.reasoning import family_with_thoughts

# Tokens at the prompt's end among which the tag that opens a thought would be.
_NUM_LAST_TOKENS = 8


class AnswerReading:
    """Makes the stream of parts of each choice of one call.

    Args:
        tools: The call's tools by name; ``None`` if the answer may call none.
        prompt: Token ids: its end says whether the answer begins within a thought.
        max_calls: Most calls in one answer; ``None``: as many as there are.

    Attributes:
        parses: Whether answers have other parts than content at all.
        thought: Whether a thought may come first, or is open where the answer begins.

    Raises:
        InvalidRequestError: There are tools, and the model has no form for calls.
    """

    def __init__(
        self,
        model: ServedModel,
        tools: ToolSchemas | None,
        prompt: Sequence[int],
        max_calls: int | None = None,
    ) -> None:
        family = model.tool_family
        if tools is not None and family is None:
            raise InvalidRequestError(
                "this model's chat template has no form for tool calls",
                param="tools",
                hint="leave tools out, or start the server with --tool-call-parser",
            )
        # Where thoughts and calls are messages like the answer itself.
        messages = family_with_thoughts(family, model.reasoning_parser)
        read: Reader = plain_content
        self.thought: Thought = ""
        self._markers = set[str]()
        if tools is not None and family is not None:
            read = family.reader(tools)
            self._markers.update(family.special_texts)
        if messages is not None:
            read = messages.reader(tools or {})
            self._markers.update(messages.special_texts)
            self.thought = "channels"
        thinks = model.reasoning_parser is not None and messages is None
        if thinks:
            end = model.tokenizer.decode(
                list(prompt[-_NUM_LAST_TOKENS:]), skip_special_tokens=False
            )
            opened = end.rstrip().endswith(OPENING)
            if opened or CLOSING not in end:
                self.thought = "opened" if opened else "optional"
            read = partial(thought_then, then=read, opened=opened)
            self._markers.update((OPENING, CLOSING))
        self.parses = messages is not None or thinks or tools is not None
        self._read = read if self.parses else None
        self._max_calls = max_calls
        self._special_texts = model.tokenizer.special_texts
        self._model = model

    def with_markers(self, params: SamplingParams) -> SamplingParams:
        """Parameters under which the text has the special tokens that the parser reads."""
        if self._markers & self._special_texts:
            return replace(params, skip_special_tokens=False)
        return params

    def make_thought_count(self) -> ThoughtBudget | None:
        """Counts the tokens of one choice's thought, if there may be one."""
        if not self.thought:
            return None
        grammars = self._model.grammars
        return ThoughtBudget(
            None,
            grammars.thought_marks(),
            grammars.tokenizer,
            NO_BOUND,
            opened=self.thought == "opened",
            vocab_size=self._model.client.info.vocab_size,
        )

    def make_parts(self) -> AnswerParts:
        """The parts of one choice, as its text comes."""
        return AnswerParts(self._read, self._max_calls)
