"""How long the worst bodies within a server's limits delay ``/health``.

    python -m benchmarks.body_delay [--model MODEL]

Each body is sent to a server of its own process while ``/health`` is asked again and again beside
it; the delay is the longest of those answers. Of ``TRIES`` the shortest counts: other work on the
machine can only add to it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import running_server
from twostroke.server.generation.encoding import MAX_TEXT_BYTES

LIMIT = 4 * 2**20  # bytes of a body, as --max-body-size has it by default
VALUES, KEYS = 2**18, 2**16
CHINESE = "\u4e00".encode()
TRIES = 3
RESULT = Path(__file__).parent / "results" / "body_delay"
MESSAGE = {"role": "user", "content": "x"}


_VALUES: dict[str, list[Any]] = {
    "60,000 markers": ["</s>"] * 60_000,
    "60,000 empty lists": [[]] * 60_000,
    "110,000 integers": list(range(110_000)),
    "40,000 numbers, hard to read": [2.2250738585072011e-308] * 40_000,
    "160,000 numbers, hard to read": [2.2250738585072011e-308] * 160_000,
}


PAUSE = 0.2  # seconds between two tries
_SCHEDULER_CLOCK = 2  # CPUCLOCK_SCHED of Linux, beside a process's number: clock_getcpuclockid(3)


class Body(NamedTuple):
    """What is sent, and where to."""

    name: str
    path: str
    content: bytes


class Delay(NamedTuple):
    """What a body got, and did.

    ``contention`` is how much longer than its own processor time a computation took beside it:
    other work on the machine delays everything so much. ``processor_seconds`` is the most that
    the server's process computed during one answer of ``/health``.
    """

    status: int
    health_seconds: float
    seconds: float
    contention: float
    processor_seconds: float

    @property
    def own_seconds(self) -> float:
        """The delay on a machine without other work: both are bounds of it."""
        return min(self.health_seconds / self.contention, self.processor_seconds)


def worst_bodies() -> list[Body]:
    """Much of everything that a body can hold: up to the limits, and beyond those on counts."""
    return [*_numbers(), *_objects(), *_texts(), *_fields(), *thoughts()]


def _numbers() -> Iterator[Body]:
    path = "/v1/completions"

    def listed(item: bytes, count: int) -> bytes:
        return b"[" + b",".join([item] * count) + b"]"

    def prompt(items: bytes) -> bytes:
        return b'{"max_tokens":1,"prompt":' + items + b"}"

    hard = b"2.2250738585072011e-308"
    yield Body("2 million numbers", path, prompt(listed(b"0", LIMIT // 2 - 50)))
    yield Body("4 MiB of token ids in 4 prompts", path, prompt(listed(listed(b"12", 345000), 4)))
    yield Body("262,000 token ids", path, prompt(listed(b"12", VALUES - 4)))
    yield Body("4 prompts of 65,000 token ids", path, prompt(listed(listed(b"12", 65000), 4)))
    yield Body("170,000 numbers, hard to read", path, prompt(listed(hard, 170_000)))
    yield Body("numbers of 4,300 digits", path, prompt(listed(b"9" * 4300, LIMIT // 4302)))
    yield Body("a number of 4 MiB", path, prompt(b"0." + b"1" * (LIMIT - 100)))
    yield Body(
        "262,000 token ids to text", "/detokenize", b'{"tokens":' + listed(b"12", 262000) + b"}"
    )
    ids = listed(b"12", 131000)
    echoed = b'{"max_tokens":1,"echo":true,"prompt":' + listed(b"12", 32000) + b"}"
    yield Body("32,000 token ids, echoed", path, echoed)
    both = b'{"prompt":"x","max_tokens":1,"allowed_token_ids":%b,"banned_token_ids":%b}' % (
        ids,
        ids,
    )
    yield Body("131,000 tokens allowed and banned", path, both)


def _objects() -> Iterator[Body]:
    path = "/v1/chat/completions"
    keys = b",".join(b'"k%d":0' % i for i in range(300_000))
    yield Body("300,000 keys", path, b"{" + keys + b"}")
    keys = b",".join(b'"k%d":0' % i for i in range(KEYS - 2))
    yield Body("65,000 keys", path, b'{"messages":[],' + keys + b"}")
    yield Body("65,000 keys, one of them twice", path, b'{"k1":{' + keys + b',"k1":0}}')
    objects = b'{"messages":[' + b",".join([b'{"a":1}'] * (KEYS - 3)) + b"]}"
    yield Body("65,000 objects", path, objects)
    wide = b'{"messages":' + b"[" * 60_000 + b"]" * 60_000 + b"}"
    yield Body("60,000 lists in each other", path, wide)
    yield Body("a million empty lists", path, b'{"messages":[' + b"[]," * 10**6 + b"[]]}")
    wide = ('{"messages":[' + "[]," * 600_000 + "[]]}").encode("utf-16-le")
    yield Body("600,000 empty lists in UTF-16", path, wide)


def _texts() -> Iterator[Body]:
    path = "/v1/completions"

    def prompt(text: bytes, extra: bytes = b"") -> bytes:
        room = LIMIT - 100 - len(extra)
        return b'{"max_tokens":1,%b"prompt":"%b"}' % (extra, text * (room // len(text)))

    yield Body("4 MiB of text", path, prompt(b"the dog "))
    yield Body("4 MiB of escapes", path, prompt(b"a\\n"))
    yield Body("4 MiB of escaped quotes", path, prompt(b'\\"[{,:'))
    yield Body("4 MiB of backslashes", path, prompt(b"\\\\"))
    yield Body("4 MiB of Chinese in escapes", path, prompt(b"\\u4e00"))
    yield Body("4 MiB of Chinese", path, prompt(CHINESE))
    yield Body("4 MiB of emoji", path, prompt("\U0001f600".encode()))
    yield Body("4 MiB of commas in a text", path, prompt(b","))
    yield Body("4 MiB of quotes", path, b'{"prompt":' + b'"' * (LIMIT - 100))
    yield Body("4 MiB of spaces", path, b'{"prompt":"x"' + b" " * (LIMIT - 100) + b"}")
    yield Body("262,000 prompts", path, b'{"prompt":[' + b'"x",' * (VALUES - 9) + b'"x"]}')
    cut = b'"truncate_prompt_tokens":5,'
    for name, text in (("text", b"the dog "), ("unknown words", b"zxqj "), ("Chinese", CHINESE)):
        yield Body(f"4 MiB of {name}, cut to 5 tokens", path, prompt(text, cut))
        body = b'{"max_tokens":1,%b"prompt":"%b"}' % (cut, text * (MAX_TEXT_BYTES // len(text)))
        yield Body(f"1 MiB of {name}, cut to 5 tokens", path, body)
    chinese = b'{"prompt":"%b"}' % (CHINESE * (MAX_TEXT_BYTES // 3))
    yield Body("1 MiB of Chinese to tokens", "/tokenize", chinese)


def _fields() -> Iterator[Body]:
    path = "/v1/chat/completions"

    def chat(**fields: object) -> bytes:
        return json.dumps({"messages": [MESSAGE], "max_tokens": 1, **fields}).encode()

    parts = [{"type": "text", "text": "x"}] * 8192
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    yield Body("8,192 messages", path, chat(messages=[MESSAGE] * 8192))
    yield Body("8,192 parts", path, chat(messages=[{"role": "user", "content": parts}]))
    yield Body("1,024 documents", path, chat(documents=["the dog " * 400] * 1024))
    yield Body("300 biases", path, chat(logit_bias={str(i): 1 for i in range(300)}))
    yield Body("65,000 biases", path, chat(logit_bias={str(i): 1 for i in range(65_000)}))
    yield Body("16 stops of 1,024 characters", path, chat(stop=["x" * 1024] * 16))
    yield Body("100,000 stops", path, chat(stop=["x"] * 100_000))
    yield Body("256 bad words", path, chat(bad_words=["word " * 12] * 256))
    for name, values in _VALUES.items():
        function = {"name": "f", "parameters": {"enum": values}}
        tools = [{"type": "function", "function": function}]
        yield Body(f"a tool with {name}", path, chat(tools=tools))
    variable = {"enable_thinking": _VALUES["160,000 numbers, hard to read"]}
    yield Body(
        "a template's variable of 160,000 numbers", path, chat(chat_template_kwargs=variable)
    )
    function = {"name": "f", "parameters": {f"k{i}": "v" for i in range(60_000)}}
    tools = [{"type": "function", "function": function}]
    yield Body("a tool with 60,000 keys", path, chat(tools=tools))
    yield Body("12,000 tools", path, chat(tools=[tool] * 12_000))


def thoughts() -> Iterator[Body]:
    """As many thoughts of former turns as each API takes, in one turn and in many."""
    text, question = "x" * 400, {"role": "user", "content": "x"}
    parts = [{"type": "reasoning_text", "text": text}]
    item = {"type": "reasoning", "summary": [], "content": parts}
    for store in (False, True):
        body = {"input": [*[item] * 8000, question], "store": store, "max_output_tokens": 16}
        name = "8,000 thoughts as items" + (", to be stored" if store else "")
        yield Body(name, "/v1/responses", json.dumps(body).encode())
    turn = {"role": "assistant", "content": "x", "reasoning_content": text}
    body = {"messages": [*[turn] * 8000, question], "max_tokens": 1}
    yield Body("8,000 messages with thoughts", "/v1/chat/completions", json.dumps(body).encode())
    block = {"type": "thinking", "thinking": text, "signature": "x"}
    turns = [question, {"role": "assistant", "content": [block] * 8000}, question]
    body = {"messages": turns, "max_tokens": 1}
    yield Body("8,000 blocks of thoughts", "/v1/messages", json.dumps(body).encode())


def health_delay(url: str, pid: int, body: Body) -> Delay:
    """The longest answer of ``/health`` while ``body`` is sent and answered."""
    address = urlsplit(url)

    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)

    health = connect()

    def ask() -> tuple[float, float]:
        began, computed_before = time.perf_counter(), _computed(pid)
        health.request("GET", "/health")
        health.getresponse().read()
        return time.perf_counter() - began, _computed(pid) - computed_before

    ask()
    contention = _contention()
    status: list[int] = []

    def send() -> None:
        client = connect()
        client.request("POST", body.path, body.content, {"content-type": "application/json"})
        response = client.getresponse()
        response.read()
        status.append(response.status)
        client.close()

    sender = threading.Thread(target=send)
    began = time.perf_counter()
    sender.start()
    longest = processor = 0.0
    while sender.is_alive():
        longest, processor = map(max, (longest, processor), ask())
        time.sleep(0.001)
    seconds = time.perf_counter() - began
    health.close()
    assert status, f"no answer to {body.name}"
    return Delay(status[0], longest, seconds, (contention + _contention()) / 2, processor)


def _computed(pid: int) -> float:
    """Seconds of processor time of all threads of a process."""
    if sys.platform == "linux":  # to the nanosecond; psutil's clock has ticks of 10 ms
        return time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _contention() -> float:
    began, own = time.perf_counter(), time.thread_time()
    while (spent := time.thread_time() - own) < 0.02:
        sum(range(10_000))
    return max(1.0, (time.perf_counter() - began) / spent)


def best_delay(url: str, pid: int, body: Body, tries: int, enough: float = 0.0) -> Delay:
    """The one with the shortest delay of several; of fewer where one is below ``enough``."""
    best = health_delay(url, pid, body)
    for _ in range(tries - 1):
        if best.own_seconds <= enough:
            break
        time.sleep(PAUSE)  # other work on the machine may have ended by then
        best = min(best, health_delay(url, pid, body), key=lambda delay: delay.own_seconds)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pilot")
    model = parser.parse_args().model
    other_programs = OtherPrograms()
    rows: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(model, Path(folder) / "log") as server,
    ):
        for body in worst_bodies():
            delay = best_delay(server.url, server.process.pid, body, TRIES)
            size = len(body.content) / 2**20
            row = {"mebibytes": size, **delay._asdict(), "own_seconds": delay.own_seconds}
            rows[body.name] = row
            print(body.name, delay, flush=True)
    where = environment(f"python -m benchmarks.body_delay --model {model}", other_programs.share())
    heads = ("body", "MiB", "status", "answered in", "longest `/health`", "of that its own")
    lines = [f"| {' | '.join(heads)} |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    lines += [
        f"| {name} | {row['mebibytes']:.1f} | {row['status']} | {row['seconds'] * 1e3:.0f} ms |"
        f" {row['health_seconds'] * 1e3:.1f} ms | {row['own_seconds'] * 1e3:.1f} ms |"
        for name, row in rows.items()
    ]
    text = (
        f"The shortest of {TRIES} tries. The last column is without what other work on the machine"
        " took meanwhile.\n\n"
    ) + "\n".join(lines)
    about = environment_text(where).splitlines()
    text += "\n\n" + "\n".join(fill(line, 100, subsequent_indent="  ") for line in about)
    write_record(RESULT, "Delay by request bodies", text, {"environment": where, "bodies": rows})


if __name__ == "__main__":
    main()
