"""One HTTP call's work in the engine: its prompts submitted, their outputs heard, and sent streamed
or at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from fastapi import Request
from starlette.responses import Response

from twostroke.core.errors import EngineError, InvalidRequestError, RequestTooLargeError
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.clients.base import EngineClient, OutputStream
from twostroke.engine.messages import GenerationRequest
from twostroke.gateway.caller import check_together
from twostroke.server.answer_size import MANY_ENTRIES, check_copies, check_entries
from twostroke.server.answers import Answer, Sample, Shape, StreamedAnswer, WholeAnswer
from twostroke.server.limits import most_chars
from twostroke.server.protocol import GenerationFields
from twostroke.server.request_log import RequestLog
from twostroke.server.responses import PromptTokensDetails, Usage
from twostroke.server.serving import ServedModel
from twostroke.server.sse import EventStream, encode, run_while_connected
from twostroke.text.tokenizer import LONG_TEXT

# Characters; a tokenizer takes some 250 bytes for each while it works.
VERY_LONG_TEXT = 200_000


class Generation:
    """The engine's requests of one call. Whoever makes one must see to it that ``abort`` is called
    at the end.

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
                "priority has no effect under this server's policy,"
                f" {client.scheduler_config.policy}",
                param="priority",
                hint="leave it out, or start the server with --policy priority",
            )
        check_copies(client.info, prompts, params)
        check_entries(client.info, prompts, params)
        self.request_id = request_id
        self.num_choices = len(prompts) * params.n
        self._n = params.n
        self._num_running = self.num_choices
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
                    follows=i > 0,
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
        self._num_running = 0
        # They hold this object, which listens: kept, each request would leave a circle with its
        # prompt and answer.
        streams, self._streams = self._streams, []
        if streams:
            self._log.end(self._prompt_tokens, self._completion_tokens, sum(self._cached_tokens))
        for stream in streams:
            stream.abort()

    async def respond(
        self,
        shape: Shape,
        fields: GenerationFields,
        request: Request,
        *,
        usage_at_end: bool = False,
    ) -> Response:
        """The response, streamed or whole, that ends the generation when its client leaves.

        Args:
            usage_at_end: A stream's last chunk carries the usage, whether or not it was asked for.
        """
        headers = {"x-request-id": self.request_id}
        if fields.stream:
            stream = EventStream(self.abort, headers)
            usage, name = self._usage, self.request_id
            self._listen(
                StreamedAnswer(name, shape, fields, stream, usage, usage_at_end=usage_at_end)
            )
            return stream
        answer = WholeAnswer(self.num_choices)
        self._listen(answer)
        body = await run_while_connected(self._complete(shape, answer), request.receive, self.abort)
        # Nobody reads the answer to a client that has left; 499 is what nginx calls it in logs.
        return Response(body, 200 if body else 499, headers, "application/json")

    async def _complete(self, shape: Shape, answer: WholeAnswer) -> bytes:
        samples = await answer.samples
        usage = self._usage()
        if sum(map(Sample.num_entries, samples)) > MANY_ENTRIES:
            return await asyncio.to_thread(lambda: encode(shape.complete(samples, usage)))
        return encode(shape.complete(samples, usage))

    def _listen(self, answer: Answer) -> None:
        for prompt, stream in enumerate(self._streams):
            stream.listen(partial(self._hear, answer, prompt))

    def _hear(self, answer: Answer, prompt: int, output: RequestOutput) -> None:
        """Pass an output on under the number of its choice; after the last and after a failure
        there is nothing.
        """
        if not self._num_running:
            return
        try:
            reason = output.finish_reason
            if reason is not None:
                self._log.reasons.append(reason.value)
                if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
                    # Who aborts and still listens did not ask for it: half an answer must not look
                    # like a whole one.
                    if output.error is not None:
                        raise output.error.to_exception()
                    raise EngineError("the request failed for an unknown reason")
                self._num_running -= 1
            self._completion_tokens += len(output.token_ids)
            if output.index == 0:
                self._cached_tokens[prompt] = output.num_cached_tokens
            answer.add(prompt * self._n + output.index, output, last=not self._num_running)
        except BaseException as error:
            # At once: the client may take its time with what it has, and the engine would go on for
            # nobody.
            self.abort()
            if not isinstance(error, Exception):  # a panic of the tokenizer's Rust is none
                answer.fail(EngineError(f"the request failed: {type(error).__name__}"))
                raise
            answer.fail(error)

    def _usage(self) -> Usage:
        prompt, completion = self._prompt_tokens, self._completion_tokens
        return Usage(
            prompt, completion, prompt + completion, PromptTokensDetails(sum(self._cached_tokens))
        )


async def encode_text(
    model: ServedModel, text: str, *, add_special_tokens: bool, most: int | None = None
) -> list[int]:
    """Token ids of a text, without blocking the event loop for long (10 ms); of very long ones, few
    at a time.

    Args:
        most: More tokens than this are of no use; a text that must have more is refused before the
            work.

    Raises:
        RequestTooLargeError: The text has more tokens than ``most``, whatever they are; or it is
            longer than ``most_chars``.
    """
    tokenizer = model.client.tokenizer
    if len(text) <= LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens)
    longest = tokenizer.max_chars_per_token
    if longest is not None and most is not None and len(text) > most * longest:
        needed = -(-len(text) // longest)
        message = (
            f"the prompt of {len(text)} characters has at least {needed} tokens, the model's"
            f" context {most}"
        )
        raise RequestTooLargeError(
            message, needed=needed, available=most, param="prompt", hint="shorten the prompt"
        )
    check_length(model, len(text), "prompt")
    async with model.long_texts if len(text) > VERY_LONG_TEXT else contextlib.nullcontext():
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)


def check_length(model: ServedModel, length: int, param: str) -> None:
    """Raise ``RequestTooLargeError`` if a text of ``length`` characters is longer than any that is
    encoded.
    """
    if length > (longest := most_chars(model.client.info.max_model_len)):
        message = f"{param} holds {length} characters, and at most {longest} are encoded"
        raise RequestTooLargeError(
            message, needed=length, available=longest, param=param, hint="send less text"
        )


def check_tokens(model: ServedModel, tokens: Sequence[int], param: str) -> None:
    """Raise ``InvalidRequestError`` if one of ``tokens`` is none of the model's."""
    vocab = model.client.info.vocab_size
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
        raise InvalidRequestError(f"{param} holds token ids outside [0, {vocab})", param=param)


def truncate(tokens: list[int], keep: int | None) -> list[int]:
    """The last ``keep`` tokens."""
    return tokens if keep is None else tokens[-keep:]
