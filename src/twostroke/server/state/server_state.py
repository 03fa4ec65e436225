"""Where a server is in its life: loading, ready or draining; and its models once they are there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NoReturn

from twostroke.core.errors import ConfigError, ModelLoadingError, ShuttingDownError, TwostrokeError
from twostroke.engine.clients.base import EngineClient
from twostroke.engine.clients.engine_view import EnginePart
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.server.options import SERVED, ServerOptions
from twostroke.server.state.loading_note import LoadingNote
from twostroke.server.state.served_model import ServedModel

Source = LoadedModel | Future[LoadedModel]


class ServerState:
    """The life of one server: loading, ready, draining.

    Args:
        source: A loaded model, or the future of one that is being loaded. It is the server's main
            model, which answers where a request names none.
        beside: Further models by name.
        ranker: The model of ``--context-ranker``, or its future, unless it is the served one.
        note: Why there is no model yet, if there is none.
    """

    def __init__(
        self,
        source: Source,
        options: ServerOptions,
        ranker: Source | None = None,
        beside: Mapping[str, Source] | None = None,
        note: LoadingNote | None = None,
    ) -> None:
        self._options, self._note = options, note or LoadingNote()
        self._source, self._ranker, self._beside = source, ranker, dict(beside or {})
        self._models: list[ServedModel] = []  # the main one first
        self._load_error: Exception | None = None
        self._draining = False
        self.settled = asyncio.Event()  # set once the model is there, or known not to come
        if not isinstance(source, Future) and not isinstance(ranker, Future) and not beside:
            self._attach(source, ranker, {})

    async def load(self) -> None:
        """Wait for the models; a failure is kept and reported by ``/health``."""
        if not self._models:
            try:
                ranker = None if self._ranker is None else await _loaded(self._ranker)
                main = await _loaded(self._source)
                beside = {name: await _loaded(source) for name, source in self._beside.items()}
                self._attach(main, ranker, beside)
            except Exception as error:
                self._load_error = error
        self.settled.set()

    @property
    def load_error(self) -> Exception | None:
        return self._load_error

    def _attach(
        self, main: LoadedModel, ranker: LoadedModel | None, beside: Mapping[str, LoadedModel]
    ) -> None:
        options = self._options
        models = [ServedModel(main, options.served_model_name, options, ranker)]
        if options.context_ranker == SERVED:  # which is the main one
            options = replace(options, context_ranker=None)
        models += [ServedModel(each, (name,), options, ranker) for name, each in beside.items()]
        _check_names(models)
        for model in models:
            model.beside = [other for other in models if other is not model]
        self._models = models

    def is_loading(self) -> bool:
        """Whether the model is still to come."""
        return not self._models and self._load_error is None

    def begin_drain(self) -> None:
        """From here on new work is refused."""
        self._draining = True

    async def drain(self) -> None:
        """Refuse new work, and let what runs finish for ``--shutdown-timeout`` seconds."""
        self.begin_drain()
        seconds = self._options.shutdown_timeout
        await asyncio.gather(*(model.client.drain(seconds) for model in self._models))

    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        stats = [model.client.status.stats for model in self._models]
        return sum(each.num_running + each.num_waiting for each in stats)

    def models(self) -> list[ServedModel]:
        """All of them, the main one first.

        Raises:
            ModelLoadingError: They are not there yet, or never will be.
        """
        if not self._models:
            self._raise_not_loaded()
        return self._models

    def parts(self) -> list[EnginePart]:
        """The engines of all models, those of the main one first.

        Raises:
            ModelLoadingError: See ``models``.
        """
        return [part for model in self.models() for part in model.client.parts()]

    def model(self, name: str | None = None) -> ServedModel:
        """The model to which a name belongs, its own or that of an adapter; else the main one.

        Raises:
            ModelLoadingError: See ``models``.
        """
        models = self.models()
        if name is not None and len(models) > 1:
            for known in (name, f"{name}:latest", name.removesuffix(":latest")):
                for model in models:
                    if known in model.all_names:
                        return model
        return models[0]

    def max_model_len(self) -> int:
        """The longest context of a model in tokens; 0 until they are there."""
        return max((model.client.info.max_model_len for model in self._models), default=0)

    def model_for_new_work(self, name: str | None = None) -> ServedModel:
        """The model of that name, as ``model`` finds it, to send it requests.

        Raises:
            ShuttingDownError: The server is draining.
            ModelLoadingError: See ``models``.
        """
        if self._draining:
            raise ShuttingDownError(
                "the server is shutting down and takes no new work", hint="try another server"
            )
        return self.model(name)

    def client_for_new_work(self) -> EngineClient | None:
        """The engine of all new work, if there is one, and the server is not draining."""
        is_one = len(self._models) == 1 and not self._draining
        return self._models[0].client if is_one else None

    def status(self) -> tuple[str, str | None]:
        """``ok``, ``loading``, ``draining`` or ``unhealthy``, and why it is not ok."""
        if self._draining:
            return "draining", "the server is shutting down"
        if self._load_error is not None:
            return "unhealthy", f"the model could not be loaded: {self._load_error}"
        if not self._models:
            return "loading", self._note.text
        reasons = {model.name: model.client.unhealthy_reason() for model in self._models}
        for name, reason in reasons.items():
            if reason is not None:
                return "unhealthy", reason if len(reasons) == 1 else f"{name}: {reason}"
        return "ok", None

    def _raise_not_loaded(self) -> NoReturn:
        if isinstance(self._load_error, TwostrokeError):
            raise ModelLoadingError(
                f"the model could not be loaded: {self._load_error}", hint=self._load_error.hint
            )
        raise ModelLoadingError(self._note.text, hint="wait until /health answers 200")


def _check_names(models: Sequence[ServedModel]) -> None:
    """Raise ``ConfigError`` if a name means two of several models, or a model and an adapter."""
    if len(models) == 1:
        return
    names = Counter(name.removesuffix(":latest") for each in models for name in each.all_names)
    for name, number in names.items():
        if number > 1:
            raise ConfigError(
                f"{name} is the name of two models, or of a model and an adapter",
                hint="give each another name",
            )


async def _loaded(source: Source) -> LoadedModel:
    return await asyncio.wrap_future(source) if isinstance(source, Future) else source
