"""Pictures of the Grafana dashboards, drawn from what a real Prometheus scraped from a live server.

    python -m benchmarks.monitoring.pictures        (apt-get install prometheus)

The panels are those of ``deploy/grafana/*.json``: their titles, places, expressions, legends and
units. matplotlib draws them, not Grafana. The load has three parts: a few clients, then many more
than places (the queue grows, the target of TTFT is missed), then a few again.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cyclopts
import httpx
import matplotlib
import yaml  # type: ignore[import-untyped]

from benchmarks.environment import ROOT, environment, environment_text, write_record
from benchmarks.monitoring import narrow
from benchmarks.server import free_port, running_server
from twostroke.gateway.keys import key_line

matplotlib.use("agg")
from matplotlib import pyplot, ticker
from matplotlib.axes import Axes

DEPLOY = ROOT / "deploy"
PICTURES = ROOT / "docs" / "reference" / "pictures"
RESULTS = Path(__file__).parent / "results"
KEYS = {"ops": "sk-ops", "chat": "sk-chat", "batch": "sk-batch"}
SCRAPE_SECONDS = 1
WINDOW = "10s"  # stands for Grafana's $__rate_interval, which is four scrapes or more
PANEL_INCHES = (7.0, 2.9)
COLUMNS = 24  # of Grafana's grid
UNITS = {"s": "seconds", "percentunit": "%", "ops": "per second"}
WARM_UP_SECONDS = 10.0


class Phase(NamedTuple):
    """Clients of each key for so many seconds."""

    seconds: float
    clients: dict[str, int]


def main(*, model: str = "pilot", scale: float = 0.7, out: Path = PICTURES) -> None:
    """Load a server, and draw the dashboards.

    Args:
        model: What it serves.
        scale: Of the length of all phases; 0.7 takes two minutes.
        out: Folder for the pictures.
    """
    phases = [
        Phase(60 * scale, {"chat": 3, "batch": 1}),
        Phase(45 * scale, {"chat": 6, "batch": 40}),
        Phase(75 * scale, {"chat": 3, "batch": 1}),
    ]
    with tempfile.TemporaryDirectory(prefix="twostroke-pictures-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "keys").write_text(
            "\n".join(key_line(n, key, admin=n == "ops") for n, key in KEYS.items())
        )
        flags = ["--max-num-seqs", "8", "--api-key-file", str(folder / "keys")]
        flags += ["--target-file", str(DEPLOY / "prometheus" / "targets.txt")]
        flags += ["--target", "ttft=p95:0.5,key=*", "--target", "tpot=p50:0.05,key=*"]
        server = stack.enter_context(running_server(model, folder / "server.log", *flags))
        prometheus = stack.enter_context(running_prometheus(server.url, folder))
        time.sleep(WARM_UP_SECONDS)
        began = time.time()
        for phase in phases:
            send(server.url, phase)
        ended = time.time()
        out.mkdir(parents=True, exist_ok=True)
        counts = {}
        for dashboard in sorted((DEPLOY / "grafana").glob("*.json")):
            content = json.loads(dashboard.read_text())
            counts[dashboard.stem] = draw(
                content, prometheus, began, ended, out / f"dashboard-{dashboard.stem}.png"
            )
    where = environment("python -m benchmarks.monitoring.pictures", None)
    lines = [f"- {name}: {n} series in {p} panels" for name, (p, n) in counts.items()]
    text = narrow(f"{environment_text(where)}\n" + "\n".join(lines))
    print(text)
    write_record(
        RESULTS / "pictures", "Pictures of the dashboards", text, {**where, "series": counts}
    )


@contextmanager
def running_prometheus(url: str, folder: Path) -> Iterator[str]:
    """The query API of a Prometheus with ``deploy/prometheus/prometheus.yml`` that scrapes it."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["rule_files"] = [str(DEPLOY / "prometheus" / file) for file in config["rule_files"]]
    config["global"] = dict.fromkeys(config["global"], f"{SCRAPE_SECONDS}s")
    job = config["scrape_configs"][0]
    job["static_configs"][0]["targets"] = [url.removeprefix("http://")]
    job["authorization"] = {"credentials": KEYS["ops"]}
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={file}", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--storage.tsdb.path={folder / 'data'}"], stdout=log, stderr=log
        )
        try:
            yield f"http://{address}/api/v1"
        finally:
            process.terminate()
            process.wait(30)


