"""The outputs of one call as a stream on an asyncio event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from twostroke.constraints.constraint import Grammar
from twostroke.core.errors import EngineDeadError, ErrorMessage
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.clients.answer_so_far import AnswerSoFar
from twostroke.engine.clients.base import ChargedTokens

logger = logging.getLogger(__name__)


class AsyncStream:
    """Implements ``OutputStream``; lives on the event loop's thread.

    Args:
        call: Whose outputs these are.
        send_abort: Asks the engine to end the request. Its last outputs come here all the same, and
            are dropped.
        grammar: The grammar of its answers; kept here so that the engine finds it when they begin.
        so_far: Keeps what another engine needs to go on with it, where there may be one.
    """

    def __init__(
        self,
        call: GenerationRequest,
        send_abort: Callable[[], None],
        grammar: Grammar | None = None,
        so_far: AnswerSoFar | None = None,
    ) -> None:
        self._call = call
        self._grammar = grammar
        self.so_far = so_far
        # Until there is a listener, outputs are kept for it, or for an iterator.
        self._outputs: asyncio.Queue[RequestOutput | None] = asyncio.Queue()
        self._on_output: Callable[[RequestOutput], None] = self._outputs.put_nowait
        self._unfinished = set(range(call.params.n))
        self._num_unread = call.params.n
        self._aborted = False
        self._send_abort = send_abort
        self._prompt_tokens = self._output_tokens = 0
        self._on_end: list[Callable[[ChargedTokens], None]] = []

    def listen(self, on_output: Callable[[RequestOutput], None]) -> None:
        self._on_output = on_output
        while not self._outputs.empty():
            if (output := self._outputs.get_nowait()) is not None:
                self._pass_on(output)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        try:
            while self._num_unread and (output := await self._outputs.get()) is not None:
                self._num_unread -= output.finished
                yield output
        finally:
            self.abort()

    def abort(self) -> None:
        if self._unfinished and not self._aborted:
            self._aborted = True
            self._outputs.put_nowait(None)  # a reader must not wait for what will not come
            self._send_abort()

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._call.prompt_token_ids)

    @property
    def num_unfinished(self) -> int:
        """Samples that have not ended."""
        return len(self._unfinished)

    @property
    def num_engines_lost(self) -> int:
        """Engines that have ended under it since it last got a token."""
        return 0 if self.so_far is None else self.so_far.num_engines_lost

    @property
    def is_suspect(self) -> bool:
        """Whether it may be the reason for which engines end."""
        return self.so_far is not None and self.so_far.is_suspect

    @property
    def aborted(self) -> bool:
        """Whether its client has ended it."""
        return self._aborted

    def abort_with(self, send_abort: Callable[[], None]) -> None:
        """Another engine has the request from now on."""
        self._send_abort = send_abort

    def abandon(self) -> None:
        """Its event loop is closed: it will not be read again."""
        self._aborted = True

    @property
    def usage(self) -> ChargedTokens:
        return ChargedTokens(self._prompt_tokens, self._output_tokens)

    def when_ended(self, on_end: Callable[[ChargedTokens], None]) -> None:
        if self._unfinished:
            self._on_end.append(on_end)
        else:
            on_end(self.usage)

    def put(self, output: RequestOutput) -> bool:
        """Pass an output on; returns whether the request has ended."""
        if self.so_far is not None:
            self.so_far.note(output)
        self._output_tokens += len(output.token_ids)
        if output.num_used_prompt_tokens > self._prompt_tokens:
            self._prompt_tokens = output.num_used_prompt_tokens
        if output.finish_reason is not None:
            self._unfinished.discard(output.index)
        self._pass_on(output)
        if self._unfinished:
            return False
        callbacks, self._on_end = self._on_end, []
        for on_end in callbacks:
            on_end(self.usage)
        return True

    def fail(self, error: ErrorMessage, reason: FinishReason = FinishReason.ERROR) -> None:
        """End the samples that will get no more outputs, or are not to wait for them."""
        for index in sorted(self._unfinished):
            self.put(
                RequestOutput(
                    request_id=self._call.request_id,
                    index=index,
                    token_ids=[],
                    num_prompt_tokens=len(self._call.prompt_token_ids),
                    num_cached_tokens=0,
                    finish_reason=reason,
                    error=error,
                )
            )

    def end_aborted(self) -> None:
        """End what was aborted, where its engine has ended and will not say so."""
        error = EngineDeadError("the engine ended while the request was aborted")
        self.fail(ErrorMessage.of(error), FinishReason.ABORT)

    def _pass_on(self, output: RequestOutput) -> None:
        """Whatever goes wrong in one listener, other streams get their outputs."""
        if self._aborted:
            return
        try:
            self._on_output(output)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException:  # a panic of the tokenizer's Rust is no Exception
            logger.exception("request %s: its listener failed", self._call.request_id)
            self.abort()
            self._aborted = True  # also where nothing is left to abort, but more to hand over
