"""What a client asks for, whatever its dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twostroke.constraints.schemas.closing import Closing
from twostroke.core.sampling_params import SamplingParams
from twostroke.gateway.caller import Caller
from twostroke.server.generation.field_names import FieldNames
from twostroke.text.context_material import ContextOptions, RankingTask
from twostroke.text.documents import Document
from twostroke.tools.base import ToolSchemas


class CallableTool(NamedTuple):
    """A function that an answer may call.

    Attributes:
        parameters: The JSON schema of its arguments.
        path: Where the request has that schema.
        strict: Calls follow the schema, or the request is refused.
        expression_path: Where the request has the expression that its schema was made of.
    """

    name: str
    parameters: Mapping[str, Any] | None
    path: str
    strict: bool
    expression_path: str | None = None


class CallableTools(NamedTuple):
    """What an answer may call.

    Attributes:
        tools: Those that the prompt names.
        must_call: It has no text but calls.
        only: The one of them that it must call, once.
        closing: Which objects have no other properties than their schema lists.
    """

    tools: Sequence[CallableTool]
    must_call: bool
    only: str | None
    closing: Closing = "listed"

    @property
    def schemas(self) -> ToolSchemas:
        """Each one's name to the schema of its arguments."""
        return {tool.name: tool.parameters or {} for tool in self.tools}

    @property
    def allowed(self) -> Sequence[CallableTool]:
        """The tools that it may call."""
        return [tool for tool in self.tools if self.only in (None, tool.name)]


# Ranks for a caller's call: the scores and the name of their model, or nothing: then BM25 ranks.
Rank = Callable[[RankingTask, Caller, str], Awaitable[tuple[list[float], str] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """How the prompt is put together so that it fits.

    Attributes:
        max_tokens: Most tokens of the prompt; by default all that the answer leaves.
        rank: Ranks the documents by a model; by default BM25 does.
    """

    documents: Sequence[Document]
    options: ContextOptions
    max_tokens: int | None
    rank: Rank | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A conversation that is to be answered. A dialect's reader makes it from a checked body.

    Attributes:
        messages: Messages in the form that chat templates take.
        rendering: Arguments of ``ChatTemplate.render``: the variables that the template reads, the
            tools, how the prompt ends.
        params: How to draw, and the form of the answer, which is not compiled yet.
        form_names: What the dialect calls the form, for refusals.
        tools: What the answer may call; ``None``: nothing.
        max_calls: Most calls in one answer; ``None``: as many as the model likes.
        context: ``None``: a prompt that is too long is refused.
        truncate_to: Keep only this many tokens of the prompt, the last; -1: as many as fit.
        prediction: The text that the answer is expected to be.
        ignored: Fields that change nothing for this model, by their names in the dialect.

    The others are those of ``GenerationRequest``.
    """

    messages: Sequence[Mapping[str, Any]]
    rendering: Mapping[str, Any]
    params: SamplingParams
    form_names: FieldNames
    tools: CallableTools | None = None
    max_calls: int | None = None
    context: Context | None = None
    add_special_tokens: bool = False
    truncate_to: int | None = None
    prediction: str = ""
    priority: int = 0
    ttft_target: float | None = None
    cache_salt: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()
