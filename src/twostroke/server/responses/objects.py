"""What the Responses API answers with: the response, its output items, lists of input items."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from twostroke.server.openai.logprobs import ChatTokenLogprob


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[ChatTokenLogprob] = []


class ReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    """Text for the user."""

    id: str
    status: str
    role: str = "assistant"
    content: list[OutputText]


class OutputReasoning(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """A thought of the model, in full: nothing is summarised or encrypted."""

    id: str
    status: str
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText]
    encrypted_content: None = None


class OutputCall(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of one of the request's tools."""

    id: str
    status: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct):
    reason: str


class ConversationReference(Struct):
    """The conversation that a response goes on with."""

    id: str


class ResponseObject(Struct, kw_only=True):
    """A response: what was asked for, and the output as far as it is there.

    Attributes:
        status: ``queued`` and ``in_progress``, then ``completed``, ``incomplete``, ``failed`` or
            ``cancelled``.
    """

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool
    conversation: ConversationReference | None = None
    error: ResponseError | None = None
    frequency_penalty: float = 0.0
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float = 0.0
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None

    @property
    def ended(self) -> bool:
        return self.status not in ("queued", "in_progress")


class InputItemList(Struct, kw_only=True):
    """One page of the items that a request brought."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Struct, kw_only=True):
    id: str
    object: str = "response"
    deleted: bool = True
