"""Servers for clients: pilot, and an engine that says what a test gives it turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from tests.server.openai.tools.test_tools import HERMES
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine, ScriptedStream
from tests.server.tiny import tiny_engine
from twostroke.core.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.start_serving import start_async_engine


@dataclass
class TurnsEngine(ScriptedEngine):
    """Answers request by request with the next of ``turns``; the last one stays."""

    turns: list[tuple[str, ...]] = field(default_factory=list)

    def submit(self, request: GenerationRequest) -> ScriptedStream:
        turn = self.turns[min(len(self.submitted), len(self.turns) - 1)]
        self.script = replace(self.script, pieces=turn)
        return super().submit(request)

    def prompt(self, place: int) -> str:
        """The text of a prompt."""
        return self.tokenizer.decode(self.submitted[place].prompt_token_ids)


CALL = ('<tool_call>\n{"name": "get_wea', 'ther", "arguments": {"city": "Bern"', "}}\n</tool_call>")
ANSWER = ("It rains ", "in Bern.")


@pytest.fixture
def agent() -> TurnsEngine:
    """Calls ``get_weather``, then answers with text."""
    return TurnsEngine(Script(max_model_len=8000), template=HERMES, turns=[CALL, ANSWER])


@pytest.fixture
def agent_url(agent: TurnsEngine) -> Iterator[str]:
    with running_server(agent) as url:
        yield url + "/v1"


@pytest.fixture(scope="session")
def vectors_url() -> Iterator[str]:
    """A tiny model that embeds."""
    with tiny_engine() as engine, running_server(engine, served_model_name=("tiny",)) as url:
        yield url


@pytest.fixture(scope="session")
def pilot_url() -> Iterator[str]:
    """The embedded model, as it is served."""
    config = EngineConfig(
        model=ModelOptions(model="pilot"),
        cache=CacheConfig(kv_cache_memory=64 * 2**20),
        scheduler=SchedulerConfig(max_num_seqs=8),
    )
    engine = start_async_engine(config, served_model_name="pilot")
    try:
        with running_server(engine, served_model_name=("pilot",)) as url:
            yield url + "/v1"
    finally:
        engine.close()
