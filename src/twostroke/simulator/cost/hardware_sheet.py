"""What a device can do by its data sheet: memory, dense rates, links, power, price.

One TOML file per device, in ``simulator/cost/hardware_files``; a path to a file of one's own works
in place of a name. Every file says where its numbers come from. Rates are those without sparsity:
data sheets that print only the sparse figure were halved.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_text, reason

SHEETS = Path(__file__).parent / "hardware_files"
EXAMPLE = f"a sheet to copy: {SHEETS / 'h100-sxm.toml'}"
# The format that a device uses in place of one that it lacks.
WIDER = {"fp4": "fp8", "fp8": "bf16", "int8": "bf16", "bf16": "fp32"}
# The kind of link of a processor's cores: what they share is the machine's own memory.
HOST_MEMORY = "memory of the host"
FORMATS = ("fp32", "bf16", "fp8", "int8", "fp4")
# Bounds of each number; a value in a wrong unit (GB, TFLOP/s) falls outside.
_BYTES, _RATE, _MONEY, _COUNT = (1e8, 1e16), (1e8, 1e17), (0, 1e6), (1, 1e6)
_BOUNDS = {"memory_bytes": _BYTES, "memory_bandwidth": _RATE, "compute_units": _COUNT}
_OPTIONAL = {
    "cache_bytes": (0, 1e16),
    "power_watts": (0, 1e6),
    "price_per_hour": _MONEY,
    "reserved_bytes": (0, 1e11),
}
_LINK = {"bandwidth": _RATE, "domain": _COUNT}
_OPTIONAL_LINK = {"network_bandwidth": _RATE, "buffer_bytes": (0, 1e11)}
_WHOLE = (
    "memory_bytes",
    "compute_units",
    "cache_bytes",
    "domain",
    "reserved_bytes",
    "buffer_bytes",
)
_FLOPS = (1e9, 1e20)
_TABLES = ("title", "aliases", "dense_flops", "link", "sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSheet:
    """One device.

    Attributes:
        memory_bytes: Memory of the device; a server may use less.
        memory_bandwidth: Bytes/s of the main memory.
        compute_units: Streaming multiprocessors, compute units or cores, which share the tiles of
            a kernel.
        cache_bytes: Last-level cache.
        dense_flops: FLOP/s by number format (``fp32``, ``bf16``, ``fp8``, ``int8``, ``fp4``),
            without sparsity.
        link_bandwidth: Bytes/s per direction and device, between directly joined devices; 0: the
            sheet states no link, so a model must fit onto one device.
        link_domain: How many devices are joined directly.
        network_bandwidth: Bytes/s per direction and device, between nodes; 0: no network stated.
        power_watts: Rated power of one device; 0: not stated.
        price_per_hour: US dollars for one device; 0: not stated.
        reserved_bytes: Memory that the driver keeps: programs see the rest as the device's total.
        buffer_bytes: Memory that collectives keep on each of several joined devices.
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
    reserved_bytes: int = 0
    buffer_bytes: int = 0

    def compute_format(self, wanted: str) -> str:
        """``wanted``, or the next wider format that the device has a rate for."""
        format_ = wanted
        while format_ not in self.dense_flops:
            if format_ not in WIDER:
                raise ConfigError(
                    f"{self.name} states no rate for {wanted} or anything wider",
                    hint=f"add it under [dense_flops]; the sheet has {', '.join(self.dense_flops)}",
                )
            format_ = WIDER[format_]
        return format_

    @property
    def is_cpu(self) -> bool:
        """Whether its cores share the machine's own memory."""
        return self.link_kind.startswith(HOST_MEMORY)

    def bandwidth_between(self, devices: int) -> float:
        """Bytes/s per direction and device between this many devices.

        Raises:
            ConfigError: The sheet states no link or network that joins them.
        """
        bandwidth = self.link_bandwidth if devices <= self.link_domain else self.network_bandwidth
        if devices > 1 and not bandwidth:
            what = (
                "[link] with bandwidth and domain"
                if not self.link_bandwidth
                else "network_bandwidth under [link]"
            )
            raise ConfigError(
                f"{self.name} does not say how {devices} devices talk",
                hint=f"add {what} to the sheet, or use fewer",
            )
        return bandwidth


