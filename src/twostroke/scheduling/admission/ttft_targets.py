"""Which TTFT target a request is held to."""

from __future__ import annotations

from collections.abc import Iterable

from twostroke.core.targets import EVERY_KEY, Target


class TTFTTargets:
    """Its own, else its key's, else that of each key, else that of all.

    Where there are several percentiles, the highest counts: whatever meets it is good.

    Args:
        targets: Those for other metrics, and for other models than ``model_name``, are left out.
    """

    def __init__(self, targets: Iterable[Target], model_name: str) -> None:
        by_key: dict[str, Target] = {}
        for target in targets:
            if target.metric != "ttft" or target.model not in ("", model_name):
                continue
            former = by_key.get(target.key)
            if former is None or (former.percentile or 0) < (target.percentile or 0):
                by_key[target.key] = target
        self._limits = {key: target.limit for key, target in by_key.items()}

    def of(self, tenant: str, own: float | None = None) -> float | None:
        """Seconds within which the first token is due; ``None``: no matter when.

        Args:
            own: What the request itself asks for.
        """
        if own is not None:
            return own
        for key in (tenant, EVERY_KEY) if tenant else ():
            if key in self._limits:
                return self._limits[key]
        return self._limits.get("")
