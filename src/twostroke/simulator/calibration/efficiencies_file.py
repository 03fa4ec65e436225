"""The file that a calibration writes, and ``--efficiencies`` reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from twostroke.simulator.calibration.calibrate import Calibration
from twostroke.simulator.calibration.machine_speed import Speed
from twostroke.simulator.cost.measured_on import MeasuredOn


def as_toml(
    calibration: Calibration,
    source: str,
    speed: Speed | None = None,
    measured: MeasuredOn | None = None,
) -> str:
    """A file for ``load_efficiencies(device, path)``.

    Args:
        source: One line on where the numbers are from.
        speed: How fast the machine was meanwhile, for comparisons with later measurements.
        measured: Which machine it was, and what ran on it.
    """
    efficiencies = calibration.efficiencies
    tables: dict[str, dict[str, Any]] = {
        f"gemm.{name}": asdict(value) for name, value in efficiencies.gemm.items()
    }
    for name in ("step", "decode", "prefill", "elementwise", "all_reduce", "host", "interval"):
        tables[name] = asdict(getattr(efficiencies, name))
    if speed is not None:
        tables["speed"] = speed._asdict()
    if measured is not None:
        tables["measured"] = asdict(measured)
    lines = [f"source = {json.dumps(source, ensure_ascii=False)}"]
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return str(value).lower() if isinstance(value, bool) else repr(float(f"{value:.5g}"))
