"""An engine without a model, in a process of its own: some prompts end it, stop it, or hang it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.output import RequestOutput
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.process.handshake import StartEngine
from twostroke.engine.process.serve_front_end import serve_front_end
from twostroke.text.tokenizer import Tokenizer

VERSION = "scripted"
ENDS, HANGS, FAILS = 49, 48, 47  # the first token of a prompt


class ScriptedExecutor(FakeExecutor):
    """Five milliseconds a step."""

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(0.005)
        first = {new.spec.prompt_token_ids[0] for new in plan.new_requests.values()}
        if ENDS in first:
            os.kill(os.getpid(), signal.SIGKILL)
        hung = Path(os.environ["TWOSTROKE_TEST_HUNG"])
        if HANGS in first and not hung.exists():
            hung.touch()
            time.sleep(1000)
        return super().execute(plan)


class FailingEngine(LLMEngine):
    """Has a bug that a prompt shows, once."""

    def step(self) -> list[RequestOutput]:
        hung = Path(os.environ["TWOSTROKE_TEST_HUNG"])
        prompts = [each.spec.prompt_token_ids for each in self.scheduler.requests.values()]
        if any(prompt[0] == FAILS for prompt in prompts) and not hung.exists():
            hung.touch()
            raise KeyError("bug")
        return super().step()


def load(start: StartEngine) -> LLMEngine:
    if start.served_model_name == "refused":
        raise InsufficientMemoryError("there is no room", hint="buy some")
    if start.served_model_name == "gone":
        os._exit(7)
    if start.served_model_name == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    return FailingEngine(ScriptedExecutor(), Tokenizer(byte_level()), start.config, rank=start.rank)


if __name__ == "__main__":
    connection = socket.socket(fileno=int(sys.argv[1]))
    serve_front_end(connection, load, lambda start: None, VERSION)
