"""``twostroke batch``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.batch.options import BatchOptions
from twostroke.cli.flags import (
    BatchFlags,
    CacheFlags,
    ModelFlags,
    SchedulerFlags,
    TemplateFlags,
    engine_config,
)
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.errors import ConfigError

if TYPE_CHECKING:
    import httpx

    from twostroke.batch.lines import Key, Line
    from twostroke.batch.results import ResultsFile
    from twostroke.batch.runner import BatchRunner
    from twostroke.engine.clients.loaded_model import LoadedModel

EXIT_FAILURES = 1
# Seconds for which a server that is busy or away is asked again; one in this process is not away.
PATIENCE = 120


def batch(
    input_file: Annotated[Path, Parameter(name=("--input-file", "-i"))],
    *,
    output_file: Annotated[Path, Parameter(name=("--output-file", "-o"))],
    url: str | None = None,
    options: BatchFlags | None = None,
    model_options: ModelFlags | None = None,
    template: TemplateFlags | None = None,
    cache: CacheFlags | None = None,
    scheduler: SchedulerFlags | None = None,
) -> int:
    """Answer a file of OpenAI's batch requests, in this process or on a server.

    Answers are written as they come; the same command does what is left if it was ended early. Its
    exit code is 0 if every request was answered, 1 if some failed.

    Args:
        input_file: One JSON object per line: custom_id, method, url, body.
        output_file: Where the answers go.
        url: Ask the OpenAI-compatible server there instead of loading a model (key from
            OPENAI_API_KEY).
    """
    import asyncio

    from twostroke.batch.lines import index_lines
    from twostroke.batch.results import ResultsFile

    options = options or BatchOptions()
    config = engine_config(None, model_options, cache, scheduler, template=template)
    if url is not None and (
        cache
        or scheduler
        or template
        or options.served_model_name
        or config.model != ModelOptions()
    ):
        raise ConfigError(
            "flags of the engine mean nothing with --url", hint="give them to the server there"
        )
    if output_file.exists() and input_file.exists() and output_file.samefile(input_file):
        raise ConfigError(f"{input_file} is input and output", hint="give another file with -o")
    wanted = index_lines(input_file)
    results = ResultsFile(output_file, overwrite=options.overwrite)
    try:
        results.reconcile(wanted, retry_failed=options.retry_failed)
        run = _Run(input_file, output_file, wanted, results, options)
        if run.num_finished < len(wanted):
            try:
                if url is not None:
                    asyncio.run(run.remotely(url))
                else:
                    run.here(config)
            except BaseException:
                run.say_how_to_go_on()
                raise
        return run.summarize()
    finally:
        results.close()


class _Run:
    """A batch's files, and what people see of it."""

    def __init__(
        self,
        source: Path,
        target: Path,
        wanted: dict[Key, str],
        results: ResultsFile,
        options: BatchOptions,
    ) -> None:
        self._source = source
        self._target = target
        self._wanted = wanted
        self._results = results
        self._options = options
        self._began = 0.0
        self._num_before = self.num_finished
        self._runner: BatchRunner | None = None

    @property
    def num_finished(self) -> int:
        return sum(key in self._results.finished for key in self._wanted)

    async def remotely(self, url: str) -> None:
        """Answer the lines on a server."""
        from twostroke.batch.runner import check_server, remote_client

        async with remote_client(url, os.environ.get("OPENAI_API_KEY")) as http:
            await check_server(http)
            await self._run(http, PATIENCE, self._options.request_timeout)

    def here(self, config: EngineConfig) -> None:
        """Answer them with the server's application in this process: same checks and answers."""
        import asyncio

        from twostroke.start_serving import start_model

        model = start_model(config)
        try:
            asyncio.run(
                self._locally(model, self._options.served_model_name or (config.model.model,))
            )
        finally:
            # A thread inside torch would abort the process when the interpreter is torn down around
            # it.
            model.client.close()

    async def _locally(self, model: LoadedModel, names: tuple[str, ...]) -> None:
        async with local_client(model, names) as http:
            await self._run(http, 0, None)

    async def _run(self, http: httpx.AsyncClient, patience: float, timeout: float | None) -> None:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

        from twostroke.batch.runner import BatchRunner

        console = Console(stderr=True)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(
            *columns, console=console, disable=not console.is_terminal, refresh_per_second=2
        ) as progress:
            task = progress.add_task(
                self._source.name, total=len(self._wanted), completed=self._num_before
            )
            done = partial(progress.advance, task)
            self._began = time.monotonic()
            self._runner = BatchRunner(
                http, self._results, patience=patience, done=done, timeout=timeout
            )
            await self._runner.run(self._left(), self._options.max_concurrency)

    def _left(self) -> Iterable[Line]:
        from twostroke.batch.lines import key_of, read_lines

        before = set(self._results.finished)
        return (line for line in read_lines(self._source) if key_of(line) not in before)

    def say_how_to_go_on(self) -> None:
        """After a run that ended early; one that never began has nothing to say."""
        if self._runner is None:
            return
        done = f"{self.num_finished} of {len(self._wanted)} requests are done"
        print(f"stopped: {done}; run the same command again to go on", file=sys.stderr)

    def summarize(self) -> int:
        """The last line, and the exit code."""
        finished = self._results.finished
        # A line that was taken out of the input meanwhile has no answer.
        failed = sum(key not in finished or not finished[key].succeeded for key in self._wanted)
        parts = [
            f"{len(self._wanted)} requests: {len(self._wanted) - failed} answered, {failed} failed"
        ]
        if self._num_before:
            parts.append(f"{self._num_before} done before")
        if self._runner is not None:
            totals, seconds = self._runner.totals, time.monotonic() - self._began
            parts.append(
                f"{totals.prompt_tokens} tokens in, {totals.completion_tokens} out, {seconds:.1f} s"
            )
        print(f"{'; '.join(parts)}; written to {self._target}", file=sys.stderr)
        if strangers := len(finished.keys() - self._wanted.keys()):
            print(
                f"{self._target} also holds {strangers} answers to other requests", file=sys.stderr
            )
        return EXIT_FAILURES if failed else 0


def local_client(model: LoadedModel, names: tuple[str, ...]) -> httpx.AsyncClient:
    """Calls the server's application without a network."""
    import httpx

    from twostroke.server.application import create_app
    from twostroke.server.options import ServerOptions

    app = create_app(model, ServerOptions(served_model_name=names))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://in-process", timeout=None)
