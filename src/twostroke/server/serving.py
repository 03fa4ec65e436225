"""What the routes share: the model once it is there, its names, and whether new work is welcome."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NoReturn, Protocol

from starlette.types import Scope

from twostroke.core.errors import ShuttingDownError, TwostrokeError
from twostroke.engine.clients.base import EngineClient
from twostroke.gateway.caller import client_for
from twostroke.server.errors import ModelLoadingError, ModelNotFoundError
from twostroke.server.options import ServerOptions
from twostroke.text.chat_template import ChatTemplate


class ServedModel:
    """A loaded model and the names under which clients know it.

    Attributes:
        names: The first is the one that answers carry; requests may use any.
        chat_template: Refuses every chat if the model has none.
        created: Unix time at which it was there.
        long_texts: Held while a very long text is encoded, which takes hundreds of megabytes.
    """

    def __init__(self, client: EngineClient, names: Sequence[str]) -> None:
        self.client = client
        self.names = tuple(names) or (client.info.model_id,)
        self.chat_template = ChatTemplate.from_tokenizer(client.tokenizer)
        self.created = int(time.time())
        self.long_texts = asyncio.Semaphore(2)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def chats(self) -> bool:
        return bool(self.client.tokenizer.chat_templates)

    def through(self, client: EngineClient) -> ServedModel:
        """The same model by way of another client."""
        other = copy.copy(self)
        other.client = client
        return other

    def check_name(self, name: str | None) -> None:
        """Raise ``ModelNotFoundError`` unless ``name`` is one of ours, or not given."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            message = f"the model {name!r} does not exist here"
            raise ModelNotFoundError(message, param="model", hint=f"this server serves {served}")


class OwnedEngine(EngineClient, Protocol):
    """An engine that ends with the server that loaded it."""

    def close(self) -> None: ...


class Serving:
    """The life of one server: loading, ready, draining.

    Args:
        source: An engine that is there, or the future of one that is being loaded.
    """

    def __init__(self, source: EngineClient | Future[OwnedEngine], options: ServerOptions) -> None:
        self._options = options
        self._source = source
        self._model: ServedModel | None = None
        self._load_error: Exception | None = None
        self._draining = False
        self.settled = asyncio.Event()  # set once the model is there, or known not to come
        if not isinstance(source, Future):
            self._attach(source)

    async def load(self) -> None:
        """Wait for the model; a failure is kept and reported by ``/health``."""
        if isinstance(self._source, Future):
            try:
                loaded: OwnedEngine = await asyncio.wrap_future(self._source)
                self._attach(loaded)
            except Exception as error:
                self._load_error = error
        self.settled.set()

    @property
    def load_error(self) -> Exception | None:
        return self._load_error

    def _attach(self, client: EngineClient) -> None:
        self._model = ServedModel(client, self._options.served_model_name)

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
        stats = self._model.client.stats()
        return stats.num_running + stats.num_waiting

    def loaded(self) -> ServedModel:
        """The model, to look at.

        Raises:
            ModelLoadingError: It is not there yet, or never will be.
        """
        if self._model is None:
            self._raise_not_loaded()
        return self._model

    def accepting(self, scope: Scope) -> ServedModel:
        """The model, to send it new work on behalf of whoever sent the request of this ASGI scope.

        Raises:
            ShuttingDownError: The server is draining.
        """
        if self._draining:
            raise ShuttingDownError(
                "the server is shutting down and takes no new work", hint="try another server"
            )
        model = self.loaded()
        return model.through(client_for(scope, model.client))

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
