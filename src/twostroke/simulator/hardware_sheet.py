"""What a device can do by its data sheet: memory, dense rates, links, power, price. One TOML file for each.

The files are in ``simulator/hardware``; a path to a file of one's own is as good as a name. Every file says where its
numbers come from. Rates are those without sparsity: data sheets that print only the sparse figure were halved.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from twostroke.errors import ConfigError

SHEETS = Path(__file__).parent / "hardware"
# What a device computes in where it lacks a rate, in order of preference.
WIDER = {"fp4": "fp8", "fp8": "bf16", "int8": "bf16", "bf16": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSheet:
    """One device.

    Attributes:
        memory_bytes: All of it; what a server may use is less.
        memory_bandwidth: Bytes/s of the main memory.
        compute_units: Streaming multiprocessors, compute units or cores: what a kernel's tiles are spread over.
        cache_bytes: Last-level cache.
        dense_flops: FLOP/s by number format (``fp32``, ``bf16``, ``fp8``, ``int8``, ``fp4``), without sparsity.
        link_bandwidth: Bytes/s per direction and device, between the ``link_domain`` devices that are joined directly.
        network_bandwidth: Bytes/s per direction and device, between nodes.
        price_per_hour: US dollars for one device.
        sources: Where each kind of number comes from.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    memory_bytes: int
    memory_bandwidth: float
    compute_units: int
    cache_bytes: int
    dense_flops: Mapping[str, float]
    link_kind: str
    link_bandwidth: float
    link_domain: int
    network_bandwidth: float
    power_watts: float
    price_per_hour: float
    sources: Mapping[str, str]

    def compute_format(self, wanted: str) -> str:
        """The format that products run in: ``wanted``, or the next wider one that the device has."""
        found = wanted
        while found not in self.dense_flops:
            if found not in WIDER:
                raise ConfigError(
                    f"{self.name} states no rate for {wanted} or anything wider",
                    hint=f"add it under [dense_flops]; the sheet has {', '.join(self.dense_flops)}",
                )
            found = WIDER[found]
        return found


def hardware_names() -> list[str]:
    """Names of the sheets that ship with twostroke, sorted."""
    return sorted(path.stem for path in SHEETS.glob("*.toml"))


def load_hardware(name: str) -> HardwareSheet:
    """Read a sheet by name, alias or path to a TOML file. Raises ConfigError."""
    if name.endswith(".toml"):
        return _read(Path(name))
    wanted = name.lower()
    sheets = []
    for stem in hardware_names():
        sheets.append(_read(SHEETS / f"{stem}.toml"))
        if wanted == stem or wanted in sheets[-1].aliases:
            return sheets[-1]
    known = [label for sheet in sheets for label in (sheet.name, *sheet.aliases)]
    close = get_close_matches(wanted, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "known: " + ", ".join(sheet.name for sheet in sheets)
    raise ConfigError(f"unknown device {name!r}", hint=f"{hint} A path to a .toml file of your own works too")


def _read(path: Path) -> HardwareSheet:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="see simulator/hardware for the format") from error
    link = raw.get("link", {})
    try:
        sheet = HardwareSheet(
            name=path.stem,
            title=str(raw.get("title", path.stem)),
            aliases=tuple(raw.get("aliases", ())),
            memory_bytes=int(raw["memory_bytes"]),
            memory_bandwidth=float(raw["memory_bandwidth"]),
            compute_units=int(raw["compute_units"]),
            cache_bytes=int(raw["cache_bytes"]),
            dense_flops={format_: float(rate) for format_, rate in raw["dense_flops"].items()},
            link_kind=str(link.get("kind", "")),
            link_bandwidth=float(link["bandwidth"]),
            link_domain=int(link["domain"]),
            network_bandwidth=float(link["network_bandwidth"]),
            power_watts=float(raw["power_watts"]),
            price_per_hour=float(raw["price_per_hour"]),
            sources=dict(raw.get("sources", {})),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: missing or unusable value: {error}", hint="see simulator/hardware") from error
    _check(sheet, path)
    return sheet


def _check(sheet: HardwareSheet, path: Path) -> None:
    numbers: dict[str, Any] = {
        "memory_bytes": sheet.memory_bytes,
        "memory_bandwidth": sheet.memory_bandwidth,
        "compute_units": sheet.compute_units,
        "link.domain": sheet.link_domain,
        "link.bandwidth": sheet.link_bandwidth,
        **{f"dense_flops.{format_}": rate for format_, rate in sheet.dense_flops.items()},
    }
    for name, value in numbers.items():
        if not value > 0:
            raise ConfigError(f"{path}: {name} must be positive, got {value}", hint="mend the sheet")
    if not sheet.dense_flops:
        raise ConfigError(f"{path}: dense_flops is empty", hint="state at least bf16")
