"""The machine and model of a calibration (table ``[measured]``), against what is simulated."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from twostroke.core.errors import ConfigError

# Longest text and largest number that a file may hold.
_MAX_CHARACTERS, _MAX_NUMBER = 200, 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOn:
    """All fields are optional in a file; empty or 0: not stated.

    Attributes:
        machine: The processor's or GPU's own name.
        device: The hardware sheet that was given for it.
        threads: How many computed.
        model: Its name.
        parameters: How many the model has; names differ, so this tells whether it is the same.
        weights: Format in which the engine kept them.
        twostroke: Version of twostroke.
        torch: Version of PyTorch.
        date: Date of the measurement, YYYY-MM-DD.
    """

    machine: str = ""
    device: str = ""
    threads: int = 0
    model: str = ""
    parameters: int = 0
    weights: str = ""
    twostroke: str = ""
    torch: str = ""
    date: str = ""

    def describe(self) -> str:
        """One line: the machine, and what ran on it."""
        named = (("twostroke", self.twostroke), ("torch", self.torch))
        versions = [f"{name} {value}" for name, value in named if value]
        threads = (
            [f"{self.threads} thread{'s' if self.threads > 1 else ''}"] if self.threads else []
        )
        ran = (
            [f"{self.model} in {self.weights}" if self.weights else self.model]
            if self.model
            else []
        )
        inside = ", ".join([*threads, *ran, *versions, *([self.date] if self.date else [])])
        return (self.machine or self.device or "an unnamed machine") + (
            f" ({inside})" if inside else ""
        )

    def differences(self, device: str, parameters: int, weights: str) -> Iterator[str]:
        """How the simulated device, model and format differ, each in a few words."""
        if self.device and self.device != device:
            yield f"device {self.device}, not {device}"
        if self.parameters and self.parameters != parameters:
            yield (
                f"model {self.model} of {_count(self.parameters)} parameters, not"
                f" {_count(parameters)}"
            )
        if self.weights and self.weights != weights:
            yield f"weights in {self.weights}, not {weights}"


def read_measured(raw: object, where: str) -> MeasuredOn | None:
    """The table of a file, or ``None``; unknown fields, of later versions, are no error.

    Raises:
        ConfigError: It is no table, or a field is of the wrong type or too large.
    """
    if raw is None:
        return None
    hint = "leave [measured] as `twostroke calibrate` wrote it"
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where}: measured must be a table", hint=hint)
    values = {}
    for field in fields(MeasuredOn):
        value = raw.get(field.name, field.default)
        whole = field.type == "int"
        if whole:
            ok = (
                isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER
            )
        else:
            ok = isinstance(value, str) and len(value) <= _MAX_CHARACTERS and value.isprintable()
        if not ok:
            what = "a whole number" if whole else f"a text of {_MAX_CHARACTERS} characters at most"
            raise ConfigError(f"{where}: [measured]: {field.name} must be {what}", hint=hint)
        values[field.name] = value
    return MeasuredOn(**values)


def as_text(name: str) -> str:
    """A name as the file may hold it: ``?`` for unprintable letters, the end of a long one."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[-_MAX_CHARACTERS:]


def processor_name() -> str:
    """This machine's processor, by its own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (
        line.split(":", 1)[1].strip()
        for line in lines
        if line.startswith("model name") and ":" in line
    )
    return next(named, "") or platform.processor() or platform.machine()


def _count(parameters: int) -> str:
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if parameters >= size:
            return f"{parameters / size:.4g} {unit}"
    return str(parameters)
