"""One HTTP call's work in the engine: its prompts submitted, their outputs merged, and sent streamed or at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fastapi import Request
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from twostroke.engine.client import EngineClient, GenerationRequest, OutputStream
from twostroke.errors import EngineError, InvalidRequestError, RequestTooLargeError, TwostrokeError
from twostroke.gateway.caller import check_together
from twostroke.sampling_params import SamplingParams
from twostroke.server.answer_size import MANY_ENTRIES, check_copies, check_entries
from twostroke.server.errors import encode_error
from twostroke.server.limits import most_chars
from twostroke.server.protocol import GenerationFields
from twostroke.server.request_log import RequestLog
from twostroke.server.responses import PromptTokensDetails, Usage
from twostroke.server.serving import ServedModel
from twostroke.server.sse import EventStream, encode, event, run_while_connected
from twostroke.text.tokenizer import LONG_TEXT
from twostroke.types import FinishReason, PositionLogprobs, RequestOutput

logger = logging.getLogger(__name__)

# Characters; a tokenizer takes some 250 bytes for each while it works.
VERY_LONG_TEXT = 200_000

# Of a chunk: OpenAI leaves it out, or writes null where usage comes at the end; vLLM can give it with every chunk.
RunningUsage = Usage | UnsetType | None


@dataclass(slots=True)
class Sample:
    """One choice, gathered to its end. ``token_ids`` and ``logprobs`` are parallel where both are there."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, output: RequestOutput) -> None:
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = (self.prompt_logprobs or []) + output.prompt_logprobs
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason.value, output.stop_reason

    def num_entries(self) -> int:
        """Tokens and log-probabilities: what it takes to write it out."""
        positions = (*self.logprobs, *(self.prompt_logprobs or ()))
        return len(self.token_ids) + sum(len(position.top) for position in positions)


class Shape(Protocol):
    """How outputs become what one route promises. Choices are numbered over all prompts: ``prompt * n + sample``."""

    def chunk(self, index: int, output: RequestOutput, usage: RunningUsage, *, first: bool) -> list[object]:
        """The events for what a step added to a choice (``first``: it has had none yet)."""

    def usage_chunk(self, usage: Usage) -> object:
        """The last event, where usage is asked for."""

    def complete(self, samples: Sequence[Sample], usage: Usage) -> object:
        """The whole answer."""


