"""Runs as one page with plots. It needs no network: styles and charts are in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from twostroke.simulator.reports.charts import Series, bar_chart, line_chart
from twostroke.simulator.reports.comparison import COMPARED, notes_of
from twostroke.simulator.reports.fields import WAITS

Fields = Mapping[str, Any]
# Priorities or tenants in a table; the JSON has all.
MAX_GROUPS = 20
# Settings that are a load, and what an axis calls them.
LOADS = {"rate": "requests/s offered", "concurrency": "clients, each with one request under way"}
LATENCY_CHARTS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "End to end"))

STYLE = """
:root { color-scheme: light dark; --bg: #fbfbfa; --fg: #1d2129; --dim: #667085; --line: #e2e4e8; --card: #fff;
  --c0: #2f6fd0; --c1: #c8553d; --c2: #2a8a63; --c3: #8a5bc7; --c4: #b7841f; --c5: #4c93a5; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171c; --fg: #e6e8ec; --dim: #98a1b0; --line: #2b313b;
  --card: #1b1f26; --c0: #6ea3f2; --c1: #ee8a72; --c2: #5fc497; --c3: #b794ec; --c4: #e2b558; --c5: #7fc4d6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 24px; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 10px; }
p { margin: 4px 0; } .dim { color: var(--dim); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 10px; margin-top: 16px; }
.tile, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 19px; white-space: nowrap; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 14px; }
.stack { display: grid; gap: 14px; align-content: start; }
figure { margin: 0; align-self: start; } figcaption { font-weight: 600; margin-bottom: 4px; }
svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; background: var(--card); }
th, td { padding: 5px 12px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--dim); font-weight: 500; white-space: normal; vertical-align: bottom; }
.grid { stroke: var(--line); } .axis { stroke: var(--dim); } .tick { fill: var(--dim); font-size: 11px; }
.label { fill: var(--dim); font-size: 12px; } .value { fill: var(--fg); font-size: 12px; }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; } .point { fill: var(--c); }
.line.dashed { stroke-dasharray: 5 4; }
.band { fill: var(--c); opacity: .15; } .bar { fill: var(--c0); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 13px; color: var(--dim); }
.key::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px;
  background: var(--c); }
.key.dashed::before { width: 15px; height: 3px; vertical-align: middle;
  background: repeating-linear-gradient(90deg, var(--c) 0 4px, transparent 4px 6px); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); }
details { margin: 8px 0; } summary { cursor: pointer; } details > .charts { margin-top: 10px; }
"""


def report_html(runs: Sequence[Fields]) -> str:
    """The page. Runs are those of ``report.run_fields``, in the order in which they are shown."""
    parts = [_heading(runs)]
    if len(runs) == 1:
        parts.append(_tiles(runs[0]))
    else:
        title = "Latency against load" if _load(runs) else "Compared"
        parts += [
            "<h2>Side by side</h2>",
            _comparison(runs),
            f"<h2>{title}</h2>",
            _load_charts(runs),
        ]
    for at, run in enumerate(runs):
        body = (
            f'<div class="charts">{_timeline_charts(run)}</div>{_latency_table(run)}{_setting(run)}'
        )
        if len(runs) == 1:
            parts += ["<h2>Timeline</h2>", body]
        else:
            opened = " open" if at == len(runs) - 1 else ""
            title = escape(run["label"] or "this run")
            parts.append(f"<details{opened}><summary>Timeline: {title}</summary>{body}</details>")
    title = escape(f"{_common(runs, 'model')} on {' and '.join(_devices(runs, 'name'))}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def _devices(runs: Sequence[Fields], key: str) -> list[str]:
    return list(dict.fromkeys(run["hardware"][key] for run in runs))


def _common(runs: Sequence[Fields], name: str) -> str:
    """A setting's value, or that it differs."""
    values = list(dict.fromkeys(str(run["setting"][name]) for run in runs))
    return values[0] if len(values) == 1 else f"{len(values)} values of {name}"


