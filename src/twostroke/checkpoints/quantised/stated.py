"""Values of a ``quantization_config``, of which none may be left that changes numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config_fields import short

WHERE = "config.json: quantization_config"


class Stated:
    """The fields of one object, each taken once. All methods raise ModelLoadError.

    Args:
        prefix: What the names of its fields begin with in messages.
    """

    def __init__(self, raw: object, prefix: str) -> None:
        if not isinstance(raw, Mapping):
            raise scheme_refusal(
                f"{prefix.rstrip('.') or 'it'} must be an object, got {short(raw)}"
            )
        self._left: dict[str, Any] = {str(name): value for name, value in raw.items()}
        self._prefix = prefix

    def take(self, *names: str) -> Any:
        """The value of the first name that has one; ``None`` if none has."""
        values = [self._left.pop(name, None) for name in names]
        return next((value for value in values if value is not None), None)

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self.take(*names)
        value = default if value is None else value
        if value is None:
            raise scheme_refusal(f"{self._prefix}{names[0]} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 2**31:
            raise scheme_refusal(f"{self._prefix}{names[0]} must be an integer, got {short(value)}")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self.take(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise scheme_refusal(
                f"{self._prefix}{names[0]} must be true or false, got {short(value)}"
            )
        return value

    def one_of(self, allowed: Sequence[object], *names: str, default: object = None) -> Any:
        """One of ``allowed``; texts in small letters."""
        value = self.take(*names)
        value = default if value is None else value
        value = value.lower() if isinstance(value, str) else value
        if value is None:
            raise scheme_refusal(f"{self._prefix}{names[0]} is missing")
        if not any(type(value) is type(each) and value == each for each in allowed):
            raise scheme_refusal(
                f"{self._prefix}{names[0]} is {short(value)}, which is not supported",
                "supported: " + ", ".join(map(str, allowed)),
            )
        return value

    def names(self, *names: str) -> frozenset[str]:
        """Names of modules."""
        value = self.take(*names)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise scheme_refusal(
                f"{self._prefix}{names[0]} must be a list of names, got {short(value)}"
            )
        return frozenset(value)

    def finish(self, harmless: str) -> None:
        """Refuse what is left, unless it says nothing or is one of these names."""
        for name, value in self._left.items():
            says_something = value not in (None, False, "", "none", {}, [])
            if says_something and name not in harmless.split():
                raise scheme_refusal(
                    f"{self._prefix}{name} is {short(value)}, which is not known: it may change"
                    " the weights"
                )


def scheme_refusal(
    text: str, hint: str = "use the bfloat16, float16 or float32 version of this model"
) -> ModelLoadError:
    return ModelLoadError(f"{WHERE}: {text}", hint=hint)
