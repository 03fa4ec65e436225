"""Slash commands of the terminal chat: read from a line, values checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args, get_type_hints

from twostroke.cli.flags import SamplingOptions
from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams

COMMANDS = {
    "/help": ("", "shows these commands"),
    "/system": ("[TEXT]", "sets or shows the system prompt; - removes it"),
    "/set": ("[NAME VALUE]", "sets or shows sampling parameters; /set NAME default"),
    "/retry": ("", "answers the last message again"),
    "/save": ("FILE", "writes the conversation: JSON in *.json, else Markdown"),
    "/reset": ("", "forgets the conversation"),
    "/exit": ("", "leaves, as does Ctrl-D"),
}
KEYS = "Ctrl-C stops an answer; Alt-Enter starts a new line; a space before / sends it"


class Command(NamedTuple):
    """A slash command and the rest of its line."""

    name: str
    argument: str


def read_command(line: str) -> Command | None:
    """The command in a line; ``None`` if the line is text for the model.

    Raises:
        InvalidRequestError: The line starts with a slash, and no command has that name; or the
            command needs an argument or takes none.
    """
    if not line.startswith("/"):
        return None
    name, _, argument = line.strip().partition(" ")
    if name not in COMMANDS:
        similar = get_close_matches(name, COMMANDS, n=1)
        advice = f"did you mean {similar[0]}? " if similar else ""
        raise InvalidRequestError(
            f"there is no command {name}",
            hint=f"{advice}/help lists them; a space before the / sends the line to the model",
        )
    usage = COMMANDS[name][0]
    argument = argument.strip()
    if argument and not usage:
        raise InvalidRequestError(f"{name} takes no argument", hint=f"write {name} alone")
    if not argument and usage and not usage.startswith("["):
        raise InvalidRequestError(f"{name} needs a value", hint=f"write {name} {usage}")
    return Command(name, argument)


def help_text() -> str:
    """One line for each command, then the keys."""
    usages = {name: f"{name} {usage}".strip() for name, (usage, _) in COMMANDS.items()}
    width = max(map(len, usages.values()))
    lines = [f"{usages[name]:{width}}  {meaning}" for name, (_, meaning) in COMMANDS.items()]
    return "\n".join([*lines, KEYS])


def with_setting(settings: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Sampling parameters after ``/set NAME VALUE``.

    Raises:
        InvalidRequestError: There is no such parameter, or the value is out of its range.
    """
    name, _, text = argument.partition(" ")
    name, text = name.replace("-", "_"), text.strip()
    types = get_type_hints(SamplingOptions)
    if name not in types:
        names = ", ".join(field.name for field in fields(SamplingOptions))
        raise InvalidRequestError(f"there is no parameter {name}", hint=f"there are {names}")
    if text == "default":
        return {key: value for key, value in settings.items() if key != name}
    value = _value(name, types[name], text)
    changed = {**settings, name: value}
    SamplingParams(**changed)  # refuses what is out of range
    return changed


def _value(name: str, kind: Any, text: str) -> Any:
    """The value in ``text``, of a field's type; strings may be in JSON's quotes."""
    if kind == tuple[str, ...]:
        return [json.loads(text) if _is_json_string(text) else text] if text else []
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InvalidRequestError(f"{name} must be true or false", hint=f"write /set {name} true")
    number = int if int in get_args(kind) else float
    try:
        return number(text)
    except ValueError:
        what = "a whole number" if number is int else "a number"
        example = "100" if number is int else "0.7"
        raise InvalidRequestError(
            f"{name} must be {what}", hint=f"write /set {name} {example}"
        ) from None


def _is_json_string(text: str) -> bool:
    try:
        return isinstance(json.loads(text), str)
    except ValueError:
        return False