def hardware_names() -> list[str]:
    """Names of the sheets that ship with twostroke, sorted."""
    return sorted(path.stem for path in SHEETS.glob("*.toml"))


def load_hardware(name: str) -> HardwareSheet:
    """Read a sheet by name, alias or path to a TOML file. Raises ConfigError."""
    if name.endswith(".toml"):
        return _read(Path(name).expanduser())
    wanted, sheets = name.lower(), []
    paths = [SHEETS / f"{stem}.toml" for stem in hardware_names()]
    # Reading a file is quick, parsing it is slow: files that name the device come first.
    for path in sorted(
        paths, key=lambda path: wanted != path.stem and f'"{wanted}"' not in path.read_text("utf-8")
    ):
        sheets.append(_read(path))
        if wanted == path.stem or wanted in sheets[-1].aliases:
            return sheets[-1]
    names = [label for sheet in sheets for label in (sheet.name, *sheet.aliases)]
    close = get_close_matches(wanted, names, n=1)
    hint = (
        f"did you mean {close[0]}?"
        if close
        else "known: " + ", ".join(sheet.name for sheet in sheets) + "."
    )
    raise ConfigError(
        f"unknown device {name!r}", hint=f"{hint} A path to a .toml file of your own works too"
    )


def _read(path: Path) -> HardwareSheet:
    try:
        raw = tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}", hint=EXAMPLE) from error
    _check_names(path, "", raw, (*_TABLES, *_BOUNDS, *_OPTIONAL))
    flops, link = _table(path, raw, "dense_flops"), _table(path, raw, "link")
    _check_names(path, "dense_flops.", flops, FORMATS)
    _check_names(path, "link.", link, ("kind", *_LINK, *_OPTIONAL_LINK))
    if "bf16" not in flops and "fp32" not in flops:
        raise ConfigError(f"{path}: [dense_flops] states neither bf16 nor fp32", hint=EXAMPLE)
    # A sheet without links serves one device; power and price decide no time.
    link_bounds = _LINK if {"bandwidth", "domain"} & set(link) else {}
    numbers = {
        **{name: _number(path, "", raw, name, bounds) for name, bounds in _BOUNDS.items()},
        **{name: _number(path, "", raw, name, bounds, 0) for name, bounds in _OPTIONAL.items()},
        **{
            f"link_{name}": _number(path, "link.", link, name, bounds)
            for name, bounds in link_bounds.items()
        },
        **{
            name: _number(path, "link.", link, name, bounds, 0)
            for name, bounds in _OPTIONAL_LINK.items()
        },
    }
    return HardwareSheet(
        name=path.stem,
        title=str(raw.get("title", path.stem)),
        aliases=tuple(str(alias) for alias in raw["aliases"])
        if isinstance(raw.get("aliases"), list)
        else (),
        dense_flops={
            name: float(_number(path, "dense_flops.", flops, name, _FLOPS)) for name in flops
        },
        link_kind=str(link.get("kind", "")),
        sources={name: str(source) for name, source in _table(path, raw, "sources").items()},
        **{"link_bandwidth": 0.0, "link_domain": 1, **numbers},
    )


def _table(path: Path, raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} must be a table, got {table!r}", hint=EXAMPLE)
    return table


def _check_names(path: Path, table: str, raw: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in raw:
        if name not in names:
            close = get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]}?" if close else "known: " + ", ".join(names)
            raise ConfigError(f"{path}: unknown {table}{name}", hint=hint)


def _number(
    path: Path,
    table: str,
    raw: Mapping[str, Any],
    name: str,
    bounds: tuple[float, float],
    default: float | None = None,
) -> Any:
    """A number of the sheet; an integer for counts and bytes."""
    value = raw.get(name, default)
    if value is None:
        raise ConfigError(f"{path}: {table}{name} is missing", hint=EXAMPLE)
    low, high = bounds
    whole = name in _WHOLE
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not ok or not (low <= value <= high or value == default) or (whole and value % 1):
        what = "a whole number" if whole else "a number"
        raise ConfigError(
            f"{path}: {table}{name} must be {what} from {low:g} to {high:g}, got {value!r}",
            hint="bytes, bytes/s and FLOP/s are meant, without a prefix such as giga",
        )
    return int(value) if whole else float(value)
