"""What each tenant has used since the server began, as the series of ``/metrics`` that are its own.

Counted where calls pass by, one addition for each: the engine's loop and its metrics know nothing
of it. There are as many series as names of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twostroke.engine.clients.base import ChargedTokens, OutputStream


@dataclass(slots=True)
class TenantUsage:
    """One tenant's counts. A request is one prompt, whatever ``n``."""

    requests: int = 0
    unfinished: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def watch(self, stream: OutputStream) -> None:
        """Count a request, and its tokens when the engine is through with it."""
        self.requests += 1
        self.unfinished += 1
        stream.when_ended(self._settle)

    def _settle(self, usage: ChargedTokens) -> None:
        self.unfinished -= 1
        self.prompt_tokens += usage.prompt_tokens
        self.output_tokens += usage.output_tokens


class UsageBook:
    """The counts of all tenants of one server, on the event loop's thread.

    Args:
        tenants: The names of its keys.
    """

    def __init__(self, tenants: Iterable[str]) -> None:
        self._tenants = {tenant: TenantUsage() for tenant in sorted(tenants)}

    def of(self, tenant: str) -> TenantUsage:
        """The counts of one tenant, which go on."""
        return self._tenants[tenant]

    def render(self, tenant: str | None = None) -> bytes:
        """The exposition of one tenant's series, or of all."""
        chosen = self._tenants if tenant is None else {tenant: self._tenants[tenant]}
        registry = CollectorRegistry()
        registry.register(_Series(chosen))
        return generate_latest(registry)


class _Series(Collector):
    def __init__(self, tenants: dict[str, TenantUsage]) -> None:
        self._tenants = tenants

    def collect(self) -> Iterator[Metric]:
        counters = (
            ("requests", "Requests of a key's tenant."),
            ("prompt_tokens", "Prompt tokens of a key's tenant, cached ones included."),
            ("output_tokens", "Tokens generated for a key's tenant."),
        )
        for name, text in counters:
            counter = CounterMetricFamily(f"twostroke:tenant_{name}", text, labels=["tenant"])
            for tenant, usage in self._tenants.items():
                counter.add_metric([tenant], getattr(usage, name))
            yield counter
        gauge = GaugeMetricFamily(
            "twostroke:tenant_requests_unfinished",
            "Requests of a key's tenant that run or wait.",
            labels=["tenant"],
        )
        for tenant, usage in self._tenants.items():
            gauge.add_metric([tenant], usage.unfinished)
        yield gauge
