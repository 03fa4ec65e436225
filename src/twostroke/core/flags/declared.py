"""What an options field takes is declared in its annotation: for checks, units and the help.

``port: Annotated[int, within(0, 65535)] = 8000`` takes whole numbers in that range. A ``Literal``
takes its values and a ``bool`` true or false without more; ``| None`` takes ``None``, too. What
concerns several fields is code behind ``check_fields``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from twostroke.core.errors import ConfigError
from twostroke.core.flags.byte_sizes import parse_size
from twostroke.core.flags.values import parse_seconds, require


class Must(NamedTuple):
    """What a value must be, beside its type.

    Attributes:
        allowed: Ends the sentence "--flag must be ...".
    """

    allowed: str
    holds: Callable[[Any], bool] = lambda value: True


def at_least(least: float, allowed: str | None = None) -> Must:
    return Must(allowed or f"{least} or more", lambda value: value >= least)


def within(least: float, most: float, allowed: str | None = None) -> Must:
    """A number from ``least`` to ``most``, both included."""
    return Must(allowed or f"from {least:,} to {most:,}", lambda value: least <= value <= most)


def each(allowed: str, holds: Callable[[Any], bool]) -> Must:
    """Each item of a list must satisfy ``holds``."""
    return Must(allowed, lambda values: all(map(holds, values)))


Count = Annotated[int, at_least(1)]


class Unit(NamedTuple):
    """A number that may be written with a unit.

    Attributes:
        metavar: Its name in the help.
        example: For the hint, where text cannot be read.
    """

    metavar: str
    parse: Callable[[str], float]
    example: str

    def read(self, flag: str, text: str) -> float:
        """The plain number; raises ``ConfigError`` where the text is none."""
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigError(f"{flag}: {error}", hint=f"write it as {self.example}") from error


SIZE = Unit("SIZE", parse_size, "512MiB or 2GiB")
TIME = Unit("TIME", parse_seconds, "40ms or 0.04s")


class KnownLater(NamedTuple):
    """A default that is known later; until then the field is ``None``.

    Attributes:
        shown: What the help says.
    """

    shown: str


class ByDevice(NamedTuple):
    """A default that is known once the device is; until then the field is ``None``."""

    cpu: int
    gpu: int

    def on(self, *, gpu: bool) -> int:
        return self.gpu if gpu else self.cpu

    @property
    def shown(self) -> str:
        """What the help says."""
        return f"{self.cpu}; on a GPU {self.gpu}"


class Declaration(NamedTuple):
    """An annotation, taken apart.

    Attributes:
        kinds: The types of a value; with several, any of them.
        notes: What is declared beside them.
    """

    kinds: tuple[Any, ...]
    notes: tuple[Any, ...] = ()

    @property
    def unit(self) -> Unit | None:
        return next((note for note in self.notes if isinstance(note, Unit)), None)

    @property
    def shown_default(self) -> str | None:
        """How help shows a default that is known only later."""
        later = (note for note in self.notes if isinstance(note, KnownLater | ByDevice))
        return next((note.shown for note in later), None)

    @property
    def musts(self) -> list[Must]:
        """What a value must be; nothing where every value is taken."""
        if musts := [note for note in self.notes if isinstance(note, Must)]:
            return musts
        if choices := [choice for kind in self.kinds for choice in _choices(kind)]:
            return [Must("one of " + ", ".join(choices))]
        return [Must("true or false")] if bool in self.kinds else []

    def check(self, flag: str, value: object) -> None:
        """Raise ``ConfigError`` for a value that is not allowed."""
        if value is None and type(None) in self.kinds:
            return
        for must in self.musts:
            ok = any(_is_a(value, kind) for kind in self.kinds) and must.holds(value)
            require(ok, flag, value, must.allowed)


def read_annotation(annotation: Any) -> Declaration:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner = read_annotation(annotation.__origin__)
        return Declaration(inner.kinds, (*inner.notes, *annotation.__metadata__))
    if origin in (Union, UnionType):
        parts = [read_annotation(part) for part in get_args(annotation)]
        kinds, notes = (sum(each_part, ()) for each_part in zip(*parts))
        return Declaration(kinds, notes)
    return Declaration((annotation,))


@cache
def declarations(options: type) -> dict[str, Declaration]:
    """The declaration of each field of a dataclass; annotations may use names of its module."""
    hints = get_type_hints(options, vars(sys.modules[options.__module__]), include_extras=True)
    return {field.name: read_annotation(hints[field.name]) for field in fields(options)}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_fields(options: object, flag: Callable[[str], str] = flag_of) -> None:
    """Check each field by its declaration, and read those that are text with a unit.

    Args:
        flag: A field's name in messages.

    Raises:
        ConfigError: A value is not allowed; the message names the flag.
    """
    section: Any = type(options)
    for name, declared in declarations(section).items():
        value = getattr(options, name)
        if declared.unit is not None and isinstance(value, str):
            value = declared.unit.read(flag(name), value)
            object.__setattr__(options, name, value)
        declared.check(flag(name), value)


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def _is_a(value: object, kind: Any) -> bool:
    """Check plain types; other types are left to their predicates."""
    if choices := _choices(kind):
        return value in choices
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list) and all(_is_a(i, get_args(kind)[0]) for i in value)
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, kind) if kind in (str, bool, type(None)) else True
