"""Runs as one web page with charts. It needs no network: styles, scripts and data are in it."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from typing import Any

from twostroke.simulator.reports.charts import (
    PALETTE,
    Line,
    PageCharts,
    TimelineLine,
    bar_chart,
)
from twostroke.simulator.reports.comparison import COMPARED, notes_of
from twostroke.simulator.reports.fields import WAITS
from twostroke.simulator.reports.page import read_scripts, read_styles

Fields = Mapping[str, Any]
# Priorities or tenants in a table; the JSON has all.
MAX_GROUPS = 20
# Values of a setting that the heading names.
MAX_NAMED = 3
# Runs whose timelines share a chart.
MAX_OVERLAID = len(PALETTE)
# Settings that are a load, and what an axis calls them.
LOADS = {"rate": "requests/s offered", "concurrency": "clients, each with one request under way"}
# Key of a latency, its title, and the colour of its lines where nothing else needs the colours.
LATENCY_CHARTS = (
    ("ttft", "TTFT", "prefill"),
    ("tpot", "TPOT", "decode"),
    ("e2el", "End to end", "ink"),
)
LATENCY_ROWS = (
    ("ttft", "TTFT"),
    ("tpot", "TPOT"),
    ("itl", "ITL"),
    ("e2el", "End to end"),
    ("queue", "Queue"),
)


def report_html(runs: Sequence[Fields]) -> str:
    """The page. Runs are those of ``fields.run_fields``, in the order in which they are shown."""
    charts = PageCharts()
    timelines = [_add_timeline(charts, run) for run in runs]
    parts = [_heading(runs)]
    if len(runs) == 1:
        parts += [_tiles(runs[0]), "<h2>Timeline</h2>", _run_section(charts, runs[0], timelines[0])]
    else:
        title = "Latency against load" if _load(runs) else "Compared"
        parts += [
            f"<h2>Side by side</h2>{_comparison(runs)}",
            f"<h2>{title}</h2>{_load_charts(charts, runs)}",
        ]
        if len(runs) <= MAX_OVERLAID:
            parts.append(f"<h2>Timelines</h2>{_overlaid_timelines(charts, runs, timelines)}")
        for number, (run, timeline) in enumerate(zip(runs, timelines)):
            is_open = " open" if number == len(runs) - 1 else ""
            parts.append(
                f"<details{is_open}><summary>Timeline: {escape(_label(run))}</summary>"
                f"{_run_section(charts, run, timeline)}</details>"
            )
    title = f"{_common(runs, 'model')} on {' and '.join(_devices(runs, 'name'))}"
    return _document(title, "".join(parts), charts)


def _document(title: str, body: str, charts: PageCharts) -> str:
    """The whole file. Its policy allows this very style sheet and these scripts, nothing else."""
    styles, scripts = read_styles(), read_scripts()
    policy = (
        f"default-src 'none'; style-src {_source_hash(styles)}; "
        f"script-src {' '.join(map(_source_hash, scripts))}; base-uri 'none'; form-action 'none'"
    )
    code = "".join(f"<script>{script}</script>\n" for script in scripts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{styles}</style></head>\n<body>{body}\n"
        "<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>\n"
        f'<script type="application/json" id="chart-data">{charts.script()}</script>\n'
        f"{code}</body></html>\n"
    )


def _source_hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _label(run: Fields) -> str:
    return str(run["label"] or "this run")


def _devices(runs: Sequence[Fields], key: str) -> list[str]:
    return list(dict.fromkeys(run["hardware"][key] for run in runs))


def _common(runs: Sequence[Fields], name: str) -> str:
    """A setting's value in all runs: a few values by name, more of them as a count."""
    values = list(dict.fromkeys(str(run["setting"][name]) for run in runs))
    return " and ".join(values) if len(values) <= MAX_NAMED else f"{len(values)} values of {name}"


# ---- above the charts ----------------------------------------------------------------------------


