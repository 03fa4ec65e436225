"""All claims, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from twostroke.core.errors import ConfigError
from twostroke.lab import batching, drafts, limits, long_prompts, many_devices, memory, rates
from twostroke.lab.claim import FieldClaim

CLAIMS: tuple[FieldClaim, ...] = (
    *limits.CLAIMS,
    *rates.CLAIMS,
    *memory.CLAIMS,
    *batching.CLAIMS,
    *long_prompts.CLAIMS,
    *drafts.CLAIMS,
    *many_devices.CLAIMS,
)


def find_claims(names: Sequence[str]) -> list[FieldClaim]:
    """The claims of these names, in the order given. Raises ConfigError."""
    by_name = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in by_name:
            near = get_close_matches(name.lower(), by_name, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else "twostroke lab lists them"
            raise ConfigError(f"no claim {name!r}", hint=hint)
    return [by_name[name] for name in dict.fromkeys(names)]
