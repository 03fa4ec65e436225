"""The model that a server serves, and the names under which clients know it."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TypeVar

from twostroke.constraints.compiling.compile_threads import CompileThreads
from twostroke.core.errors import ConfigError, InvalidRequestError, ModelNotFoundError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import MAX_LOGPROBS
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.server.options import ServerOptions
from twostroke.server.state.logprobs_budget import (
    DEFAULT_LOGPROBS_MEMORY,
    LOGPROB_BYTES,
    LogprobsBudget,
)
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate
from twostroke.tools.reasoning import REASONING_OF_NAME, reasoning_of_template
from twostroke.tools.registry import FAMILY_OF_NAME, family_of_template

Form = TypeVar("Form")


class ServedModel:
    """A loaded model and its names.

    Attributes:
        client, tokenizer, grammars: See ``LoadedModel``.
        names: The first is the one that answers carry; requests may use any.
        adapter: The LoRA adapter that its requests run with; empty: none.
        chat_encoder: Refuses every chat if the model has none.
        slow_template: Even short chats are rendered on a thread; measured once, here.
        created: Unix time at which it was there.
        logprobs: What the log-probabilities of its unfinished answers may take.
        compile_threads: Compiles the forms of answers beside the event loop.
        long_texts: Held while a very long text is encoded, which takes hundreds of megabytes.
        tool_family: In which form the model writes tool calls, if it does.
        reasoning_parser: In which form it writes thoughts, if it does.
        ranker: What ranks the documents of chats, if a model does.
        beside: The server's other models.
        ends_with_usage: Streams of OpenAI's APIs do, whatever the request says.

    Args:
        ranker: Another model, for ``--context-ranker``.

    Raises:
        ConfigError: The model of ``--context-ranker`` gives neither scores nor embeddings, or an
            adapter has one of the names.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        names: Sequence[str],
        options: ServerOptions | None = None,
        ranker: LoadedModel | None = None,
    ) -> None:
        options = options or ServerOptions()
        self.client, self.tokenizer, self.grammars = loaded
        info = self.client.info
        self.names = tuple(names) or (info.model_id,)
        self.adapter = ""
        self.beside: Sequence[ServedModel] = ()
        if same := set(self.names) & set(self.client.adapters):
            raise ConfigError(
                f"--lora {same.pop()}: the model itself has this name", hint="give it another name"
            )
        self.chat_encoder = ChatEncoder(
            ChatTemplate.from_tokenizer(self.tokenizer),
            self.tokenizer,
            special_tokens_in_messages=options.special_tokens_in_messages,
        )
        self.slow_template = self.chat_encoder.template.is_slow
        self.created = int(time.time())
        longest = info.max_model_len * (MAX_LOGPROBS + 1) * LOGPROB_BYTES
        default = max(DEFAULT_LOGPROBS_MEMORY, 2 * longest)
        self.logprobs = LogprobsBudget(options.max_logprobs_memory or default)
        self.compile_threads = CompileThreads(self.grammars)
        self.long_texts = asyncio.Semaphore(2)
        template = "".join(self.tokenizer.chat_templates.values())
        self.tool_family = _chosen(
            options.tool_call_parser, family_of_template(template), FAMILY_OF_NAME
        )
        self.reasoning_parser = _chosen(
            options.reasoning_parser, reasoning_of_template(template), REASONING_OF_NAME
        )
        self.ends_with_usage = options.enable_force_include_usage
        self.ranker: ContextRanker | None = None
        if options.context_ranker is not None:
            other = PurePath(options.context_ranker).name  # clients need not know the folder
            own = self if ranker is None else ServedModel(ranker, (other,))
            self.ranker = _context_ranker(own, options)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def chats(self) -> bool:
        return bool(self.tokenizer.chat_templates)

    @property
    def all_names(self) -> tuple[str, ...]:
        """Its names, and those of its adapters."""
        return (*self.names, *self.client.adapters)

    def named(self, name: str | None) -> ServedModel:
        """The model that a request means: this one, or this one with an adapter.

        Raises:
            ModelNotFoundError: There is none of that name.
        """
        if name is None or name in self.names or name not in self.client.adapters:
            self.check_name(name)
            return self
        adapted = copy.copy(self)
        adapted.names, adapted.adapter = (name,), name
        return adapted

    def asked(self, requests: Sequence[GenerationRequest]) -> Sequence[GenerationRequest]:
        """What the engine is asked: the requests, with the adapter that they name."""
        return [replace(each, adapter=self.adapter) for each in requests]

    def check_name(self, name: str | None) -> None:
        """Raise ``ModelNotFoundError`` unless ``name`` is one of ``names``, or not given."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            if name in self.client.adapters:
                raise InvalidRequestError(
                    f"{name!r} is an adapter, which writes text and does nothing else",
                    param="model",
                    hint=f"name the model itself: {served}",
                )
            names = [name for model in (self, *self.beside) for name in model.all_names]
            served = ", ".join(names[:20])
            message = f"the model {name!r} does not exist here"
            raise ModelNotFoundError(message, param="model", hint=f"this server serves {served}")


@dataclass(frozen=True, slots=True)
class ContextRanker:
    """The model that ranks the documents of chats.

    Attributes:
        seconds: The most that one ranking may take.
    """

    model: ServedModel
    seconds: float


def _context_ranker(model: ServedModel, options: ServerOptions) -> ContextRanker:
    ability = model.client.info.pooling
    if ability.score_kind is None and ability.reason[0]:
        raise ConfigError(
            f"--context-ranker {options.context_ranker}: it gives no scores, and of embeddings:"
            f" {ability.reason[0]}",
            hint=ability.reason[1] or "name a ranking model or an embedding model",
        )
    return ContextRanker(model, options.context_ranker_timeout)


def _chosen(option: str, own: Form | None, by_name: Mapping[str, Form]) -> Form | None:
    """An option's form: by name, none, or the one of the model's chat template."""
    return own if option == "auto" else None if option == "none" else by_name[option]
