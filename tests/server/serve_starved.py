"""A process for tests: `twostroke serve` that runs out of memory in the place it is told."""

from __future__ import annotations

import resource
import sys

import psutil

from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.output import RequestOutput
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import EngineRecords
from twostroke.server.options import ServerOptions
from twostroke.server.process import run_server
from twostroke.text.tokenizer import Tokenizer

SPARE_BYTES = 128 * 2**20


def use_up_memory() -> None:
    """Take what there is in small pieces, as answers do, and keep it."""
    kept: list[object] = []
    while True:
        kept.append([bytearray(2**14), kept])


class HungryExecutor(FakeExecutor):
    def execute(self, plan: StepPlan) -> StepResult:
        use_up_memory()
        return super().execute(plan)


class HungryEngine(AsyncEngine):
    """On the event loop: in a callback where outputs arrive, or in a route."""

    place = ""

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        if self.place == "loop":
            use_up_memory()
        super()._deliver(outputs)

    async def records(self) -> EngineRecords:
        use_up_memory()
        return await super().records()


def main() -> None:
    place = sys.argv[1]

    def load(config: EngineConfig) -> LoadedModel:
        size = psutil.Process().memory_info().vms + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        if place == "load":
            use_up_memory()
        executor = HungryExecutor() if place == "engine" else FakeExecutor()
        engine = HungryEngine(LLMEngine(executor, Tokenizer(byte_level()), config))
        engine.place = place
        return engine.loaded_model()

    config = EngineConfig(model=ModelOptions(model="fake"))
    run_server(config, ServerOptions(port=0), load)


if __name__ == "__main__":
    main()