def _heading(runs: Sequence[Fields]) -> str:
    """What was simulated; of several runs, what they have in common."""
    description = f'<p class="dim">{escape(runs[0]["description"])}.</p>' if len(runs) == 1 else ""
    replicas, ranks = _common(runs, "replicas"), _common(runs, "tp")
    devices = f"{replicas} x " if replicas != "1" else ""
    devices += f"{ranks} x {', '.join(_devices(runs, 'title'))}"
    rates = {run["setting"]["rate"] for run in runs}
    rate = f" at {rates.pop():g} requests/s" if len(rates) == 1 and None not in rates else ""
    targets = ", ".join(
        f"{name.upper()} {limit:g} s" for name, limit in runs[-1]["targets"].items()
    )
    sources = {
        run["hardware"]["name"]: str(run["deployment"].get("times_from", "")) for run in runs
    }
    lines = [
        f"Times on {escape(name)}: {escape(source)}." for name, source in sources.items() if source
    ]
    if targets:
        lines.append(f"A good request stays within {escape(targets)}.")
    if any(run["interval"] for run in runs):
        lines.append(
            "Bands and ranges: each end of the cost model's interval taken for the truth in every"
            " step."
        )
    lines += [f"Note: {escape(note)}." for note in notes_of(runs)]
    details = "".join(f'<p class="dim">{line}</p>' for line in lines)
    if any(run["interrupted"] for run in runs):
        details += "<p><b>Interrupted: this is what there was so far.</b></p>"
    return (
        f"<h1>{escape(_common(runs, 'model'))} on {escape(devices)}</h1>"
        f'<p class="dim">Workload {escape(_common(runs, "workload"))}{rate}, seed'
        f" {escape(_common(runs, 'seed'))}; "
        f"simulated with the engine's own scheduler, {escape(_common(runs, 'batching'))} batching,"
        " policy "
        f"{escape(_common(runs, 'policy'))}.</p>{description}{details}"
    )