def _heading(runs: Sequence[Fields]) -> str:
    """What was simulated; of several runs, what they have in common."""
    replicas, ranks = _common(runs, "replicas"), _common(runs, "tp")
    devices = f"{replicas} x " if replicas != "1" else ""
    devices += f"{ranks} x {', '.join(_devices(runs, 'title'))}"
    rates = {run["setting"]["rate"] for run in runs}
    rate = f" at {rates.pop():g} requests/s" if len(rates) == 1 and None not in rates else ""
    lines = [
        f"Workload {_common(runs, 'workload')}{rate}, seed {_common(runs, 'seed')}; simulated with"
        f" the engine's own scheduler, {_common(runs, 'batching')} batching, policy"
        f" {_common(runs, 'policy')}."
    ]
    if len(runs) == 1:
        lines.append(f"{runs[0]['description']}.")
    lines += _explanations(runs)
    lines += [f"Note: {note}." for note in notes_of(runs)]
    paragraphs = "".join(f'<p class="muted">{escape(line)}</p>' for line in lines)
    if any(run["interrupted"] for run in runs):
        paragraphs += "<p><b>Interrupted: only the requests that finished are counted.</b></p>"
    return f"<h1>{escape(_common(runs, 'model'))} on {escape(devices)}</h1>{paragraphs}"


def _explanations(runs: Sequence[Fields]) -> list[str]:
    """Where times come from, what a good request is, what bands are."""
    sources = {
        run["hardware"]["name"]: str(run["deployment"].get("times_from", "")) for run in runs
    }
    lines = [f"Times on {name}: {source}." for name, source in sources.items() if source]
    targets = runs[-1]["targets"].items()
    if targets:
        limits = ", ".join(f"{name.upper()} {limit:g} s" for name, limit in targets)
        lines.append(f"A good request stays within {limits}.")
    if any(run["interval"] for run in runs):
        lines.append(
            "Bands and ranges: each end of the cost model's interval taken for the truth in every"
            " step."
        )
    return lines


