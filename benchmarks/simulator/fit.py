"""Fits the coefficients that ship with the simulator, and makes kernel tables.

    python -m benchmarks.simulator.fit                               writes efficiency_files/*.toml
    python -m benchmarks.simulator.fit --tables h100-sxm h100.json   a table for KernelTables.read

Single-threaded, some minutes. Coefficients are facts about devices, derived; the measurements stay
where they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.simulator import kernels, make_tables
from benchmarks.simulator.data import (
    DATA,
    DEVICES,
    all_reduce_rows,
    attention_rows,
    gemm_rows,
    present,
    serving_rows,
)
from benchmarks.simulator.kernels import cached, usual
from benchmarks.simulator.serving import Closed, Stack, fit_stacks, leave_one_model_out, waiting
from twostroke.simulator.cost.efficiencies import (
    FILES,
    AllReduceEfficiency,
    AttentionEfficiency,
    Efficiencies,
    GemmEfficiency,
    load_efficiencies,
)
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware
from twostroke.simulator.cost.kernel_tables import ELEMENT_BYTES

# Devices that a fit also serves: the same architecture with other memory or links.
SERVES = {
    "a100-80gb-sxm": ("a100-80gb-sxm", "a100-40gb-sxm"),
    "h100-sxm": ("h100-sxm", "h100-pcie", "h200"),
    "l40s": ("l40s", "l4"),
}
NVLINK = ("a100-80gb-sxm", "h100-sxm")

Products = list[tuple[Any, HardwareSheet]]


def products(devices: Sequence[str], format_: str) -> Products:
    """Usual shapes whose weights no cache may have kept (see ``kernels.cached``)."""
    pairs: Products = []
    for device in devices:
        hardware = load_hardware(device)
        for row in gemm_rows(device):
            weights = 2.5 * ELEMENT_BYTES[row.format] * row.outputs * row.inputs
            kept = device == "l40s" and cached(weights, hardware)
            if row.format == format_ and usual(row) and not kept:
                pairs.append((row, hardware))
    return pairs


def attention(devices: Sequence[str], operation: str) -> Products:
    pairs: Products = []
    for device in devices:
        hardware = load_hardware(device)
        for row in attention_rows(device, operation):
            bytes_ = 4.0 * row.batch * row.tokens * row.kv_heads * row.dim
            kept = (
                operation == "generation"
                and device == "l40s"
                and cached(bytes_, hardware)
                and bytes_ > 2e6
            )
            if row.dim == 128 and not kept:
                pairs.append((row, hardware))
    return pairs


def fit_devices(devices: Sequence[str]) -> dict[str, Any]:
    """One set of kernel coefficients for all the given devices, as it stands in a file."""
    gemm = {"bf16": asdict(kernels.fit_gemm(products(devices, "bf16")))}
    if eights := products([device for device in devices if device != "a100-80gb-sxm"], "fp8"):
        # The measured operation quantises its inputs first; servers fuse that with the norm before.
        gemm["fp8"] = {**asdict(kernels.fit_gemm(eights)), "launch": gemm["bf16"]["launch"]}
    return {
        "gemm": gemm,
        "decode": asdict(kernels.fit_decode(attention(devices, "generation"))),
        "prefill": asdict(kernels.fit_prefill(attention(devices, "context"))),
    }


def fit_links(devices: Sequence[str]) -> dict[str, Any]:
    rows = [(row, load_hardware(device)) for device in devices for row in all_reduce_rows(device)]
    return {"all_reduce": asdict(kernels.fit_all_reduce(rows))}


def with_kernels(base: Efficiencies, raw: Mapping[str, Any]) -> Efficiencies:
    """``base`` with the coefficients that ``raw`` (of ``fit_devices``, ``fit_links``) has."""
    changed: dict[str, Any] = {}
    if "gemm" in raw:
        changed["gemm"] = {
            **base.gemm,
            **{name: GemmEfficiency(**values) for name, values in raw["gemm"].items()},
        }
    for name in ("decode", "prefill"):
        if name in raw:
            changed[name] = AttentionEfficiency(**raw[name])
    if "all_reduce" in raw:
        changed["all_reduce"] = AllReduceEfficiency(**raw["all_reduce"])
    return replace(base, **changed)


def stack_table(stack: Stack) -> dict[str, Any]:
    return {"step": {"decode": stack.decode, "prefill": stack.prefill}, "host": asdict(stack.host)}


def interval(closed: Closed) -> dict[str, float]:
    """P10 and P90 of measured over predicted TPOT and TTFT, each row's model held out."""
    rows = serving_rows()
    predictions = leave_one_model_out(closed, rows)
    free = [
        (row, p)
        for row, p, waits in zip(rows, predictions, waiting(rows))
        if not waits and not p.full
    ]
    tpot = sorted(row.tpot / p.tpot for row, p in free)
    ttft = sorted(row.ttft / p.ttft for row, p in free)
    return {
        "decode_low": tpot[len(tpot) // 10],
        "decode_high": tpot[len(tpot) * 9 // 10],
        "prefill_low": ttft[len(ttft) // 10],
        "prefill_high": ttft[len(ttft) * 9 // 10],
    }


def unseen_interval(fitted: Mapping[str, float]) -> dict[str, float]:
    """The interval of an unseen device: widened by how far the other two's miss L40S."""
    raw = fit_devices(NVLINK)
    hardware = load_hardware("l40s")
    gemm = GemmEfficiency(**raw["gemm"]["bf16"])
    rows = [row for row, _ in products(["l40s"], "bf16")]

    def off(few: bool) -> list[float]:
        chosen = [row for row in rows if (row.rows <= 256) is few]
        return sorted(row.seconds / kernels.gemm_seconds(row, hardware, gemm) for row in chosen)

    widened = dict(fitted)
    for step, ratios in (("decode", off(True)), ("prefill", off(False))):
        widened[f"{step}_low"] = min(fitted[f"{step}_low"], ratios[len(ratios) // 10])
        widened[f"{step}_high"] = max(fitted[f"{step}_high"], ratios[len(ratios) * 9 // 10])
    return widened


def write(
    name: str,
    source: str,
    tables: Mapping[str, Any],
    devices: Sequence[str] = (),
    links: Sequence[str] = (),
) -> None:
    lines = [f'source = "{source}"']
    for key, names in (("devices", devices), ("links", links)):
        if names:
            lines.append(f"{key} = [" + ", ".join(f'"{value}"' for value in names) + "]")
    for table, values in tables.items():
        inner = {key: value for key, value in values.items() if isinstance(value, dict)}
        for key, value in inner.items():
            lines += ["", f"[{table}.{key}]", *_lines(value)]
        if not inner:
            lines += ["", f"[{table}]", *_lines(values)]
    (FILES / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {name}.toml", file=sys.stderr)


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_number(value)}" for key, value in values.items()]


def _number(value: float) -> str:
    """Four digits of what was fitted; all of what was set."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else repr(float(f"{value:.4g}"))


def write_all() -> None:
    public = "public kernel measurements of AI Configurator (Apache-2.0)"
    shared = fit_devices(list(DEVICES))
    links = fit_links(NVLINK)
    rates = {}
    for device in DEVICES:
        rates[device] = fit_devices([device])
        if device in NVLINK:
            rates[device] |= fit_links([device])
        write(device, f"fitted to {public} on this device", rates[device], SERVES[device])
    write("pcie", f"fitted to {public} on L40S", fit_links(["l40s"]), links=("PCIe",))
    h100 = with_kernels(load_efficiencies("h100-sxm"), rates["h100-sxm"])
    closed = Closed(load_hardware("h100-sxm"), h100)
    stacks = fit_stacks(closed, serving_rows())
    for name, stack in stacks.items():
        write(
            f"stack-{name}",
            "fitted to its public serving measurements on H100, all models",
            stack_table(stack),
        )
    intervals = interval(closed)
    for device in NVLINK:
        write(
            device,
            f"fitted to {public} on this device",
            {**rates[device], "interval": intervals},
            SERVES[device],
        )
    defaults = {
        **shared,
        "elementwise": {"memory": 0.75, "launch": 2e-6},
        **links,
        **stack_table(stacks["vllm"]),
        "interval": unseen_interval(intervals),
    }
    write(
        "default",
        f"fitted to {public} on A100, H100 and L40S together; host and interval from H100 servers",
        defaults,
    )


def write_table(device: str, path: Path) -> None:
    """One kernel table of what a device was measured at, in formats that the model knows."""
    tables = {
        "device": device,
        "gemm": make_tables.gemm_entries(gemm_rows(device)),
        "decode": make_tables.attention_entries(attention_rows(device, "generation")),
        "prefill": make_tables.attention_entries(attention_rows(device, "context")),
        "all_reduce": make_tables.all_reduce_entries(all_reduce_rows(device)),
    }
    path.write_text(json.dumps(tables), encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", nargs=2, metavar=("DEVICE", "FILE"), help="write kernel tables and nothing else"
    )
    options = parser.parse_args()
    if not present():
        print(f"skipped: no measurements at {DATA}", file=sys.stderr)
        return 0
    if options.tables:
        write_table(options.tables[0], Path(options.tables[1]))
    else:
        write_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
