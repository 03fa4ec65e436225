"""Where a server is in its life: loading, ready or draining; and its model once that is there."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import NoReturn

from twostroke.core.errors import ModelLoadingError, ShuttingDownError, TwostrokeError
from twostroke.engine.clients.base import EngineClient
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.server.options import ServerOptions
from twostroke.server.state.served_model import ServedModel


class ServerState:
    """The life of one server: loading, ready, draining.

    Args:
        source: A loaded model, or the future of one that is being loaded.
        ranker: The model of ``--context-ranker``, or its future, unless it is the served one.
    """

    def __init__(
        self,
        source: LoadedModel | Future[LoadedModel],
        options: ServerOptions,
        ranker: LoadedModel | Future[LoadedModel] | None = None,
    ) -> None:
        self._options = options
        self._source, self._ranker = source, ranker
        self._model: ServedModel | None = None
        self._load_error: Exception | None = None
        self._draining = False
        self.settled = asyncio.Event()  # set once the model is there, or known not to come
        if not isinstance(source, Future) and not isinstance(ranker, Future):
            self._attach(source, ranker)

    async def load(self) -> None:
        """Wait for the model; a failure is kept and reported by ``/health``."""
        if self._model is None:
            try:
                ranker = None if self._ranker is None else await _loaded(self._ranker)
                self._attach(await _loaded(self._source), ranker)
            except Exception as error:
                self._load_error = error
        self.settled.set()

    @property
    def load_error(self) -> Exception | None:
        return self._load_error

    def _attach(self, loaded: LoadedModel, ranker: LoadedModel | None) -> None:
        names = self._options.served_model_name
        self._model = ServedModel(loaded, names, self._options, ranker)

    def is_loading(self) -> bool:
        """Whether the model is still to come."""
        return self._model is None and self._load_error is None

    def begin_drain(self) -> None:
        """From here on new work is refused."""
        self._draining = True

    async def drain(self) -> None:
        """Refuse new work, and let what runs finish for ``--shutdown-timeout`` seconds."""
        self.begin_drain()
        if self._model is not None:
            await self._model.client.drain(self._options.shutdown_timeout)

    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        if self._model is None:
            return 0
        stats = self._model.client.status.stats
        return stats.num_running + stats.num_waiting

    def model(self) -> ServedModel:
        """The model, to read about it.

        Raises:
            ModelLoadingError: It is not there yet, or never will be.
        """
        if self._model is None:
            self._raise_not_loaded()
        return self._model

    def max_model_len(self) -> int:
        """The model's context in tokens; 0 until it is there."""
        return 0 if self._model is None else self._model.client.info.max_model_len

    def model_for_new_work(self) -> ServedModel:
        """The model, to send it requests.

        Raises:
            ShuttingDownError: The server is draining.
            ModelLoadingError: See ``model``.
        """
        if self._draining:
            raise ShuttingDownError(
                "the server is shutting down and takes no new work", hint="try another server"
            )
        return self.model()

    def client_for_new_work(self) -> EngineClient | None:
        """The engine, if it is there and the server is not draining."""
        return None if self._draining or self._model is None else self._model.client

    def status(self) -> tuple[str, str | None]:
        """``ok``, ``loading``, ``draining`` or ``unhealthy``, and why it is not ok."""
        if self._draining:
            return "draining", "the server is shutting down"
        if self._load_error is not None:
            return "unhealthy", f"the model could not be loaded: {self._load_error}"
        if self._model is None:
            return "loading", "the model is loading"
        reason = self._model.client.unhealthy_reason()
        return ("ok", None) if reason is None else ("unhealthy", reason)

    def _raise_not_loaded(self) -> NoReturn:
        if isinstance(self._load_error, TwostrokeError):
            raise ModelLoadingError(
                f"the model could not be loaded: {self._load_error}", hint=self._load_error.hint
            )
        raise ModelLoadingError("the model is loading", hint="wait until /health answers 200")


async def _loaded(source: LoadedModel | Future[LoadedModel]) -> LoadedModel:
    return await asyncio.wrap_future(source) if isinstance(source, Future) else source
