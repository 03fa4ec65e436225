"""A router's clients of workers, as ``twostroke route`` has them, without HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.engine.process.scripted_process import CONFIG
from tests.engine.workers.scripted_worker import MODEL, TOKEN, VERSION
from tests.text.tiny_tokenizers import byte_level
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.network.address import Address
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.replicas import Replicas
from twostroke.engine.workers.connect import WorkerSource, first_worker, unreached
from twostroke.routing.routers import make_router
from twostroke.text.tokenizer import Tokenizer


@contextmanager
def routed(addresses: Sequence[Address], **options: Any) -> Iterator[Replicas]:
    """Clients of all the workers, once one of them is there."""
    first, link, welcome = first_worker(addresses, TOKEN, VERSION, lambda text: None)
    tokenizer = Tokenizer(byte_level())
    engines = [
        EngineProcess(
            WorkerSource(address, TOKEN, VERSION, CONFIG, MODEL),
            StartedEngine(link, welcome.facts)
            if address == first
            else unreached(address, welcome.facts),
            tokenizer=tokenizer,
            grammars=GrammarCompiler(tokenizer),
            **{"stall_seconds": 60.0, **options},
        )
        for address in addresses
    ]
    replicas = Replicas(engines, make_router("least-loaded"))
    try:
        yield replicas
    finally:
        replicas.close()


def are_there(replicas: Replicas) -> bool:
    """Whether all workers take requests; also has the running loop read what they say."""
    reasons = [engine.unhealthy_reason() for engine in replicas.engines]
    return not any(reasons) and all(engine.takes_requests for engine in replicas.engines)
