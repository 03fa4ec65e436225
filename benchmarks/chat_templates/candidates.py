"""The ways to render a chat template that were compared, and `transformers` as their reference."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.chat_templates import worker
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.template_budget import MAX_STEPS

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
Messages = list[dict[str, Any]]
Render = Callable[[Messages, dict[str, Any]], str]


def transformers(source: str) -> Render:
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(messages: Messages, variables: dict[str, Any]) -> str:
        rendered = render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=True, **SPECIAL, **variables
        )
        return str(rendered[0][0])

    return render


def budget(source: str) -> Render:
    """Jinja's sandbox in the server's process, every rendering within a budget."""
    template = ChatTemplate(source, SPECIAL)
    return lambda messages, variables: template.render(messages, **variables)


def minijinja(source: str) -> Render:
    """MiniJinja with as much fuel as the budget has steps."""
    from minijinja import Environment

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    def strftime_now(layout: str) -> str:
        return datetime.now().strftime(layout)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = Environment(
        # It has no such tag, and no way to add one.
        templates={"chat": re.sub(r"\{%(-?)\s*(end)?generation\s*(-?)%\}", "", source)},
        trim_blocks=True,
        lstrip_blocks=True,
        fuel=MAX_STEPS,
        globals={"raise_exception": raise_exception, "strftime_now": strftime_now},
        filters={"tojson": tojson},
    )

    def render(messages: Messages, variables: dict[str, Any]) -> str:
        context = {"tools": None, "documents": None, **SPECIAL, **variables}
        context |= {"messages": messages, "add_generation_prompt": True}
        return str(environment.render_template("chat", **context))

    return render


class Processes:
    """Worker processes: an idle one renders, or a new one where all are at work.

    One that its limits have ended is not used again.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def ask(self, request: bytes) -> bytes:
        process, connection = self._idle.pop() if self._idle else _started()
        try:
            connection.send_bytes(request)
            answer = connection.recv_bytes()
        except (EOFError, OSError):
            connection.close()
            process.wait()
            return worker.FULL
        self._idle.append((process, connection))
        return answer

    def close(self) -> None:
        while self._idle:
            process, connection = self._idle.pop()
            connection.close()
            process.wait()


def _started() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    command = [sys.executable, "-m", worker.__name__, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    return process, ours


PROCESSES = Processes()


def process(source: str) -> Render:
    """Jinja's sandbox in a process with limits."""

    def render(messages: Messages, variables: dict[str, Any]) -> str:
        context = {"tools": None, "documents": None, **SPECIAL, **variables}
        context |= {"messages": messages, "add_generation_prompt": True}
        answer = PROCESSES.ask(pickle.dumps((source, context), pickle.HIGHEST_PROTOCOL))
        text = answer[1:].decode("utf-8", "surrogatepass")
        if answer[:1] != worker.DONE:
            raise ValueError(text or "ended by its limits")
        return text

    return render


CANDIDATES: dict[str, Callable[[str], Render]] = {
    "budget": budget,
    "minijinja": minijinja,
    "process": process,
}
