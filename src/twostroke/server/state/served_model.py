"""The model that a server serves, and the names under which clients know it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from twostroke.core.errors import ModelNotFoundError
from twostroke.engine.clients.base import EngineClient
from twostroke.text.chat_template import ChatTemplate


class ServedModel:
    """A loaded model and its names.

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

    def check_name(self, name: str | None) -> None:
        """Raise ``ModelNotFoundError`` unless ``name`` is one of ``names``, or not given."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            message = f"the model {name!r} does not exist here"
            raise ModelNotFoundError(message, param="model", hint=f"this server serves {served}")
