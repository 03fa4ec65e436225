"""Compiling beside the event loop: on threads, for a bounded time, behind a bounded queue."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from twostroke.constraints.compiler import GrammarCompiler, with_texts
from twostroke.core.errors import InvalidRequestError, QueueFullError
from twostroke.core.structured_outputs import PARAM, StructuredOutputsParams

NUM_THREADS = 2
COMPILE_SECONDS = 1.0
MAX_WAITING = 64  # requests; each may wait for a compilation of COMPILE_SECONDS


@dataclass(slots=True)
class _Compilation:
    wanted: StructuredOutputsParams
    began: float | None = None


class CompileThreads:
    """Compiles for an event loop, so that the engine finds the grammar in the compiler's cache.

    Args:
        compiler: Shared with the engine where that is in the same process.
    """

    def __init__(self, compiler: GrammarCompiler, *, seconds: float = COMPILE_SECONDS) -> None:
        self._compiler = compiler
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="twostroke-compile")
        self._num_waiting = 0

    async def compile(self, wanted: StructuredOutputsParams) -> StructuredOutputsParams:
        """Compile what a client asks for, and return it with its objects as text.

        A compilation that nothing waits for any more is dropped if it has not begun. One that takes
        longer than ``seconds`` is given up; the library's own limits end its thread.

        Raises:
            InvalidRequestError: See ``GrammarCompiler.compile``; or it takes too long.
            QueueFullError: Too many compilations wait.
        """
        if self._num_waiting >= MAX_WAITING:
            message = f"{self._num_waiting} requests wait for a schema or grammar to be compiled"
            raise QueueFullError(message, hint="try again later")
        compilation = _Compilation(wanted)
        done = asyncio.wrap_future(self._threads.submit(self._run, compilation))
        self._num_waiting += 1
        try:
            return await self._wait(done, compilation)
        finally:
            self._num_waiting -= 1
            done.cancel()

    def _run(self, compilation: _Compilation) -> StructuredOutputsParams:
        self._compiler.load()  # once; not on the time of the request that happens to be first
        compilation.began = time.monotonic()
        wanted = with_texts(compilation.wanted)
        self._compiler.compile(wanted)
        return wanted

    async def _wait(
        self, done: asyncio.Future[StructuredOutputsParams], compilation: _Compilation
    ) -> StructuredOutputsParams:
        while True:
            await asyncio.wait([done], timeout=self._seconds_left(compilation))
            if done.done():
                return done.result()
            if self._seconds_left(compilation) <= 0:
                param = f"{PARAM}.{compilation.wanted.kind}"
                message = f"{param} took longer than {self._seconds:g} s to compile"
                raise InvalidRequestError(message, param=param, hint="simplify it")

    def _seconds_left(self, compilation: _Compilation) -> float:
        if compilation.began is None:
            return self._seconds
        return max(0.0, self._seconds - (time.monotonic() - compilation.began))
