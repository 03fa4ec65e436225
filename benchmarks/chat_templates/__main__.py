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

from benchmarks.chat_templates.candidates import CANDIDATES, Messages, transformers
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
    return {**FAMILIES, **TEMPLATES, **same, **read}


def _candidates() -> list[str]:
    return [name for name in CANDIDATES if name != "minijinja" or find_spec(name)]


def _outcome(render: Callable[[Messages, dict[str, Any]], str], chat: str) -> tuple[str, str]:
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
def _beside(what: str) -> Iterator[None]:
    """Nothing, a thread that runs Python, or as many busy processes as there are processors."""
    stop = threading.Event()
    children = []
    if what == "thread":
        threading.Thread(target=lambda: all(not stop.is_set() for _ in itertools.count())).start()
    if what == "processes":
        for _ in range(os.cpu_count() or 1):
            child = os.fork()
            if not child:
                while os.getppid() != 1:
                    sum(range(100_000))
                os._exit(0)
            children.append(child)
    try:
        yield
    finally:
        stop.set()
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


@app.command(name="time")
def measure_time(rounds: int = 300) -> None:
    """Milliseconds of a rendering, the candidates in turn: median and the 99th hundredth."""
    sys.setswitchinterval(SWITCH_SECONDS)  # as the server does
    names = _candidates()
    for load, (label, messages, repeats) in itertools.product(
        ("nothing", "thread", "processes"), (("usual", USUAL, rounds), ("2,000", LONG, 15))
    ):
        renders = {
            (name, family): CANDIDATES[name](source)
            for name in names
            for family, source in FAMILIES.items()
        }
        times: dict[str, list[float]] = {name: [] for name in names}
        with _beside(load):
            for _ in range(repeats):
                for (name, _family), render in renders.items():
                    began = time.perf_counter()
                    render(messages, {})
                    times[name].append(1000 * (time.perf_counter() - began))
        for name, taken in times.items():
            last = statistics.quantiles(taken, n=100)[-1]
            print(f"{load:9} {label:6} {name:9} {statistics.median(taken):8.3f} {last:8.3f} ms")


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
