"""A GGUF file's metadata, asked for by key and type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from twostroke.checkpoints.gguf.file import Value
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config_fields import short

HINT = "the file was made for another program or version; convert or download it again"


class Metadata:
    """Values by key; each method raises ``ModelLoadError`` that names a key that is not as it
    should be. Without a ``default``, the key must be there.

    Attributes:
        asked: The keys that were asked for.
    """

    def __init__(self, values: Mapping[str, Value], path: Path) -> None:
        self.values, self.path = values, path
        self.asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def refusal(self, key: str, message: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {key} {message}", hint=HINT)

    def _get(self, key: str, kinds: tuple[type, ...], what: str) -> Value | None:
        self.asked.add(key)
        value = self.values.get(key)
        if value is not None and type(value) not in kinds:
            raise self.refusal(key, f"must be {what}, got {short(value)}")
        return value

    def _stated(self, key: str, value: object) -> None:
        if value is None:
            raise self.refusal(key, "is missing")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, (int,), "a whole number")
        value = default if value is None else value
        self._stated(key, value)
        return value  # type: ignore[return-value]  # as it was asked for

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, (int, float), "a number")
        value = default if value is None else value
        self._stated(key, value)
        return float(value)  # type: ignore[arg-type]  # as it was asked for

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, (bool,), "true or false")
        return default if value is None else bool(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, (str,), "a text")
        value = default if value is None else value
        self._stated(key, value)
        return str(value)

    def texts(self, key: str) -> list[str]:
        value = self._list(key)
        if not all(isinstance(item, str) for item in value):
            raise self.refusal(key, "must be a list of texts")
        return value  # type: ignore[return-value]  # checked

    def numbers(self, key: str) -> list[float]:
        value = self._list(key)
        if not all(type(item) in (int, float) for item in value):
            raise self.refusal(key, "must be a list of numbers")
        return value  # type: ignore[return-value]  # checked

    def integers(self, key: str) -> list[int]:
        value = self._list(key)
        if not all(type(item) is int for item in value):
            raise self.refusal(key, "must be a list of whole numbers")
        return value  # type: ignore[return-value]  # checked

    def flags(self, key: str) -> list[bool]:
        value = self._list(key)
        if not all(type(item) is bool for item in value):
            raise self.refusal(key, "must be a list of true and false")
        return value  # type: ignore[return-value]  # checked

    def _list(self, key: str) -> list[object]:
        value = self._get(key, (list,), "a list")
        self._stated(key, value)
        return value  # type: ignore[return-value]  # as it was asked for