def _tiles(run: Fields) -> str:
    binding = _shares(run["binding"])
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
        cells = [f"<td>{escape(run['label'] or 'this run')}</td>"]
        for key, _, digits in shown:
            value = run.get(key)
            cells.append(f"<td>{'-' if value is None else f'{value:.{digits}f}'}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    titles = "".join(f"<th>{escape(title)}</th>" for _, title, _ in shown)
    return f'<div class="scroll"><table><tr><th>run</th>{titles}</tr>{"".join(rows)}</table></div>'


def _groups(runs: Sequence[Fields], load: str) -> dict[str, list[Fields]]:
    """Runs that differ in their load only, by what else their labels say."""
    groups: dict[str, list[Fields]] = {}
    for run in runs:
        others = re.sub(rf"(^|(?<=[ ,])){load}=[^,]*", "", run["label"])
        groups.setdefault(others.replace(", ,", ",").strip(" ,:"), []).append(run)
    return groups


def _load(runs: Sequence[Fields]) -> str | None:
    """The setting that is a load and differs within every group of runs."""
    for load in LOADS:
        values = [[run["setting"][load] for run in group] for group in _groups(runs, load).values()]
        counts = load == "rate" or all(run["setting"]["arrivals"] == "closed" for run in runs)
        if counts and all(None not in each and len(set(each)) > 1 for each in values):
            return load
    return None


def _load_charts(runs: Sequence[Fields]) -> str:
    """Lines over the load where it varies, else bars."""
    load = _load(runs)
    if load is None:
        charts = [
            bar_chart(title, unit, [(run["label"] or "this run", run[key]) for run in runs])
            for key, title, unit in (
                ("p99_ttft_ms", "TTFT, 99th percentile", "ms"),
                ("p99_tpot_ms", "TPOT, 99th percentile", "ms"),
                ("output_throughput", "Output tokens per second", "tok/s"),
                ("dollars_per_million_tokens", "Cost of a million tokens", "$"),
            )
        ]
        return f'<div class="charts">{"".join(charts)}</div>'

    def both(solid: tuple[str, str], dashed: tuple[str, str]) -> list[Series]:
        """A solid and a dashed line in one colour for each group, from (name, key)."""
        return [
            _load_line(group, load, f"{name} {title}".strip(), key, colour, dashes)
            for colour, (name, group) in enumerate(_groups(runs, load).items())
            for dashes, (title, key) in enumerate((solid, dashed))
            if all(run[key] is not None for run in group)
        ]

    charts = [
        line_chart(
            f"{title} against load",
            LOADS[load],
            "ms",
            both(("median", f"median_{key}_ms"), ("p99", f"p99_{key}_ms")),
            points=True,
        )
        for key, title in LATENCY_CHARTS
    ]
    done = both(("completed", "request_throughput"), ("good", "request_goodput"))
    charts.append(line_chart("Requests per second", LOADS[load], "requests/s", done, points=True))
    return f'<div class="charts">{"".join(charts)}</div>'


def _load_line(
    group: Sequence[Fields], load: str, name: str, key: str, colour: int, dashes: int
) -> Series:
    ordered = sorted(group, key=lambda run: run["setting"][load])
    loads = [run["setting"][load] for run in ordered]
    with_ends = all(run["interval"] for run in ordered)
    low = [run["interval"]["low"][key] for run in ordered] if with_ends else []
    high = [run["interval"]["high"][key] for run in ordered] if with_ends else []
    return Series(name, loads, [run[key] for run in ordered], low, high, colour, bool(dashes))


def _timeline_charts(run: Fields) -> str:
    line = run["timeline"]
    time = line["time"]
    waiting = [Series("running", time, line["running"]), Series("waiting", time, line["waiting"])]
    kv = [Series("held", time, [100 * share for share in line["kv"]])]
    rate = [Series("tokens", time, line["tokens_per_second"])]
    bars = bar_chart("What steps wait for", "%", _shares(run["binding"]))
    if run["waiting_for"]:
        waits = [(WAITS[name], of) for name, of in _shares(run["waiting_for"])]
        bars += bar_chart("What requests wait for", "%", waits)
    charts = [
        line_chart("Requests", "seconds", "requests", waiting, step=True),
        (
            line_chart("KV cache held by requests", "seconds", "% of blocks", kv, step=True)
            if _caches(run)
            else ""
        ),
        line_chart("Tokens computed (prompt and output)", "seconds", "tokens/s", rate),
        f'<div class="stack">{bars}</div>',
    ]
    return "".join(charts)


def _caches(run: Fields) -> bool:
    """Whether the model keeps anything by the token; earlier reports may not say."""
    return bool(run["deployment"].get("kv_bytes_per_device", 1))


def _shares(binding: Mapping[str, float]) -> list[tuple[str, float | None]]:
    """Percentages, the largest first."""
    ordered = sorted(binding.items(), key=lambda item: (-item[1], item[0]))
    return [(name, 100 * share) for name, share in ordered if share > 0]


def _latency_table(run: Fields) -> str:
    columns, ends = ("mean", "median", "p90", "p95", "p99"), run["interval"]
    rows = []
    for key, name in (*LATENCY_CHARTS[:2], ("itl", "ITL"), LATENCY_CHARTS[2], ("queue", "Queue")):
        cells = "".join(f"<td>{run[f'{column}_{key}_ms']:.2f}</td>" for column in columns)
        if ends:
            low, high = (ends[bound][f"median_{key}_ms"] for bound in ("low", "high"))
            cells += f"<td>{low:.2f} to {high:.2f}</td>"
        rows.append(f"<tr><td>{name}</td>{cells}</tr>")
    for kind in ("priority", "tenant"):
        for group, values in list(run.get(f"by_{kind}", {}).items())[:MAX_GROUPS]:
            cells = "".join(f"<td>{values[f'{column}_ttft_ms']:.2f}</td>" for column in columns)
            rows.append(
                f"<tr><td>TTFT, {kind}"
                f" {escape(group)}</td>{cells}{'<td></td>' if ends else ''}</tr>"
            )
    head = "".join(
        f"<th>{column}</th>" for column in (*columns, *(["median, range"] if ends else []))
    )
    return (
        "<h2>Latencies</h2><div"
        f' class="scroll"><table><tr><th>ms</th>{head}</tr>{"".join(rows)}</table></div>'
    )


def _setting(run: Fields) -> str:
    values = {**run["setting"], **run["deployment"]}
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in values.items()
    )
    return f"<details><summary>All settings</summary><table>{rows}</table></details>"
