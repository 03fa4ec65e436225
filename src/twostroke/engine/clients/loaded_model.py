"""An engine, and beside it what a front end makes of the model's files by itself."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.engine.clients.base import EngineClient
from twostroke.text.tokenizer import Tokenizer


class LoadedModel(NamedTuple):
    """What a front end serves.

    Attributes:
        client: The engine, which may be in another process.
        tokenizer: With the chat templates.
        grammars: Compiles the forms of answers. A request's is compiled before it is submitted; an
            engine in this process finds it there, one in another compiles it once more.
    """

    client: EngineClient
    tokenizer: Tokenizer
    grammars: GrammarCompiler
