"""One HTTP call's work in the engine: its requests submitted, their outputs delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import EngineError, InvalidRequestError
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.answer import output_error
from twostroke.engine.clients.base import EngineClient, OutputStream
from twostroke.engine.messages import GenerationRequest
from twostroke.gateway.caller import Caller
from twostroke.server.generation.delivery import Delivery, StreamedDelivery, WholeDelivery
from twostroke.server.generation.memory_limits import (
    MANY_ENTRIES,
    check_copies,
    check_entries,
    num_answer_entries,
)
from twostroke.server.generation.request_log import RequestLog
from twostroke.server.generation.response_format import CallTokens, ResponseFormat
from twostroke.server.http.json_response import encode_json
from twostroke.server.http.sse import EventStream, run_while_connected


class Generation:
    """The engine's requests of one call. Its maker must see to it that ``abort`` is called.

    Args:
        caller: On whose behalf they run.
        request_id: What the client sees as ``id``.
        requests: One for each prompt, with the same parameters.

    Raises:
        TwostrokeError: The engine refuses one of them; none is left running.
    """

    def __init__(
        self,
        client: EngineClient,
        caller: Caller,
        request_id: str,
        requests: Sequence[GenerationRequest],
    ) -> None:
        params, priority = requests[0].params, requests[0].priority
        if priority and client.scheduler_config.policy != "priority":
            raise InvalidRequestError(
                "priority has no effect under this server's policy,"
                f" {client.scheduler_config.policy}",
                param="priority",
                hint="leave it out, or start the server with --policy priority",
            )
        prompts = [request.prompt_token_ids for request in requests]
        check_copies(client.info, prompts, params)
        check_entries(client.info, prompts, params)
        self.request_id = request_id
        self.num_choices = len(prompts) * params.n
        self._n = params.n
        self._num_running = self.num_choices
        self._tokens = CallTokens(sum(map(len, prompts)), 0, [0] * len(prompts))
        self._log = RequestLog(request_id, requests[0].labels)
        self._streams: list[OutputStream] = []
        try:
            for stream in caller.submit(client, requests):
                self._streams.append(stream)
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
            tokens = self._tokens
            self._log.end(tokens.prompt, tokens.completion, sum(tokens.cached))
        for stream in streams:
            stream.abort()

    async def respond(
        self, response_format: ResponseFormat, request: Request, *, stream: bool
    ) -> Response:
        """The response, streamed or whole, that ends the generation when its client leaves."""
        headers = {"x-request-id": self.request_id}
        if stream:
            events = EventStream(self.abort, headers)
            self._deliver_to(
                StreamedDelivery(self.request_id, response_format, events, self._tokens)
            )
            return events
        whole = WholeDelivery(self.num_choices)
        self._deliver_to(whole)
        work = self._complete(response_format, whole)
        body = await run_while_connected(work, request.receive, self.abort)
        # Without a body the client has left; 499 is what nginx calls it in logs.
        return Response(body, 200 if body else 499, headers, "application/json")

    async def _complete(self, response_format: ResponseFormat, whole: WholeDelivery) -> bytes:
        answers = await whole.answers

        def encode() -> bytes:
            return encode_json(response_format.complete(answers, self._tokens))

        if sum(map(num_answer_entries, answers)) > MANY_ENTRIES:
            return await asyncio.to_thread(encode)
        return encode()

    def _deliver_to(self, delivery: Delivery) -> None:
        for prompt, stream in enumerate(self._streams):
            stream.listen(partial(self._on_output, delivery, prompt))

    def _on_output(self, delivery: Delivery, prompt: int, output: RequestOutput) -> None:
        """Deliver an output under the number of its choice, until the last or a failure."""
        if not self._num_running:
            return
        try:
            reason = output.finish_reason
            if reason is not None:
                self._log.reasons.append(reason.value)
                if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
                    # An abort that arrives here was not the client's: half an answer must not look
                    # like a whole one.
                    raise output_error(output) or EngineError(
                        "the request failed for an unknown reason"
                    )
                self._num_running -= 1
            self._tokens.completion += len(output.token_ids)
            if output.index == 0:
                self._tokens.cached[prompt] = output.num_cached_tokens
            choice = prompt * self._n + output.index
            delivery.deliver(choice, output, last=not self._num_running)
        except BaseException as error:
            # At once: the client may take its time with what it has, while the engine would go on.
            self.abort()
            if not isinstance(error, Exception):  # a panic of the tokenizer's Rust is none
                delivery.fail(EngineError(f"the request failed: {type(error).__name__}"))
                raise
            delivery.fail(error)