def _tiles(run: Fields) -> str:
    binding = _percentages(run["binding"])
    tiles = [
        ("TTFT median / p99", f"{run['median_ttft_ms']:.0f} / {run['p99_ttft_ms']:.0f} ms"),
        ("TPOT median / p99", f"{run['median_tpot_ms']:.1f} / {run['p99_tpot_ms']:.1f} ms"),
        ("Requests per second", f"{run['request_throughput']:.2f}"),
        ("Output tokens per second", f"{run['output_throughput']:.0f}"),
        ("MFU / MBU", f"{run['mfu']:.0%} / {run['mbu']:.0%}"),
        ("KV cache mean / peak", f"{run['kv_mean']:.0%} / {run['kv_peak']:.0%}"),
        ("Prefix cache hits", f"{run['prefix_hit_rate']:.0%}"),
        ("Steps wait for", f"{binding[0][0]} {binding[0][1]:.0f}%" if binding else "-"),
        ("Per million tokens", f"${run['dollars_per_million_tokens']:.3f}"),
    ]
    if not _caches(run):
        tiles = [tile for tile in tiles if not tile[0].startswith("KV cache")]
    if run["request_goodput"] is not None:
        tiles.insert(2, ("Goodput", f"{run['request_goodput']:.2f} req/s"))
    cells = (
        f'<div class="tile"><span>{name}</span><b>{escape(value)}</b></div>'
        for name, value in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _comparison(runs: Sequence[Fields]) -> str:
    shown = [item for item in COMPARED if any(run.get(item[0]) is not None for run in runs)]
    rows = []
    for run in runs:
        values = [(run.get(key), digits) for key, _, digits in shown]
        cells = ["-" if value is None else f"{value:.{digits}f}" for value, digits in values]
        rows.append([_label(run), *cells])
    return _table(["run", *(title for _, title, _ in shown)], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls sideways; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in header)
    lines = []
    for name, *cells in rows:
        values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{values}</tr>')
    class_ = f' class="{kind}"' if kind else ""
    thead = f"<thead><tr>{head}</tr></thead>" if header else ""
    body = "".join(lines)
    return f'<div class="scroll"><table{class_}>{thead}<tbody>{body}</tbody></table></div>'


# ---- against load --------------------------------------------------------------------------------


def _groups(runs: Sequence[Fields], load: str) -> dict[str, list[Fields]]:
    """Runs that differ in their load only, by what else their labels say."""
    groups: dict[str, list[Fields]] = {}
    for run in runs:
        rest = re.sub(rf"(^|(?<=[ ,])){load}=[^,]*", "", run["label"])
        groups.setdefault(rest.replace(", ,", ",").strip(" ,:"), []).append(run)
    return groups


def _load(runs: Sequence[Fields]) -> str | None:
    """The setting that is a load and differs within every group of runs."""
    for load in LOADS:
        groups = _groups(runs, load).values()
        loads = [[run["setting"][load] for run in group] for group in groups]
        is_load = load == "rate" or all(run["setting"]["arrivals"] == "closed" for run in runs)
        if is_load and all(None not in values and len(set(values)) > 1 for values in loads):
            return load
    return None


def _load_charts(charts: PageCharts, runs: Sequence[Fields]) -> str:
    """Lines over the load where it varies, else bars."""
    load = _load(runs)
    if load is None:
        figures = [
            bar_chart(title, unit, [(_label(run), run[key]) for run in runs])
            for key, title, unit in (
                ("p99_ttft_ms", "TTFT, 99th percentile", "ms"),
                ("p99_tpot_ms", "TPOT, 99th percentile", "ms"),
                ("output_throughput", "Output tokens per second", "tok/s"),
                ("dollars_per_million_tokens", "Cost of a million tokens", "$"),
            )
        ]
    else:
        figures = [
            charts.over_load(
                f"{title} against load",
                LOADS[load],
                "ms",
                _load_lines(
                    runs, load, colour, ("median", f"median_{key}_ms"), ("p99", f"p99_{key}_ms")
                ),
            )
            for key, title, colour in LATENCY_CHARTS
        ]
        done = _load_lines(
            runs, load, "ink", ("completed", "request_throughput"), ("good", "request_goodput")
        )
        figures.append(charts.over_load("Requests per second", LOADS[load], "requests/s", done))
    return f'<div class="charts">{"".join(figures)}</div>'


def _load_lines(
    runs: Sequence[Fields], load: str, colour: str, solid: tuple[str, str], dashed: tuple[str, str]
) -> list[Line]:
    """A solid and a dashed line for each group, in the group's colour, from (name, key)."""
    groups = _groups(runs, load)
    lines = []
    for number, (name, group) in enumerate(groups.items()):
        group_colour = colour if len(groups) == 1 else PALETTE[number % len(PALETTE)]
        ordered = sorted(group, key=lambda run: run["setting"][load])
        with_interval = all(run["interval"] for run in ordered)
        for title, key in (solid, dashed):
            if any(run[key] is None for run in ordered):
                continue
            low, high = (
                [run["interval"][end][key] for run in ordered] if with_interval else []
                for end in ("low", "high")
            )
            lines.append(
                Line(
                    name=f"{name} {title}".strip(),
                    x=[run["setting"][load] for run in ordered],
                    y=[run[key] for run in ordered],
                    low=low,
                    high=high,
                    colour=group_colour,
                    dashed=(title, key) == dashed,
                )
            )
    return lines


# ---- over time -----------------------------------------------------------------------------------


def _add_timeline(charts: PageCharts, run: Fields) -> int:
    timeline = run["timeline"]
    columns = {name: timeline[name] for name in ("time", "running", "waiting", "tokens_per_second")}
    return charts.add_timeline({**columns, "kv": [100 * share for share in timeline["kv"]]})


def _run_section(charts: PageCharts, run: Fields, timeline: int) -> str:
    """All of one run but its heading."""
    figures = "".join(_timeline_charts(charts, run, timeline))
    return f'<div class="charts">{figures}</div>{_latency_table(run)}{_setting(run)}'


def _timeline_charts(charts: PageCharts, run: Fields, timeline: int) -> list[str]:
    def line(name: str, column: str, colour: str) -> TimelineLine:
        return TimelineLine(name=name, timeline=timeline, column=column, colour=colour)

    group = f"run-{timeline}"
    requests = [line("running", "running", "decode"), line("waiting", "waiting", "waiting")]
    tokens = [line("tokens", "tokens_per_second", "ink")]
    figures = [charts.over_time("Requests", "requests", requests, step=True, group=group)]
    if _caches(run):
        kv = [line("in use", "kv", "ink")]
        title = "KV cache in use by requests"
        figures.append(charts.over_time(title, "% of blocks", kv, step=True, group=group))
    title = "Tokens computed (prompt and output)"
    figures.append(charts.over_time(title, "tokens/s", tokens, group=group))
    bars = bar_chart("What steps wait for", "%", _percentages(run["binding"]))
    if run["waiting_for"]:
        waits = [(WAITS[name], percent) for name, percent in _percentages(run["waiting_for"])]
        bars += bar_chart("What requests wait for", "%", waits)
    return [*figures, f'<div class="stack">{bars}</div>']


def _overlaid_timelines(
    charts: PageCharts, runs: Sequence[Fields], timelines: Sequence[int]
) -> str:
    """One chart for each column of the timelines, with a line for each run."""
    figures = []
    for title, column, unit, step in (
        ("Running requests", "running", "requests", True),
        ("Waiting requests", "waiting", "requests", True),
        ("KV cache in use by requests", "kv", "% of blocks", True),
        ("Tokens computed (prompt and output)", "tokens_per_second", "tokens/s", False),
    ):
        lines = [
            TimelineLine(name=_label(run), timeline=timeline, column=column, colour=colour)
            for run, timeline, colour in zip(runs, timelines, PALETTE)
            if column != "kv" or _caches(run)
        ]
        figures.append(charts.over_time(title, unit, lines, step=step, group="all-runs"))
    return f'<div class="charts">{"".join(figures)}</div>'


# ---- tables of one run ---------------------------------------------------------------------------


def _caches(run: Fields) -> bool:
    """Whether the model keeps anything by the token; earlier reports may not say."""
    return bool(run["deployment"].get("kv_bytes_per_device", 1))


def _percentages(shares: Mapping[str, float]) -> list[tuple[str, float | None]]:
    """Percentages, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return [(name, 100 * share) for name, share in ordered if share > 0]


def _latency_table(run: Fields) -> str:
    columns, interval = ("mean", "median", "p90", "p95", "p99"), run["interval"]
    rows = []
    for key, name in LATENCY_ROWS:
        cells = [f"{run[f'{column}_{key}_ms']:.2f}" for column in columns]
        if interval:
            low, high = (interval[end][f"median_{key}_ms"] for end in ("low", "high"))
            cells.append(f"{low:.2f} to {high:.2f}")
        rows.append([name, *cells])
    for kind in ("priority", "tenant"):
        for group, values in list(run.get(f"by_{kind}", {}).items())[:MAX_GROUPS]:
            cells = [f"{values[f'{column}_ttft_ms']:.2f}" for column in columns]
            rows.append([f"TTFT, {kind} {group}", *cells, *([""] if interval else [])])
    header = ["ms", *columns, *(["median, range"] if interval else [])]
    return f"<h2>Latencies</h2>{_table(header, rows)}"


def _setting(run: Fields) -> str:
    values = {**run["setting"], **run["deployment"]}
    rows = [[name, str(value)] for name, value in values.items()]
    return f"<details><summary>All settings</summary>{_table([], rows, 'settings')}</details>"
