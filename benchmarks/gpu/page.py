"""Writes the page of what was measured on GPUs, from the newest record of each kind.

python -m benchmarks.gpu.page
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import cyclopts

RESULTS = Path(__file__).parent / "results"
Record = dict[str, Any]


def newest(name: str) -> Record | None:
    files = sorted(RESULTS.glob(f"{name}-cuda-*.json"))
    return json.loads(files[-1].read_text()) if files else None


def table(heads: list[str], rows: list[list[Any]]) -> list[str]:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3g}" if value < 1e3 else f"{value:,.0f}"
        return f"{value}"

    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return [*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows), ""]


def where(record: Record) -> str:
    made = [f"{record['device']}, torch {record['torch']}, Python {record['python']}"]
    made += [f"{record['date'][:10]}, commit {str(record['commit'])[:8]}"]
    return wrapped("; ".join([*made, *([record["note"]] if "note" in record else [])]) + ".")


def wrapped(text: str) -> str:
    return textwrap.fill(text, 99) + "\n"


def speed(record: Record) -> list[str]:
    result = record["rows"][0]
    waiting, others, eager = (
        {row["batch"]: row["step_ms"] for row in result.get(name, [])}
        for name in ("decode_waiting", "transformers", "decode_eager")
    )
    lines = ["## An 8B model in bfloat16", "", where(record)]
    lines += [
        wrapped(
            f"A copy moves {result['bandwidth'] / 1e12:.2f} TB/s, a product of 8,192 squared runs"
            f" at {result['peak'] / 1e12:.0f} TFLOP/s: shares are of these. Prompts of 256 tokens;"
            " a step is the engine's own, with schedule, draw and outputs; the pass is the recorded"
            " graph alone, without the head. Milliseconds of a step whose kernels are launched one"
            " by one, by a graph, and by graphs that run ahead (and the host's share of it); of the"
            " pass (and its share of the bandwidth); and of a step of transformers."
        )
    ]
    rows = [
        [
            row["batch"],
            eager.get(row["batch"], ""),
            waiting.get(row["batch"], ""),
            row["step_ms"],
            f"{row['host_share']:.1%}",
            row["pass_ms"],
            f"{1 / row['pass_over_floor']:.0%}",
            others.get(row["batch"], ""),
        ]
        for row in result.get("decode", [])
    ]
    heads = ["requests", "eager", "graphs", "ahead", "host"]
    lines += table([*heads, "pass", "bandwidth", "transformers"], rows)
    heads = ["prompt", "ms", "tokens/s", "of the peak"]
    rows = [
        [row["tokens"], row["ms"], round(row["tokens_per_second"]), f"{row['share_of_peak']:.0%}"]
        for row in result.get("prefill", [])
    ]
    return [*lines, *table(heads, rows), *misses(result)]


def misses(result: Record) -> list[str]:
    """What is short of what was asked, and the kernels on which it hangs."""
    decode = {row["batch"]: row for row in result.get("decode", [])}
    prefill = {row["tokens"]: row["share_of_peak"] for row in result.get("prefill", [])}
    short = list[str]()
    if (one := decode.get(1)) and (share := 1 / one["pass_over_floor"]) < 0.9:
        kernels = longest(result, "kernels_1")
        short.append(f"decode of 1: {share:.0%} of the bandwidth, asked are 90%: {kernels}")
    if (many := decode.get(256)) and (share := many["host_share"]) > 0.03:
        kernels = longest(result, "kernels_256")
        short.append(f"decode of 256: {share:.1%} are the host's, asked are 3%: {kernels}")
    if (share := prefill.get(8192, 1)) < 0.75:
        kernels = longest(result, "kernels_prefill")
        short.append(f"prompt of 8,192: {share:.0%} of the peak, asked are 75%: {kernels}")
    if not short:
        return []
    items = [textwrap.fill(f"- {item}", 99, subsequent_indent="  ") for item in short]
    return ["What to look at next, and the longest kernels there:", "", *items, ""]


def longest(result: Record, name: str) -> str:
    kernels = [row for row in result.get(name, []) if row["ms"] > 0][:3]
    names = [row["kernel"].removeprefix("void ").split("<")[0][:40] for row in kernels]
    return ", ".join(f"`{own}` {row['ms']:.3g} ms" for own, row in zip(names, kernels))


def kernels(record: Record) -> list[str]:
    result = record["rows"][0]
    lines = ["## Where a pass over one request spends its time", ""]
    rows = [
        [f"`{row['kernel'][:50]}`", row["calls"], row["us_each"], row["ms"]]
        for row in result.get("kernels_1", [])
        if row["ms"] >= 0.01
    ]
    return [*lines, *table(["kernel", "calls", "us each", "ms"], rows)]


def correctness(record: Record) -> list[str]:
    eager = [row for row in record["rows"] if "against_eager" in row]
    rows = [row for row in record["rows"] if row not in eager]
    recorded = sum(row.get("recorded", False) for row in rows)
    bits: dict[str, bool] = next(
        (row["same_bits_beside"] for row in rows if "same_bits_beside" in row), {}
    )
    lines = ["## Tokens, against the loop without a cache on the CPU", "", where(record)]
    same = ", ".join(str(others) for others, same in bits.items() if same and others != "0")
    other = ", ".join(str(others) for others, same in bits.items() if not same)
    lines += [
        wrapped(
            f"{len(rows)} families in float32, {recorded} of them by recorded passes that run"
            " ahead, 12 requests each with prefix hits, chunks and preemptions. Different:"
            f" {wrong(rows)}. In bfloat16 a request's log-probabilities are the"
            f" same bits alone and beside {same} others; beside {other} they are not."
        )
    ]
    if eager:
        batches = ", ".join(map(str, eager[0]["against_eager"]))
        families = ", ".join(row["family"] for row in eager)
        lines += [
            wrapped(
                f"Recorded passes against `--enforce-eager`, {batches} requests at a time of"
                f" {families}. Different: {wrong(eager)}."
            )
        ]
    return lines


def wrong(rows: list[Record]) -> str:
    """Families whose tokens differ, or that failed."""
    names = [row["family"] for row in rows if row.get("different") or "failed" in row]
    return ", ".join(names) or "none"


def attention(record: Record) -> list[str]:
    lines = ["## Tiles of attention", "", where(record)]
    rows = [
        [row["case"], tuple(row["shape"]), row["us"], f"{row[unit]:.3g} {unit}"]
        for row in record["rows"]
        for unit in ("TFLOP/s", "TB/s")
        if unit in row
    ]
    heads = ["requests x tokens", "rows, keys, warps, stages", "us", "that is"]
    return [*lines, *table(heads, rows)]


def products(record: Record) -> list[str]:
    lines = ["## Products of few rows", "", where(record)]
    lines += ["Outputs of a program, inputs of a step, warps, stages, whether kernels overlap.", ""]
    best: dict[str, list[Record]] = {}
    for row in record["rows"]:
        count = "1 row" if row["rows"] == 1 else f"{row['rows']} rows"
        best.setdefault(f"{row['product']}, {count}", []).append(row)
    rows = [
        [name, each["how"], each["us"], each["tb_per_s"]]
        for name, found in best.items()
        for each in sorted(found, key=lambda row: row["us"])[:4]
    ]
    return [*lines, *table(["product", "by", "us", "TB/s"], rows)]


def recurrent(record: Record) -> list[str]:
    lines = ["## The gated delta rule, a layer", "", where(record), ""]
    names = ("requests", "tokens", "us", "tb_per_s")
    rows = [[each[name] for name in names] for each in record["rows"]]
    return [*lines, *table(["requests", "tokens each", "us", "TB/s of states"], rows)]


def prediction() -> list[str]:
    """The sealed expectations, and what was measured of them; empty where nothing was."""
    path = RESULTS / "prediction-h200.json"
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    lines = ["## What the simulator expects of an H200, and what was measured", ""]
    lines += [
        wrapped(
            f"Sealed on {record['date'][:10]} at commit {str(record['commit'])[:8]} by"
            f" `benchmarks.gpu.predict` ({record['seal'][:16]}), in milliseconds of a step; the"
            " 8B model in bfloat16 had been measured before, nothing else. An empty column is not"
            " measured."
        )
    ]
    measured = dict[tuple[str, str], float]()
    if (speeds := newest("speed")) is not None:
        result, name = speeds["rows"][0], "8B bf16"
        for row in result.get("decode", []):
            measured[name, f"decode {row['batch']}"] = row["step_ms"]
        for row in result.get("prefill", []):
            measured[name, f"prefill {row['tokens']}"] = row["ms"]
    if (models := newest("models")) is not None:
        for row in models["rows"]:
            if "ms" in row:
                measured.setdefault((row["model"], row["step"]), row["ms"])
    rows = [
        [
            row["model"],
            row["step"],
            row["ms"],
            f"{row['low_ms']:.3g} to {row['high_ms']:.3g}",
            measured.get((row["model"], row["step"]), ""),
        ]
        for row in record["rows"]
    ]
    return [*lines, *table(["model", "step", "expected", "between", "measured"], rows)]


def mixed(record: Record) -> list[str]:
    """Decoding beside prompts and with drafts, by model; what failed is named."""
    lines = ["## Prompts beside requests that write, and drafts", "", where(record)]
    lines += ["Milliseconds: of a step, or a token of all, or with drafts of one request.", ""]
    rows = [
        [row["model"], row["step"].removeprefix("mixed, "), row["ms"]]
        for row in record["rows"]
        if ", " in row.get("step", "")
    ]
    rows += [[row["model"], "failed", ""] for row in record["rows"] if "failed" in row]
    return [*lines, *table(["model", "step", "ms"], rows)]


def draws(record: Record) -> list[str]:
    lines = ["## Draws, from logits to tokens", "", where(record)]
    rows = [
        [row["case"], row["batch"], row["us"], row["pytorch_us"], row["different"]]
        for row in record["rows"]
    ]
    heads = ["filters", "requests", "us", "us by PyTorch", "other tokens"]
    return [*lines, *table(heads, rows)]


def latents(record: Record) -> list[str]:
    lines = ["## Attention over latents, a layer", "", where(record)]
    names = ("heads", "requests", "tokens", "context", "us", "pytorch_us", "tb_per_s")
    rows = [[row[name] for name in names] for row in record["rows"]]
    heads = ["heads", "requests", "tokens each", "context", "us", "us by PyTorch", "TB/s"]
    return [*lines, *table(heads, rows)]


def rounded(record: Record) -> list[str]:
    lines = ["## Products in few bits, microseconds", "", where(record)]
    names = ("case", "rows", "None_us", "fp8_us", "int8_us", "int4_us")
    rows = [[row[name] for name in names] for row in record["rows"]]
    return [*lines, *table(["product", "rows", "bfloat16", "fp8", "int8", "int4"], rows)]


def memory(record: Record) -> list[str]:
    (row,) = record["rows"]
    lines = ["## Memory beside the cache", "", where(record)]
    lines += [
        wrapped(
            f"Measured at start: {row['needed_bytes'] / 2**30:.2f} GiB; the same steps again took"
            f" {row['again_bytes'] / 2**30:.2f} GiB. Blocks went to the host at"
            f" {row['read_gb_per_s']:.1f} GB/s and back at {row['write_gb_per_s']:.1f} GB/s."
        )
    ]
    return lines


def main() -> None:
    """Write the page."""
    parts = {
        "speed": [speed, kernels],
        "models": [mixed],
        "correctness": [correctness],
        "products": [products],
        "attention": [attention],
        "recurrent": [recurrent],
        "draws": [draws],
        "latents": [latents],
        "rounded": [rounded],
        "memory": [memory],
    }
    lines = ["# On GPUs", "", "Written by `python -m benchmarks.gpu.page`.", ""]
    for name, writers in parts.items():
        if record := newest(name):
            for write in writers:
                lines += write(record)
    lines += prediction()
    (RESULTS / "README.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    cyclopts.run(main)
