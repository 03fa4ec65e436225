"""What the inspector costs: bytes, first paint, frame times, the engine's throughput, memory.

    python -m benchmarks.inspector.cost [--pairs 5] [--seconds 12] [--minutes 5]
    python -m benchmarks.inspector.cost --only page|drawing|recording|memory

Throughput is measured in pairs, one run without a page and one with a page open on the live view,
in turn on one server; the page runs on the same machine, so its own drawing takes cores from the
engine. A second kind of pair has a reader of the feed that draws nothing: the server's share.
``drawing`` is what the page alone costs, without an engine (``page_cost``); ``memory`` opens the
live view under 64 clients for so many minutes. Writes ``benchmarks/results/inspector.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec

from benchmarks.environment import OtherPrograms, environment
from benchmarks.inspector import page_cost
from benchmarks.inspector.traffic import send, serving
from tests.inspector.browser import opened, running_browser
from tests.inspector.showing import page_of
from twostroke.inspector.recording import Recording
from twostroke.inspector.source import FrameLimits
from twostroke.inspector.static_files import known_files
from twostroke.observability.frames.columns import encode_steps
from twostroke.observability.recorder import read_jsonl

RESULTS = Path(__file__).parents[1] / "results/inspector.json"
CLIENTS = 24
FRAMES = """async () => {
  const times = [];
  let before = performance.now();
  for (let i = 0; i < 240; i++) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - before);
    before = now;
  }
  times.sort((a, b) => a - b);
  const heap = performance.memory ? performance.memory.usedJSHeapSize : 0;
  return {median_ms: times[120], p95_ms: times[228], heap_bytes: heap};
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@contextlib.contextmanager
def unwatched(url: str) -> Iterator[None]:
    yield


@contextlib.contextmanager
def a_reader(url: str) -> Iterator[None]:
    """Reads the feed and throws it away."""
    ended = threading.Event()

    def read() -> None:
        with httpx.stream("GET", f"{url}/v1/inspect/events", timeout=30) as answer:
            for _ in answer.iter_raw():
                if ended.is_set():
                    return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(timeout=5)


def tokens_per_second(url: str, watch: Callable[[str], Any], seconds: float, seed: int) -> float:
    with watch(url):
        began = time.perf_counter()
        # On a thread of its own: Playwright's event loop runs on this one.
        with ThreadPoolExecutor(1) as pool:
            tokens = pool.submit(asyncio.run, send(url, seconds, CLIENTS, seed=seed)).result()
        return tokens / (time.perf_counter() - began)


def paired(
    url: str, watch: Callable[[str], Any], pairs: int, seconds: float
) -> dict[str, float | list[float]]:
    """Throughput with ``watch`` over without it, pair by pair, in alternating order."""
    ratios = []
    for number in range(pairs):
        order = [watch, unwatched] if number % 2 else [unwatched, watch]
        throughputs = {kind: tokens_per_second(url, kind, seconds, number) for kind in order}
        ratios.append(throughputs[watch] / throughputs[unwatched])
    return {"median": statistics.median(ratios), "ratios": sorted(ratios)}


def measure(pairs: int, seconds: float) -> dict[str, Any]:
    files = known_files()
    result: dict[str, Any] = {
        "bytes": sum(len(file.content) for file in files.values()),
        "bytes_gzip": sum(len(gzip.compress(file.content, 9)) for file in files.values()),
    }
    with running_browser() as browser, serving() as url:

        @contextlib.contextmanager
        def a_page(url: str) -> Iterator[None]:
            with opened(browser, f"{url}/inspect/"):
                yield

        paints = []
        for _ in range(5):
            with opened(browser, f"{url}/inspect/") as page:
                page.wait_for_selector("main .figures")
                paints.append(page.evaluate(PAINT))
        result["first_paint_ms"] = statistics.median(paints)
        load = threading.Thread(target=lambda: asyncio.run(send(url, 30, 64)))
        load.start()
        time.sleep(4)
        result["frames_with_64_clients"] = {}
        for name in ("live", "timeline", "kv"):
            with opened(browser, f"{url}/inspect/#/{name}") as page:
                page.wait_for_selector("canvas")
                result["frames_with_64_clients"][name] = page.evaluate(FRAMES)
        load.join()
        result["throughput_with_a_reader"] = paired(url, a_reader, pairs, seconds)
        result["throughput_with_a_page"] = paired(url, a_page, pairs, seconds)
    return result


