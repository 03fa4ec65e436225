"""What is judged, and by which split.

Every pair was estimated by coefficients or tables that it had no part in.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from benchmarks.simulator import kernels, make_tables
from benchmarks.simulator.data import (
    DATA,
    AttentionRow,
    GemmRow,
    all_reduce_rows,
    attention_rows,
    gemm_rows,
)
from benchmarks.simulator.fit import attention, fit_devices, products
from benchmarks.simulator.kernels import (
    MODELS,
    Pair,
    Result,
    gemm_pair,
    gemm_seconds,
    model_shapes,
    of_width,
    usual,
)
from twostroke.simulator.cost.efficiencies import (
    AttentionEfficiency,
    GemmEfficiency,
    load_efficiencies,
)
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware
from twostroke.simulator.cost.kernel_tables import KernelTables
from twostroke.simulator.cost.kernel_time import KernelTime

JUDGED = ("a100-80gb-sxm", "h100-sxm")
# Head counts of the models above on 1 to 8 devices: (query heads, KV heads), kept from the tables
# that are judged.
HEADS = {(32, 8), (16, 4), (8, 2), (4, 1), (64, 8), (8, 1)}


def gemm(device: str, format_: str = "bf16") -> Iterator[Result]:
    """Model by model: no product with the model's hidden size was fitted or tabulated."""
    hardware = load_hardware(device)
    rows = [row for row in gemm_rows(device) if row.format == format_ and usual(row)]
    by_fit: list[tuple[str, list[Pair]]] = []
    by_table: list[tuple[str, list[Pair]]] = []
    for name, (hidden, *_) in MODELS.items():
        shapes = model_shapes(name)
        test = [row for row in rows if (row.outputs, row.inputs) in shapes]
        fitted_rows = [row for row in rows if not of_width(row, hidden)]
        if not test:
            continue
        efficiency = kernels.fit_gemm([(row, hardware) for row in fitted_rows])
        by_fit.append((name, [gemm_pair(row, hardware, efficiency) for row in test]))
        by_table.append((name, _from_table(test, fitted_rows, hardware, efficiency)))
    split = "each model's hidden size kept out of the fit"
    targets = (0.08, 0.05) if format_ == "bf16" else (None, None)
    yield Result(
        f"GEMM {format_}, {device}, coefficients", split, _all(by_fit), "mean", targets[0], by_fit
    )
    split = split.replace("fit", "table")
    yield Result(
        f"GEMM {format_}, {device}, tables", split, _all(by_table), "median", targets[1], by_table
    )


def _all(parts: Sequence[tuple[str, list[Pair]]]) -> list[Pair]:
    return [pair for _, pairs in parts for pair in pairs]


def _from_table(
    test: Sequence[GemmRow],
    fitted_rows: Sequence[GemmRow],
    hardware: HardwareSheet,
    efficiency: GemmEfficiency,
) -> list[Pair]:
    base = load_efficiencies(hardware.name)
    efficiencies = replace(base, gemm={**base.gemm, test[0].format: efficiency})
    tables = KernelTables({"gemm": make_tables.gemm_entries(fitted_rows)}, hardware, efficiencies)
    pairs = []
    for row in test:
        modelled = KernelTime(gemm_seconds(row, hardware, efficiency))
        time = tables.gemm(row.format, row.rows, row.outputs, row.inputs, modelled)
        pairs.append(Pair(row.seconds, time.seconds))
    return pairs


def attention_kernels(device: str, operation: str) -> Iterator[Result]:
    """Every second length or batch, or the judged models' head counts are kept out, in turn."""
    rows = [row for row in attention_rows(device, operation) if row.dim == 128]
    name = "decode" if operation == "generation" else "prefill"
    lengths = sorted({row.tokens for row in rows})[1:-1:2]
    batches = sorted({row.batch for row in rows})[1:-1:2]
    splits: list[tuple[str, Callable[[AttentionRow], bool], float | None]] = [
        ("every second length kept out", lambda row: row.tokens in lengths, 0.03),
        ("every second batch size kept out", lambda row: row.batch in batches, None),
        (
            "head counts of Llama-3.1 and Qwen3 kept out",
            lambda row: (row.heads, row.kv_heads) in HEADS,
            None,
        ),
    ]
    for split, out, target in splits:
        fitted_rows, test = [row for row in rows if not out(row)], [row for row in rows if out(row)]
        by_fit, by_table = _attention_pairs(device, name, fitted_rows, test)
        if target is not None:
            yield Result(f"{name} attention, {device}, coefficients", split, by_fit)
        yield Result(f"{name} attention, {device}, tables", split, by_table, "median", target)


