"""A worker without a model, for the tests of what connects to it; runs alone, or on a thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.engine.process.scripted_engine import ScriptedExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.network.address import Address
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.workers.greeting import ModelFingerprint
from twostroke.engine.workers.listener import listen_on
from twostroke.engine.workers.run_worker import (
    FrontEndClock,
    Worker,
    end_on_signals,
)
from twostroke.text.tokenizer import Tokenizer

VERSION, TOKEN = "scripted", b"a token of 23 characters"
MODEL = ModelFingerprint("scripted", "vocabulary", "weights")


def scripted_worker(port: int = 0, model: ModelFingerprint = MODEL) -> Worker:
    clock = FrontEndClock()
    engine = LLMEngine(ScriptedExecutor(), Tokenizer(byte_level()), clock=clock)
    return Worker(engine, clock, model, listen_on(Address("127.0.0.1", port), TOKEN, VERSION))


@contextmanager
def worker_on_thread(port: int = 0, model: ModelFingerprint = MODEL) -> Iterator[Worker]:
    """A worker that must have ended, with nothing left in it, once its front ends are gone."""
    worker = scripted_worker(port, model)
    thread = threading.Thread(target=worker.run)
    thread.start()
    while not worker._listener._open:
        time.sleep(0.001)
    try:
        yield worker
    finally:
        worker.drain(0)
        thread.join(10)
    assert not thread.is_alive()
    assert not worker._engine.scheduler.requests and not worker._engine._samples
    worker._engine.scheduler.kv.check_integrity()


if __name__ == "__main__":
    own = scripted_worker(int(sys.argv[1]))
    end_on_signals(own, 30)
    print("ready", flush=True)
    own.run()
