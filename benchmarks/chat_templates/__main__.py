"""Ways to render chat templates: their bytes beside transformers', their time, their protection.

    python -m benchmarks.chat_templates [bytes | time | hostile] [--templates FOLDER]

`--templates` adds the `*.jinja` files of a folder, such as `trl/chat_templates` of the wheel of
TRL, to those of the tests and of pilot. MiniJinja is left out where it is not installed.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.chat_templates.candidates import CANDIDATES, Messages, Render, transformers
from benchmarks.chat_templates.hostile import SOURCES, START, attack
from tests.text.contexts import TEMPLATES
from tests.text.family_templates import FAMILIES
from tests.text.test_template_budget import SAME
from twostroke.core.errors import TwostrokeError
from twostroke.server.process import SWITCH_SECONDS

PILOT = Path("src/twostroke/pilot/weights")
USER = {"role": "user", "content": 'How tall is the Fernsehturm, and is it *taller*?\n  "I guess"'}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\n368 metres, é\t "}
CALL = {"name": "measure", "arguments": {"what": "<tower>", "unit": "m", "deep": [1, 2.5, None]}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": CALL}],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "measure",
        "description": "How tall a thing is; 'é'",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string"}, "unit": {"enum": ["m", "ft"]}},
            "required": ["what"],
        },
    },
}
CHATS: dict[str, tuple[Messages, dict[str, Any]]] = {
    "short": ([USER], {"x": "y"}),
    "turns": ([USER, THOUGHT, USER], {"x": "y"}),
    "system": ([{"role": "system", "content": " Be brief. "}, USER, THOUGHT, USER], {"x": True}),
    "tools": ([USER, THOUGHT, USER], {"x": 1.0, "tools": [TOOL, TOOL]}),
    "called": (
        [USER, CALLED, {"role": "tool", "content": "368"}],
        {"tools": [TOOL], "x": [1, "b"]},
    ),
}
USUAL = [USER, THOUGHT] * 3 + [USER]
LONG = [USER, THOUGHT] * 1000
app = cyclopts.App(help=__doc__)


def _sources(folder: Path | None) -> dict[str, str]:
    files = [*PILOT.glob("*/*.jinja"), *(sorted(folder.glob("*.jinja")) if folder else ())]
    read = {str(file): file.read_text() for file in files}
    same = {f"language {i}": source for i, source in enumerate(SAME)}
    small = {f"small {name}": source for name, source in TEMPLATES.items()}
    return {**FAMILIES, **small, **same, **read}


def _candidates() -> list[str]:
    return [name for name in CANDIDATES if name != "minijinja" or find_spec(name)]


def _outcome(render: Render, chat: str) -> tuple[str, str]:
    try:
        return "text", render(*CHATS[chat])
    except Exception as error:
        return "error", error.message if isinstance(error, TwostrokeError) else str(error)


@app.command(name="bytes")
def compare_bytes(templates: Path | None = None) -> None:
    """Of each template and chat: the same text as transformers', or an error where it has one."""
    sources = _sources(templates)
    for name in _candidates():
        same, differing = Counter[str](), dict[str, str]()
        for (label, source), chat in itertools.product(sources.items(), CHATS):
            expected = _outcome(transformers(source), chat)
            try:
                found = _outcome(CANDIDATES[name](source), chat)
            except Exception as error:
                found = ("error", f"at load: {error}")
            equal = found == expected if expected[0] == "text" else found[0] == "error"
            same[expected[0]] += equal
            same["of " + expected[0]] += 1
            if not equal:
                differing.setdefault(label, f"{chat}: {found[0]} {ascii(found[1])[:110]}")
        print(f"{name}: {dict(same)}; templates that differ: {len(differing)} of {len(sources)}")
        for label, how in differing.items():
            print(f"  {Path(label).name}: {how}")


@contextmanager
def _beside(what: str, render: Render) -> Iterator[None]:
    """What else runs: nothing, threads of this process, or a process for each processor."""
    stop = threading.Event()
    work: dict[str, Callable[[], object]] = {
        "a Python thread": lambda: sum(range(10_000)),
        "a long chat": lambda: render(LONG, {}),
    }

    def repeat() -> None:
        while not stop.is_set():
            work[what]()

    threads = [threading.Thread(target=repeat)] if what in work else []
    children = []
    if what == "all processors":
        for _ in range(os.cpu_count() or 1):
            if not (child := os.fork()):
                while os.getppid() != 1:
                    sum(range(100_000))
                os._exit(0)
            children.append(child)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


@app.command(name="time")
def measure_time(rounds: int = 1000) -> None:
    """Milliseconds of a rendering: the median, and what one of a hundred exceeds."""
    sys.setswitchinterval(SWITCH_SECONDS)  # as the server does
    began = time.perf_counter()
    CANDIDATES["process"](FAMILIES["chatml"])(USUAL, {})
    print(f"the first of a process: {1000 * (time.perf_counter() - began):.0f} ms")
    for load, (label, messages, repeats) in itertools.product(
        ("nothing", "a Python thread", "all processors", "a long chat"),
        (("usual", USUAL, rounds), ("long", LONG, 20)),
    ):
        for name in _candidates():
            renders = [CANDIDATES[name](source) for source in FAMILIES.values()]
            taken = []
            with _beside(load, renders[0]):
                time.sleep(0.1)  # the load begins
                for _, render in itertools.product(range(repeats), renders):
                    began = time.perf_counter()
                    render(messages, {})
                    taken.append(1000 * (time.perf_counter() - began))
            median, last = statistics.median(taken), statistics.quantiles(taken, n=100)[-1]
            print(f"{label:5} beside {load:15} {name:9} {median:8.3f} {last:8.3f} ms")


@app.command(name="hostile")
def attack_all() -> None:
    """What the hostile templates of the tests end in."""
    for name in _candidates():
        endings = [attack(name, source) for source in SOURCES]
        print(name, dict(Counter(ending.how for ending in endings)))
        seconds = [ending.seconds for ending in endings]
        print(f"  slowest {max(seconds):.1f} s, together {sum(seconds):.0f} s")
        print(f"  largest {max(ending.peak_mb for ending in endings):.0f} MB")
        for source, ending in zip(SOURCES, endings, strict=True):
            if ending.how != "refused" or ending.seconds > 2 or ending.peak_mb > 300:
                print(f"  {ending.how}, {ending.seconds:.1f} s, {ending.peak_mb:.0f} MB:", end=" ")
                print(source.removeprefix(START)[:70], ending.detail[:60])


if __name__ == "__main__":
    app()