def _attention_pairs(
    device: str, name: str, fitted_rows: Sequence[AttentionRow], test: Sequence[AttentionRow]
) -> tuple[list[Pair], list[Pair]]:
    hardware = load_hardware(device)
    seen = [(row, hardware) for row in fitted_rows]
    efficiency = kernels.fit_decode(seen) if name == "decode" else kernels.fit_prefill(seen)
    base = load_efficiencies(device)
    efficiencies = (
        replace(base, decode=efficiency) if name == "decode" else replace(base, prefill=efficiency)
    )
    tables = KernelTables(
        {name: make_tables.attention_entries(fitted_rows)}, hardware, efficiencies
    )
    seconds = kernels.decode_seconds if name == "decode" else kernels.prefill_seconds
    look_up = tables.decode if name == "decode" else tables.prefill
    by_fit, by_table = [], []
    for row in test:
        modelled = seconds(row, hardware, efficiency)
        by_fit.append(Pair(row.seconds, modelled))
        time = look_up(
            row.heads, row.kv_heads, row.dim, row.batch, row.tokens, KernelTime(modelled)
        )
        by_table.append(Pair(row.seconds, time.seconds))
    return by_fit, by_table


def all_reduce(device: str) -> Iterator[Result]:
    """Every second size is kept out."""
    hardware = load_hardware(device)
    rows = all_reduce_rows(device)
    out = sorted({row.size for row in rows})[1:-1:2]
    fitted_rows, test = (
        [row for row in rows if row.size not in out],
        [row for row in rows if row.size in out],
    )
    efficiency = kernels.fit_all_reduce([(row, hardware) for row in fitted_rows])
    efficiencies = replace(load_efficiencies(device), all_reduce=efficiency)
    tables = KernelTables(
        {"all_reduce": make_tables.all_reduce_entries(fitted_rows)}, hardware, efficiencies
    )
    by_fit, by_table = [], []
    for row in test:
        modelled = kernels.all_reduce_seconds(row, hardware, efficiency)
        by_fit.append(Pair(row.seconds, modelled))
        by_table.append(Pair(row.seconds, tables.all_reduce(row.size, row.ranks, modelled)))
    target = 0.06 if device in JUDGED else None
    split = "every second size kept out"
    yield Result(f"all-reduce, {device}, coefficients", split, by_fit, "mean", target)
    yield Result(f"all-reduce, {device}, tables", split, by_table, "mean", target)


def data_sheet_alone() -> Iterator[Result]:
    """L40S by its data sheet and the coefficients of A100 and H100, none of its own."""
    raw = fit_devices(JUDGED)
    hardware = load_hardware("l40s")
    split = "nothing of L40S seen; coefficients of A100 and H100 together"
    for format_ in ("bf16", "fp8"):
        efficiency = GemmEfficiency(**raw["gemm"][format_])
        pairs = [gemm_pair(row, hardware, efficiency) for row, _ in products(["l40s"], format_)]
        yield Result(f"GEMM {format_}, l40s, data sheet alone", split, pairs, "mean")
    decode, prefill = AttentionEfficiency(**raw["decode"]), AttentionEfficiency(**raw["prefill"])
    pairs = [
        Pair(row.seconds, kernels.decode_seconds(row, hardware, decode))
        for row, _ in attention(["l40s"], "generation")
    ]
    yield Result("decode attention, l40s, data sheet alone", split, pairs)
    pairs = [
        Pair(row.seconds, kernels.prefill_seconds(row, hardware, prefill))
        for row, _ in attention(["l40s"], "context")
    ]
    yield Result("prefill attention, l40s, data sheet alone", split, pairs)
    rows = [row for row, _ in attention(["l40s"], "context")]
    long = [pair for row, pair in zip(rows, pairs) if row.tokens >= 1024]
    yield Result(
        "prefill attention, l40s, data sheet alone",
        "the same, prompts of 1,024 tokens and more",
        long,
    )


def other_stack() -> Iterator[Result]:
    """Three models' products on H100, as another project measured them with older libraries."""
    hardware = load_hardware("h100-sxm")
    efficiency = load_efficiencies("h100-sxm").gemm["bf16"]
    parts = []
    for path in sorted((DATA / "vidur_h100").glob("*-mlp.csv")):
        with path.open(encoding="utf-8") as file:
            pairs = [
                pair
                for record in csv.DictReader(file)
                for pair in _vidur_pairs(record, hardware, efficiency)
            ]
        parts.append((path.stem.removesuffix("-mlp"), pairs))
    split = "nothing of this data seen; shipped coefficients"
    yield Result("GEMM bf16, h100-sxm, measured by Vidur", split, _all(parts), "mean", None, parts)


def _vidur_pairs(
    record: dict[str, str], hardware: HardwareSheet, efficiency: GemmEfficiency
) -> Iterator[Pair]:
    tokens, ranks = int(record["num_tokens"]), int(record["num_tensor_parallel_workers"])
    hidden, inner = int(record["n_embd"]), int(record["n_expanded_embd"])
    heads, kv_heads = int(record["n_head"]), int(record["n_kv_head"])
    dim = hidden // heads
    shapes = {
        "attn_pre_proj": ((heads + 2 * kv_heads) * dim // ranks, hidden),
        "attn_post_proj": (hidden, heads * dim // ranks),
        "mlp_up_proj": (2 * inner // ranks, hidden),
        "mlp_down_proj": (hidden, inner // ranks),
    }
    for name, (outputs, inputs) in shapes.items():
        if value := record[f"time_stats.{name}.median"]:
            row = GemmRow("bf16", tokens, outputs, inputs, float(value) / 1e3)
            yield gemm_pair(row, hardware, efficiency)
