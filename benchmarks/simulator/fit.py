"""Fits the coefficients that ship with the simulator, and makes kernel tables.

    python -m benchmarks.simulator.fit                               writes efficiency_files/*.toml
    python -m benchmarks.simulator.fit --products                    experts and few bits alone
    python -m benchmarks.simulator.fit --tables h100-sxm h100.json   a table for KernelTables.read

Single-threaded, some minutes. What servers decide is fitted by ``benchmarks.simulator.servers``.
Coefficients are facts about devices, derived; the measurements stay where they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
)
from benchmarks.simulator.efficiency_file import read, write
from benchmarks.simulator.kernels import cached, usual
from benchmarks.simulator.products import fits
from twostroke.model_spec.number_formats import weight_format
from twostroke.simulator.cost.efficiencies import FILES, GemmEfficiency
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware

# Devices that a fit also serves: the same architecture with other memory or links.
SERVES = {
    "a100-80gb-sxm": ("a100-80gb-sxm", "a100-40gb-sxm"),
    "h100-sxm": ("h100-sxm", "h100-pcie", "h200"),
    "l40s": ("l40s", "l4"),
    "b200": ("b200", "b300", "gb200"),
}
# Devices whose experts, products in few bits and latent attention were measured.
MEASURED_EXPERTS = ("h100-sxm", "b200")
# Devices that the coefficients in common are fitted to, those of products and attention.
COMMON = ("a100-80gb-sxm", "h100-sxm", "l40s")
PUBLIC = "public kernel measurements of AI Configurator (Apache-2.0)"
NVLINK = ("a100-80gb-sxm", "h100-sxm")
WITH_SWITCH = (*NVLINK, "b200")

Products = list[tuple[Any, HardwareSheet]]


def products(devices: Sequence[str], format_: str) -> Products:
    """Usual shapes whose weights no cache may have kept (see ``kernels.cached``)."""
    pairs: Products = []
    for device in devices:
        hardware = load_hardware(device)
        for row in gemm_rows(device):
            weights = 2.5 * weight_format(row.format).bits / 8 * row.outputs * row.inputs
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


def write_kernels() -> None:
    """Coefficients of kernels and links: a file for each device, and what they have in common."""
    for device in DEVICES:
        rates = fit_devices([device])
        if device in WITH_SWITCH:
            rates |= fit_links([device])
        write_device(device, rates)
    write("pcie", f"fitted to {PUBLIC} on L40S", fit_links(["l40s"]), links=("PCIe",))
    shared = fit_devices(COMMON) | fit_links(NVLINK)
    write_default({**shared, "elementwise": {"memory": 0.75, "launch": 2e-6}})


def write_products() -> None:
    """Coefficients of products in few bits, experts and latent attention, by device and stack."""
    for device in MEASURED_EXPERTS:
        there = read(device)
        sources = {
            **there.get("sources", {}),
            "gemm.fp8_block": f"fitted to TensorRT-LLM's kernels in {PUBLIC} on"
            f" {load_hardware(device).title}",
        }
        tables = fits.tables(device, "vllm", there["gemm"])
        write_device(device, {**tables, "sources": sources})
        own = fits.tables(device, "trtllm", {"bf16": there["gemm"]["bf16"]})
        del own["gemm"]["bf16"]
        title = load_hardware(device).title
        write(
            f"{device}-trtllm",
            f"fitted to TensorRT-LLM's kernels in {PUBLIC} on {title}",
            own,
            SERVES[device],
            stacks=("trtllm",),
        )
    write_marlin()
    eights = fit_devices(["l40s"])["gemm"]["fp8"]
    write_device("l40s", {"gemm": {**read("l40s")["gemm"], "fp8": eights}})
    shared = read("default")["gemm"]
    shared["fp8"] = fit_devices(("h100-sxm", "l40s"))["gemm"]["fp8"]
    write_default(fits.shared_tables(MEASURED_EXPERTS, shared))


def write_marlin() -> None:
    """Experts as gpt-oss's measured servers ran them under vLLM on Hopper."""
    write(
        f"{fits.MARLIN_DEVICE}-vllm",
        f"fitted to Marlin's kernels, mxfp4, in {PUBLIC} on"
        f" {load_hardware(fits.MARLIN_DEVICE).title}, as its measured servers ran them",
        fits.marlin_table(read(fits.MARLIN_DEVICE)["experts"]["mxfp4"]),
        SERVES[fits.MARLIN_DEVICE],
        stacks=("vllm",),
    )


def write_device(device: str, tables: Mapping[str, Any]) -> None:
    """Replace these tables of a device's file; others stay."""
    source = f"fitted to {PUBLIC} on {load_hardware(device).title}"
    there = read(device) if (FILES / f"{device}.toml").exists() else {}
    write(device, source, {**there, **tables}, SERVES[device])


def write_default(tables: Mapping[str, Any]) -> None:
    """Replace these tables of the coefficients that all devices have in common."""
    of_servers = "fitted to public measurements of vllm on H100"
    widened = f"{of_servers}, widened by how far off products of an unseen device are"
    sources = {
        "host": of_servers,
        "step": of_servers,
        "interval": widened,
        "interval_experts": widened,
        "elementwise": "set by hand",
        "all_reduce": f"fitted to {PUBLIC} on A100 and H100 together",
    }
    for table in ("experts", "gemm.fp8_block", "gemm.nvfp4"):
        sources[table] = f"fitted to {PUBLIC} on H100 and B200 together"
    source = f"fitted to {PUBLIC} on A100, H100 and L40S together"
    write("default", source, {**read("default"), **tables, "sources": sources})


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
    parser.add_argument(
        "--products", action="store_true", help="fit experts, few bits and latent attention alone"
    )
    options = parser.parse_args()
    if not present():
        print(f"skipped: no measurements at {DATA}", file=sys.stderr)
        return 0
    if options.tables:
        write_table(options.tables[0], Path(options.tables[1]))
        return 0
    if not options.products:
        write_kernels()
    write_products()
    return 0


if __name__ == "__main__":
    sys.exit(main())