class Generation:
    """The engine's requests of one call. Whoever makes one must see to it that ``abort`` is called at the end.

    Args:
        request_id: What the client sees as ``id``.
        prompts: Token ids of each prompt.

    Raises:
        TwostrokeError: The engine refuses one of them; none is left running.
    """

    def __init__(
        self,
        client: EngineClient,
        request_id: str,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        fields: GenerationFields,
    ) -> None:
        if fields.priority and client.scheduler_config.policy != "priority":
            raise InvalidRequestError(
                f"priority has no effect under this server's policy, {client.scheduler_config.policy}",
                param="priority",
                hint="leave it out, or start the server with --policy priority",
            )
        check_copies(client.info, prompts, params)
        check_entries(client.info, prompts, params)
        self.request_id = request_id
        self.num_choices = len(prompts) * params.n
        self._n = params.n
        self._prompt_tokens = sum(map(len, prompts))
        self._completion_tokens = 0
        self._cached_tokens = [0] * len(prompts)
        self._streams: list[OutputStream] = []
        self._log = RequestLog(request_id, labels := fields.labels())
        try:
            requests = [
                GenerationRequest(
                    request_id=request_id if len(prompts) == 1 else f"{request_id}-{i}",
                    prompt_token_ids=prompt,
                    params=params,
                    priority=fields.priority or 0,
                    cache_salt=fields.cache_salt or "",
                    labels=labels,
                )
                for i, prompt in enumerate(prompts)
            ]
            check_together(client, requests)
            for request in requests:
                self._streams.append(client.submit(request))
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """End everything now; harmless after the end."""
        if self._streams:
            self._log.end(self._prompt_tokens, self._completion_tokens, sum(self._cached_tokens))
        for stream in self._streams:
            stream.abort()

    async def respond(
        self, shape: Shape, fields: GenerationFields, request: Request, *, usage_at_end: bool = False
    ) -> Response:
        """The response, streamed or whole, that ends the generation when its client leaves.

        Args:
            usage_at_end: A stream's last chunk carries the usage, whether or not it was asked for.
        """
        headers = {"x-request-id": self.request_id}
        if fields.stream:
            return EventStream(self._frames(shape, fields, usage_at_end), self.abort, headers)
        body = await run_while_connected(self._complete(shape), request.receive, self.abort)
        # Nobody reads the answer to a client that has left; 499 is what nginx calls it in logs.
        return Response(body, 200 if body else 499, headers, "application/json")

    async def _complete(self, shape: Shape) -> bytes:
        samples = [Sample() for _ in range(self.num_choices)]
        async for index, output in self._outputs():
            samples[index].add(output)
        usage = self._usage()
        if sum(map(Sample.num_entries, samples)) > MANY_ENTRIES:
            return await asyncio.to_thread(lambda: encode(shape.complete(samples, usage)))
        return encode(shape.complete(samples, usage))

    async def _frames(self, shape: Shape, fields: GenerationFields, usage_at_end: bool) -> AsyncIterator[bytes]:
        begun: set[int] = set()
        ended = 0
        usage: RunningUsage = None if fields.include_usage else UNSET
        try:
            async for index, output in self._outputs():
                ended += output.finished
                if fields.continuous_usage or (usage_at_end and ended == self.num_choices):
                    usage = self._usage()
                if events := shape.chunk(index, output, usage, first=index not in begun):
                    begun.add(index)
                    yield b"".join(map(event, events))
            if fields.include_usage:
                yield event(shape.usage_chunk(self._usage()))
        except Exception as error:
            # Before the first event the response has not started, and the error gets its status.
            if not begun:
                raise
            if not isinstance(error, TwostrokeError):
                logger.exception("request %s failed in mid-stream", self.request_id)
            yield b"data: " + encode_error(error) + b"\n\n"

    async def _outputs(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Outputs with the index of their choice, as they come; a failed request raises its error."""
        merged = _enumerated(self._streams[0]) if len(self._streams) == 1 else _merge(self._streams)
        async for prompt, output in merged:
            if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                self._log.reasons.append(output.finish_reason.value)
                # Who aborts and still listens did not ask for it: half an answer must not look like a whole one.
                raise output.error or EngineError("the request failed for an unknown reason")
            self._completion_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                self._log.reasons.append(output.finish_reason.value)
            if output.index == 0:
                self._cached_tokens[prompt] = output.num_cached_tokens
            yield prompt * self._n + output.index, output

    def _usage(self) -> Usage:
        prompt, completion = self._prompt_tokens, self._completion_tokens
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(sum(self._cached_tokens)))


async def encode_text(model: ServedModel, text: str, *, add_special_tokens: bool, most: int | None = None) -> list[int]:
    """Token ids of a text, without blocking the event loop for long (10 ms); of very long ones, few at a time.

    Args:
        most: More tokens than this are of no use; a text that must have more is refused before the work.

    Raises:
        RequestTooLargeError: The text has more tokens than ``most``, whatever they are; or it is longer than
            ``most_chars``.
    """
    tokenizer = model.client.tokenizer
    if len(text) <= LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens)
    longest = tokenizer.max_chars_per_token
    if longest is not None and most is not None and len(text) > most * longest:
        needed = -(-len(text) // longest)
        message = f"the prompt of {len(text)} characters has at least {needed} tokens, the model's context {most}"
        raise RequestTooLargeError(message, needed=needed, available=most, param="prompt", hint="shorten the prompt")
    check_length(model, len(text), "prompt")
    async with model.long_texts if len(text) > VERY_LONG_TEXT else contextlib.nullcontext():
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)


def check_length(model: ServedModel, length: int, param: str) -> None:
    """Raise ``RequestTooLargeError`` if a text of ``length`` characters is longer than any that is encoded."""
    if length > (longest := most_chars(model.client.info.max_model_len)):
        message = f"{param} holds {length} characters, and at most {longest} are encoded"
        raise RequestTooLargeError(message, needed=length, available=longest, param=param, hint="send less text")


def check_tokens(model: ServedModel, tokens: Sequence[int], param: str) -> None:
    """Raise ``InvalidRequestError`` if one of ``tokens`` is none of the model's."""
    vocab = model.client.info.vocab_size
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
        raise InvalidRequestError(f"{param} holds token ids outside [0, {vocab})", param=param)


def truncate(tokens: list[int], keep: int | None) -> list[int]:
    """The last ``keep`` tokens."""
    return tokens if keep is None else tokens[-keep:]


async def _enumerated(stream: OutputStream) -> AsyncIterator[tuple[int, RequestOutput]]:
    async for output in stream:
        yield 0, output


async def _merge(streams: Sequence[OutputStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Several streams as one, in the order in which outputs come."""
    merged: asyncio.Queue[tuple[int, RequestOutput] | BaseException | None] = asyncio.Queue()

    async def pump(prompt: int, stream: OutputStream) -> None:
        try:
            async for output in stream:
                merged.put_nowait((prompt, output))
            merged.put_nowait(None)
        except Exception as error:
            merged.put_nowait(error)

    tasks = [asyncio.ensure_future(pump(prompt, stream)) for prompt, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            item = await merged.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
