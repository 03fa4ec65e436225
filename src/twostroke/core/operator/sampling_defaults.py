"""What holds where a request says nothing of how to sample: the operator's own word on it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from twostroke.core.errors import ConfigError, InvalidRequestError
from twostroke.core.flags.json_flags import read_json_object
from twostroke.core.flags.values import require
from twostroke.core.sampling_params import SamplingParams

# Fields of generation_config.json that are read; as in vLLM.
SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# The only one that bounds what requests ask for.
LIMIT = "max_new_tokens"
FLAG = "--override-generation-config"


class SamplingOverrides(NamedTuple):
    """What the flag says.

    Attributes:
        fields: Fields of ``SamplingParams``; ``None`` takes the model's own default away.
        max_new_tokens: Most tokens of an answer, whatever a request asks for.
    """

    fields: dict[str, Any]
    max_new_tokens: int | None

    def over(self, defaults: Mapping[str, float]) -> dict[str, float]:
        """The model's defaults as the operator wants them."""
        merged = {**defaults, **self.fields}
        return {name: value for name, value in merged.items() if value is not None}


def read_overrides(value: object) -> SamplingOverrides:
    """The flag's settings.

    Raises:
        ConfigError: It is no JSON object, or a field is unknown or out of range.
    """
    given = read_json_object(FLAG, value, '{"temperature": 0.7, "max_new_tokens": 1024}')
    known = (*SAMPLING_DEFAULTS, LIMIT)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(known)
            raise ConfigError(f"{FLAG}: {name[:60]!r} is not read", hint=hint)
    limit = given.pop(LIMIT, None)
    ok = limit is None or (type(limit) is int and limit >= 1)
    require(ok, f"{FLAG}: {LIMIT}", limit, "1 or more")
    try:
        SamplingParams(**{name: item for name, item in given.items() if item is not None})
    except InvalidRequestError as error:
        raise ConfigError(f"{FLAG}: {error.message}", hint=error.hint or "mend it") from error
    return SamplingOverrides(given, limit)
