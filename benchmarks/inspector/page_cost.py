"""What the page itself costs: seconds of the browser's main thread, by kind and by function.

    python -m benchmarks.inspector.page_cost [--requests 64] [--seconds 10]

The page plays a simulated recording with so many running requests, so that no engine takes part
in it; the browser tells through its debugging protocol what the page's thread did.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.inspector.browser import opened, running_browser
from tests.inspector.showing import page_of
from twostroke.cli.main import run
from twostroke.inspector.recording import Recording

METRICS = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
FRAMES = """async (milliseconds) => {
  const times = [];
  let before = performance.now();
  const end = before + milliseconds;
  while (before < end) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - before);
    before = now;
  }
  times.sort((a, b) => a - b);
  const quantiles = [0.5, 0.95, 0.99].map((share) => times[Math.floor(share * (times.length - 1))]);
  return [...quantiles, times.length];
}"""


@contextmanager
def playing(requests: int) -> Iterator[str]:
    """The page over a simulation of pilot on a CPU in which so many requests run at once."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        number = str(4 * requests)
        flags = ["--num-requests", number, "--rate", "200", "--max-num-seqs", str(requests)]
        assert run(["simulate", "pilot", "--gpu", "cpu", *flags, "--record", str(path)]) == 0
        source = Recording(path, "simulation")
        source.wait_until_read(300)
        with page_of(source) as address:
            yield address


def cost_of(page: Any, seconds: float) -> dict[str, Any]:
    """Shares of one core by kind, frame times in ms, and the functions that took most."""
    cdp = page.context.new_cdp_session(page)
    # Processor time of the page's thread, not the clock's: other programs do not count.
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    cdp.send("Profiler.enable")
    cdp.send("Profiler.setSamplingInterval", {"interval": 500})

    def metrics() -> dict[str, float]:
        found = cdp.send("Performance.getMetrics")["metrics"]
        return {item["name"]: item["value"] for item in found}

    cdp.send("Profiler.start")
    before, began = metrics(), time.perf_counter()
    *frames, number = page.evaluate(FRAMES, 1000 * seconds)
    passed, after = time.perf_counter() - began, metrics()
    profile = cdp.send("Profiler.stop")["profile"]
    cdp.detach()
    return {
        "frame_ms": dict(zip(("median", "p95", "p99"), frames, strict=True)),
        "frames": number,
        "cpu_ms_per_frame": round(
            1000 * (after["TaskDuration"] - before["TaskDuration"]) / number, 2
        ),
        "share_of_a_core": {
            name.removesuffix("Duration"): round((after[name] - before[name]) / passed, 4)
            for name in METRICS
        },
        "functions": _top(profile),
    }


def _top(profile: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of self time by function, the 14 with most."""
    names = {}
    for node in profile["nodes"]:
        call = node["callFrame"]
        where = call["url"].rsplit("/", 1)[-1]
        names[node["id"]] = f"{call['functionName'] or '-'} {where}:{call['lineNumber'] + 1}"
    took: Counter[str] = Counter()
    for node, delta in zip(profile["samples"], profile["timeDeltas"], strict=True):
        took[names[node]] += delta
    rest = {name: ms for name, ms in took.items() if not name.startswith(("(idle)", "(program)"))}
    return {name: round(ms / 1000, 1) for name, ms in Counter(rest).most_common(14)}


def measure(requests: int, seconds: float, pages: tuple[str, ...]) -> dict[str, Any]:
    costs = {}
    with playing(requests) as address, running_browser() as browser:
        for name in pages:
            with opened(browser, f"{address}#/{name}?at=200") as page:
                page.wait_for_selector("canvas")
                page.keyboard.press("Space")
                page.wait_for_timeout(2000)
                costs[name] = cost_of(page, seconds)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pages", nargs="+", default=["live", "timeline", "request", "kv"])
    given = parser.parse_args()
    costs = measure(given.requests, given.seconds, tuple(given.pages))
    print(json.dumps(costs, indent=1))


if __name__ == "__main__":
    main()