def send(url: str, phase: Phase) -> None:
    """Clients that send one request after another, until the phase is over."""
    until = time.monotonic() + phase.seconds
    threads = [
        threading.Thread(target=one_client, args=(url, key, number, until))
        for key, clients in phase.clients.items()
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_client(url: str, key: str, number: int, until: float) -> None:
    """A chat with a long prompt in common, or a batch's short prompts."""
    common = "You are a patient teacher of computer science. " * (8 if key == "chat" else 1)
    with httpx.Client(
        headers={"authorization": f"Bearer {KEYS[key]}"}, timeout=120, trust_env=False
    ) as client:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            question = f"Question {number}.{turn}: why is decode slower than prefill?"
            body: dict[str, Any] = {"max_tokens": 20 + 17 * (turn + number) % 60, "stream": True}
            body |= {"prompt": common + question, "ignore_eos": True}
            answer = client.post(url + "/v1/completions", json=body)
            answer.raise_for_status()


def draw(
    dashboard: dict[str, Any], prometheus: str, began: float, ended: float, file: Path
) -> tuple[int, int]:
    """Draw a dashboard; returns how many panels and series it has.

    Raises:
        SystemExit: An expression gave no data.
    """
    panels = dashboard["panels"]
    places = [panel["gridPos"] for panel in panels]
    columns = COLUMNS // min(place["w"] for place in places)
    rows = len({place["y"] for place in places})
    order = sorted({place["y"] for place in places})
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    with pyplot.style.context("dark_background"):
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
        figure.suptitle(dashboard["title"], x=0.02, ha="left", weight="bold")
        total = 0
        for panel, place in zip(panels, places):
            axis = axes[order.index(place["y"])][place["x"] * columns // COLUMNS]
            total += draw_panel(axis, panel, prometheus, began, ended)
        for axis in axes.flat:
            axis.set_visible(bool(axis.get_title(loc="left")))
        figure.tight_layout(rect=(0, 0, 1, 0.985))
        figure.savefig(file, dpi=70)
        pyplot.close(figure)
    return len(panels), total


def draw_panel(
    axis: Axes, panel: dict[str, Any], prometheus: str, began: float, ended: float
) -> int:
    """Draw one panel; returns how many series it has."""
    unit = panel["fieldConfig"]["defaults"].get("unit", "none")
    found: list[tuple[str, list[float], list[float], dict[str, str]]] = []
    for target in panel["targets"]:
        series = ask(prometheus, target["expr"], began, ended)
        if not series:
            raise SystemExit(f"error: no data for {target['expr']}")
        for one in series:
            times = [(float(at) - began) / 60 for at, _ in one["values"]]
            values = [float(value) for _, value in one["values"]]
            label = legend(target["legendFormat"], one["metric"])
            found.append((label, times, values, one["metric"]))
    axis.set_title(panel["title"], loc="left", fontsize=10)
    axis.tick_params(labelsize=7)
    axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g min"))
    axis.grid(alpha=0.2)
    if panel["type"] == "heatmap":
        draw_heatmap(axis, [(metric["le"], times, values) for _, times, values, metric in found])
        return len(found)
    colours = pyplot.get_cmap("tab20")
    for number, (label, times, values, _) in enumerate(sorted(found, key=lambda one: one[0])):
        axis.plot(times, values, label=label, linewidth=1, color=colours(number % 20))
    axis.set_ylim(bottom=0)
    axis.set_ylabel(UNITS.get(unit, ""), fontsize=7)
    if unit == "percentunit":
        axis.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
        axis.set_ylabel("")
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return len(found)


def draw_heatmap(axis: Axes, buckets: Sequence[tuple[str, list[float], list[float]]]) -> None:
    """Observations by bucket, of cumulative counts."""
    ordered = sorted(buckets, key=lambda one: float(one[0].replace("+Inf", "inf")))
    times = sorted({time for _, at, _ in ordered for time in at})
    rows: list[list[float]] = []
    below = [0.0] * len(times)
    for _, at, values in ordered:
        by_time = dict(zip(at, values))
        counts = [by_time.get(time, 0.0) for time in times]
        rows.append([max(0.0, up_to - less) for up_to, less in zip(counts, below)])
        below = counts
    used = [i for i, row in enumerate(rows) if any(row)]
    first, last = min(used), max(used)
    axis.pcolormesh(times, range(first, last + 1), rows[first : last + 1], cmap="inferno")
    axis.set_yticks(range(first, last + 1))
    axis.set_yticklabels([f"≤ {le}" for le, _, _ in ordered[first : last + 1]])
    axis.grid(False)


def ask(prometheus: str, expression: str, began: float, ended: float) -> list[dict[str, Any]]:
    """Series of an expression, without points that are no numbers."""
    for name, value in (("$__rate_interval", WINDOW), ("$model_name", ".*"), ("$tenant", ".*")):
        expression = expression.replace(name, value)
    query = {"query": expression, "start": began, "end": ended, "step": SCRAPE_SECONDS}
    answer = httpx.post(prometheus + "/query_range", data=query, timeout=60, trust_env=False).json()
    if answer["status"] != "success":
        raise SystemExit(f"error: {expression}: {answer}")
    series: list[dict[str, Any]] = answer["data"]["result"]
    for one in series:
        one["values"] = [pair for pair in one["values"] if math.isfinite(float(pair[1]))]
    return [one for one in series if one["values"]]


def legend(form: str, metric: dict[str, str]) -> str:
    """``{{name}}`` stands for a label's value."""
    for name, value in metric.items():
        form = form.replace(f"{{{{{name}}}}}", value)
    return form


if __name__ == "__main__":
    cyclopts.run(main)
