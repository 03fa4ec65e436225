"""Compiling beside the event loop: on threads, and for a bounded time."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from twostroke.constraints.compiler import Compilation, GrammarCompiler, with_texts
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import PARAM, StructuredOutputsParams
from twostroke.text.json_values import is_large

COMPILE_SECONDS = 1.0


class CompileThreads:
    """Compiles for an event loop, so that the engine finds the grammar in the compiler's cache.

    Args:
        compiler: Shared with the engine where that is in the same process.
    """

    def __init__(self, compiler: GrammarCompiler, *, seconds: float = COMPILE_SECONDS) -> None:
        self._compiler = compiler
        self._seconds = seconds

    async def compile(
        self, wanted: StructuredOutputsParams, tenant: str = ""
    ) -> StructuredOutputsParams:
        """Compile what a client asks for, and return it with its objects as text.

        What is kept costs nothing, whatever others wait for. A compilation that nothing waits for
        any more is dropped if it has not begun. One that takes longer than ``seconds`` is given up;
        the library's own limits end its thread.

        Args:
            tenant: On whose behalf; its grammars and its turns are its own.

        Raises:
            InvalidRequestError: See ``GrammarCompiler.compile``; or it takes too long.
            QueueFullError: Too many compilations wait.
        """
        wanted = replace(wanted, scope=tenant)
        if is_large([wanted.json, wanted.structural_tag]):
            wanted = await asyncio.to_thread(with_texts, wanted)
        else:
            wanted = with_texts(wanted)
        compilation = self._compiler.begin(wanted)
        try:
            await self._wait(compilation, wanted)
        finally:
            self._compiler.leave(compilation)
        return wanted

    async def _wait(self, compilation: Compilation, wanted: StructuredOutputsParams) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(ended.set)

        # Not wrapped as a future: to cancel that would cancel it for all who wait.
        compilation.done.add_done_callback(end)
        while not compilation.done.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left(compilation)):
                    await ended.wait()
            if self._seconds_left(compilation) <= 0 and not compilation.done.done():
                param = f"{PARAM}.{wanted.kind}"
                message = f"{param} took longer than {self._seconds:g} s to compile"
                raise InvalidRequestError(message, param=param, hint="simplify it")
        compilation.done.result()

    def _seconds_left(self, compilation: Compilation) -> float:
        if compilation.began is None:
            return self._seconds
        return max(0.0, self._seconds - (time.monotonic() - compilation.began))