def measure_memory(minutes: float) -> dict[str, Any]:
    """The page's heap under 64 clients, every 15 s after a collection of garbage."""
    seconds = 60 * minutes
    with running_browser() as browser, serving() as url:
        load = threading.Thread(target=lambda: asyncio.run(send(url, seconds + 10, 64)))
        load.start()
        time.sleep(4)
        heaps, nodes = [], []
        with opened(browser, f"{url}/inspect/") as page:
            page.wait_for_selector("canvas")
            cdp = page.context.new_cdp_session(page)
            cdp.send("Performance.enable")
            for _ in range(max(2, int(seconds / 15))):
                page.wait_for_timeout(15_000)
                cdp.send("HeapProfiler.collectGarbage")
                heaps.append(cdp.send("Runtime.getHeapUsage")["usedSize"])
                found = cdp.send("Performance.getMetrics")["metrics"]
                nodes.append(next(item["value"] for item in found if item["name"] == "Nodes"))
                print(f"{len(heaps) / 4:g} of {minutes:g} minutes: {heaps[-1] / 1e6:.1f} MB")
        load.join()
    late = heaps[len(heaps) // 2 :]
    return {
        "minutes": minutes,
        "heap_bytes": heaps,
        "dom_nodes": nodes,
        # Of the second half: the rings have filled by then, or grow with each step.
        "bytes_a_minute": _slope(late) * 4 if len(late) > 1 else None,
    }


def _slope(values: list[float]) -> float:
    """Of the line with the least squares through values at 0, 1, 2, ..."""
    places = range(len(values))
    mean, middle = statistics.mean(values), statistics.mean(places)
    rise = sum((x - middle) * (value - mean) for x, value in zip(places, values, strict=True))
    return rise / sum((x - middle) ** 2 for x in places)


def opened_in_browser(path: Path) -> dict[str, float]:
    """Seconds until the page shows a recording, and until it shows another moment."""
    source = Recording(path)
    with page_of(source) as address, running_browser() as browser:
        with opened(browser, f"{address}#/live?at=0") as page:
            page.wait_for_selector(".step h2")
        began = time.perf_counter()
        middle = source.describe().last_step // 2
        with opened(browser, f"{address}#/live?at={middle}") as page:
            page.wait_for_selector(".step h2", timeout=60_000)
            shown = time.perf_counter() - began
            source.wait_until_read(300)
            jumps = []
            for number in range(1, 10):
                step = source.describe().last_step * number // 10
                start = time.perf_counter()
                page.evaluate(f"location.hash = '#/live?at={step}'")
                page.wait_for_function(
                    "step => document.querySelector('footer .num').textContent"
                    ".replace(/\\D/g, '') === String(step)",
                    arg=step,
                    timeout=60_000,
                )
                jumps.append(time.perf_counter() - start)
    return {"page_seconds_to_open": shown, "page_median_jump_seconds": statistics.median(jumps)}


def measure_recording(output_len: str) -> dict[str, float]:
    """Opening a recording of 10,000 requests: until one can look, until all is read.

    Args:
        output_len: Tokens of an answer: the file grows with each.
    """
    from twostroke.cli.main import run

    with TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        load = ["--num-requests", "10000", "--rate", "60", "--record", str(path)]
        lengths = ["--workload", "random", "--input-len", "256", "--output-len", output_len]
        assert run(["simulate", "llama-3.1-8b", "--gpu", "h100", *load, *lengths]) == 0
        full = path.stat().st_size
        began = time.perf_counter()
        recording = Recording(path)
        asyncio.run(recording.state(recording.num_steps // 2))
        opened_after = time.perf_counter() - began
        jumps = []
        for number in range(1, 20):
            at = recording.describe().last_step * number // 20
            start = time.perf_counter()
            asyncio.run(recording.frame(at - 2047, at + 1, None, FrameLimits(4096, 32768, "last")))
            jumps.append(time.perf_counter() - start)
        events = list(islice(read_jsonl(path), 2000, 2300))
        began_cpu = time.process_time()
        for begin in range(0, len(events), 10):
            msgspec.json.encode(encode_steps(events[begin : begin + 10]))
        cpu = time.process_time() - began_cpu
        shares = sum(len(event.scheduled) for event in events)
        recording.wait_until_read(300)
        read_after = time.perf_counter() - began
        recording.close()
        return {
            **opened_in_browser(path),
            "bytes": full,
            "steps": recording.num_steps,
            "seconds_to_open": opened_after,
            "seconds_to_read_all": read_after,
            "median_jump_seconds": statistics.median(jumps),
            # What a frame costs the server for each request in each step, in CPU time.
            "encode_cpu_microseconds_per_share": 1e6 * cpu / shares,
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--output-len", default="104", help="of the recording: 104 makes 200 MB")
    parser.add_argument("--only", choices=("page", "drawing", "recording", "memory"))
    given = parser.parse_args()
    others = OtherPrograms()
    record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "page": lambda: measure(given.pairs, given.seconds),
        "drawing": lambda: page_cost.measure(64, given.seconds, ("live", "timeline", "kv")),
        "recording": lambda: measure_recording(given.output_len),
        "memory": lambda: measure_memory(given.minutes),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            record[name] = part()
    command = " ".join(["python -m benchmarks.inspector.cost", *sys.argv[1:]])
    where = environment(command, others.share())
    if given.only is None:
        record["environment"] = where
    else:
        record[given.only]["environment"] = where
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
