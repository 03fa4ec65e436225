"""One HTTP call's work in the engine: its requests submitted, their outputs delivered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import EngineError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import output_error
from twostroke.engine.clients.base import OutputStream
from twostroke.gateway.caller import Caller
from twostroke.server.generation.delivery import (
    Delivery,
    PromptRoom,
    StreamedDelivery,
    WholeDelivery,
)
from twostroke.server.generation.memory_limits import (
    MANY_ENTRIES,
    check_copies,
    check_entries,
    num_answer_entries,
    num_promised_entries,
    num_prompt_entries,
)
from twostroke.server.generation.policy_fields import check_policy_fields
from twostroke.server.generation.request_log import RequestLog
from twostroke.server.generation.response_format import CallTokens, ResponseFormat
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import WholeResponse, encode_json
from twostroke.server.http.sse import EVENTS, EventStream, run_while_connected
from twostroke.server.state.logprobs_budget import LOGPROB_BYTES, HeldLogprobs
from twostroke.server.state.served_model import ServedModel

# Each takes some 0.1 ms.
PROMPTS_AT_ONCE = 16


class Generation:
    """The engine's requests of one call. Its maker must see to it that ``abort`` is called.

    Args:
        model: Its engine runs them.
        caller: On whose behalf they run.
        request_id: What the client sees as ``id``.
        requests: One for each prompt, with the same parameters.
        ignored: Fields of the body that were ignored; header and log name them.
        prompt_only: The answers are empty, whatever was drawn.
        streamed: Whether answers leave as they come.
        gradual: There are many prompts: ``submit_rest`` submits them, a few at a time.

    Raises:
        TwostrokeError: The engine refuses one of them; none is left running.
    """

    def __init__(
        self,
        model: ServedModel,
        caller: Caller,
        request_id: str,
        requests: Sequence[GenerationRequest],
        *,
        streamed: bool,
        ignored: Sequence[str] = (),
        prompt_only: bool = False,
        gradual: bool = False,
    ) -> None:
        client, first = model.client, requests[0]
        prompts = [request.prompt_token_ids for request in requests]
        check_policy_fields(client.scheduler_config, first)
        check_copies(client.info, prompts, first.params)
        check_entries(client.info, prompts, first.params)
        self.request_id = request_id
        self.num_choices = len(prompts) * first.params.n
        self._n = first.params.n
        self._streamed = streamed
        self._prompt_only = prompt_only
        self._num_running = self.num_choices
        self._tokens = _begin_counts(prompts, caller)
        self._headers = ignored_header(ignored)
        self._log = _begin_log(request_id, first.labels, ignored, caller)
        # A stream keeps what it echoes until every sample of the prompt has begun.
        self._echoed = num_prompt_entries(prompts, first.params) if streamed else ()
        self._held = self._reserve_logprobs(model, caller.tenant, prompts, first.params)
        self._streams: list[OutputStream] = []
        self._submissions = caller.submit(client, model.asked(requests))
        if not gradual:
            self._submit()

    def _reserve_logprobs(
        self,
        model: ServedModel,
        tenant: str,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
    ) -> HeldLogprobs:
        """Take room for the log-probabilities that the answers are certain to keep."""
        if self._streamed:
            num_entries = sum(self._echoed)
        else:
            num_entries = num_promised_entries(model.client.info, prompts, params)
        field = "prompt_logprobs" if params.logprobs is None else "logprobs"
        return model.logprobs.reserve(tenant, num_entries * LOGPROB_BYTES, field)

    async def submit_rest(self) -> None:
        """Submit all prompts; other calls get their turn in between.

        Raises:
            TwostrokeError: The engine refuses one of them; none is left running.
        """
        while self._submit(PROMPTS_AT_ONCE):
            try:
                await asyncio.sleep(0)
            except BaseException:
                self.end()
                raise

    def _submit(self, count: int | None = None) -> int:
        """Submit the next prompts; returns how many there were.

        Args:
            count: How many at most; ``None``: all. Then the generator of submissions ends, too: one
                that is suspended would keep the streams, and so prompts and answers, in memory.
        """
        num_before = len(self._streams)
        try:
            for stream in islice(self._submissions, count):
                self._streams.append(stream)
        except BaseException:
            self.end()
            raise
        return len(self._streams) - num_before

    def abort(self) -> None:
        """End everything now; harmless after the end."""
        self._num_running = 0
        # They hold this object, which listens: kept, each request would leave a circle with its
        # prompt and answer.
        streams, self._streams = self._streams, []
        self._submissions = iter(())
        if streams:
            tokens = self._tokens
            self._log.end(tokens.prompt, tokens.completion, sum(tokens.cached))
        for stream in streams:
            stream.abort()

    async def respond(
        self, response_format: ResponseFormat, request: Request, stream_type: str = EVENTS
    ) -> Response:
        """The response, streamed or whole, that ends the generation when its client leaves.

        Args:
            stream_type: Media type of a stream.
        """
        if self._streamed:
            events = EventStream(self.end, self._headers, stream_type)
            held = PromptRoom(self._held, self._echoed, self._n)
            self.deliver_to(
                StreamedDelivery(self.request_id, response_format, events, self._tokens, held)
            )
            return events
        try:
            whole = WholeDelivery(self.num_choices, self._held)
            self.deliver_to(whole)
            work = self._complete(response_format, whole)
            body = await run_while_connected(work, request.receive, self.abort)
        except BaseException:
            self._held.release()
            raise
        # Without a body the client has left; 499 is what nginx calls it in logs.
        return WholeResponse(body, 200 if body else 499, self._headers, on_sent=self._held.release)

    def end(self) -> None:
        """Abort, and give back the room that was held for log-probabilities."""
        self.abort()
        self._held.release()

    async def _complete(self, response_format: ResponseFormat, whole: WholeDelivery) -> bytes:
        answers = await whole.answers

        def encode() -> bytes:
            return encode_json(response_format.complete(answers, self._tokens))

        if sum(map(num_answer_entries, answers)) > MANY_ENTRIES:
            return await asyncio.to_thread(encode)
        return encode()

    @property
    def tokens(self) -> CallTokens:
        """Its count so far; read it during a delivery."""
        return self._tokens

    @property
    def headers(self) -> Mapping[str, str]:
        """What the response's head says of it."""
        return self._headers

    def hold_logprobs(self, num_entries: int) -> None:
        """See that there is room for this many log-probabilities, until the end."""
        self._held.hold_at_least(num_entries * LOGPROB_BYTES)

    def deliver_to(self, delivery: Delivery) -> None:
        """Have all outputs delivered. The caller sees to ``end``, also where its client leaves."""
        for prompt, stream in enumerate(self._streams):
            stream.listen(partial(self._on_output, delivery, prompt))

    def _on_output(self, delivery: Delivery, prompt: int, output: RequestOutput) -> None:
        """Deliver an output under the number of its choice, until the last or a failure."""
        if not self._num_running:
            return
        self._tokens.begun = self._tokens.begun or time.monotonic()
        try:
            if self._prompt_only:
                _empty(output)
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
            if output.draft_token_ids:
                self._tokens.accepted += output.num_accepted_drafts
                self._tokens.rejected += len(output.draft_token_ids) - output.num_accepted_drafts
            if output.index == 0:
                self._tokens.cached[prompt] = output.num_cached_tokens
                self._tokens.hit = output.prefix_hit if len(self._tokens.cached) == 1 else None
            choice = prompt * self._n + output.index
            delivery.deliver(choice, output, last=not self._num_running)
        except MemoryError:
            raise
        except BaseException as error:
            # At once: the client may take its time with what it has, while the engine would go on.
            self.abort()
            if not isinstance(error, Exception):  # a panic of the tokenizer's Rust is none
                delivery.fail(EngineError(f"the request failed: {type(error).__name__}"))
                raise
            delivery.fail(error)


def _begin_counts(prompts: Sequence[Sequence[int]], caller: Caller) -> CallTokens:
    now = time.monotonic()
    return CallTokens(
        prompt=sum(map(len, prompts)),
        completion=0,
        cached=[0] * len(prompts),
        arrived=caller.arrived or now,
        submitted=now,
    )


def _begin_log(
    request_id: str, labels: Mapping[str, str], ignored: Sequence[str], caller: Caller
) -> RequestLog:
    if ignored:
        labels = {**labels, "ignored": ", ".join(ignored)}
    return RequestLog(request_id, labels, caller.trace)


def _empty(output: RequestOutput) -> None:
    """Take from an output what was drawn."""
    output.text, output.token_ids, output.logprobs = "", [], None
    if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
        output.finish_reason, output.stop_reason = FinishReason.LENGTH, None
