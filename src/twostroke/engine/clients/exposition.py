"""Prometheus expositions of a server of several engines, and how they become one."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_COMMENTS = (b"# HELP ", b"# TYPE ", b"# UNIT ")


def merge_expositions(texts: Iterable[bytes]) -> bytes:
    """Their series together; each family's description once, since more are refused.

    A family's series follow its description in each text, as ``prometheus_client`` writes them.
    The series of the texts must differ in a label.
    """
    comments: dict[bytes, list[bytes]] = {}
    series: dict[bytes, list[bytes]] = {}
    for text in texts:
        family = b""
        for line in text.splitlines():
            if line.startswith(_COMMENTS):
                family = line.split(b" ", 3)[2]
                described = comments.setdefault(family, [])
                if line[:7] not in {each[:7] for each in described}:
                    described.append(line)
                series.setdefault(family, [])
            elif line:
                series.setdefault(family, []).append(line)
    lines: list[bytes] = []
    for family, own in series.items():
        lines += [*comments.get(family, ()), *own]
    return b"".join(line + b"\n" for line in lines)


def exposition_of(families: list[Metric]) -> bytes:
    """Prometheus text of values that were counted elsewhere."""
    registry = CollectorRegistry()
    registry.register(_Counted(families))
    return generate_latest(registry)


class _Counted(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
