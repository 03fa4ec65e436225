"""Flags and options of vLLM that mean nothing here: taken with a note, or refused with a reason.

Scripts that start vLLM start twostroke, too. What would change the answers is no part of this: it
works under vLLM's name, or is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from twostroke.core.errors import ConfigError


class Meaningless(NamedTuple):
    """A flag that changes nothing.

    Attributes:
        why: Ends the sentence "--flag changes nothing: ...".
        values: Those under which it changes nothing; none: it is a switch; ``*``: any.
    """

    why: str
    values: tuple[str, ...] = ()


_ANY = ("*",)
_ONE_DEVICE = "a layer is divided, layers are not"
_CHOOSES = "the engine chooses how it runs"
_ALWAYS = "this is always on"

MEANINGLESS: Mapping[str, Meaningless] = {
    "--pipeline-parallel-size": Meaningless(_ONE_DEVICE, ("1",)),
    "-pp": Meaningless(_ONE_DEVICE, ("1",)),
    "--distributed-executor-backend": Meaningless(_CHOOSES, _ANY),
    "--disable-custom-all-reduce": Meaningless(_CHOOSES),
    "--enable-chunked-prefill": Meaningless(_ALWAYS),
    "--max-seq-len-to-capture": Meaningless(_CHOOSES, _ANY),
    "--load-format": Meaningless("weights are read from safetensors", ("auto", "safetensors")),
    "--tokenizer-mode": Meaningless("there is one kind of tokenizer", ("auto", "hf")),
    "--task": Meaningless("models generate", ("auto", "generate")),
    "--disable-log-stats": Meaningless("statistics are metrics, not log lines"),
    "--disable-log-requests": Meaningless("requests are logged only if asked for"),
    "--disable-uvicorn-access-log": Meaningless("accesses are logged only if asked for"),
    "--disable-frontend-multiprocessing": Meaningless("there is one process"),
    "--api-server-count": Meaningless("there is one process", ("1",)),
    "--enable-prompt-tokens-details": Meaningless(_ALWAYS),
    "--enable-server-load-tracking": Meaningless(_ALWAYS),
    "--enable-tokenizer-info-endpoint": Meaningless(_ALWAYS),
    "--enable-request-id-headers": Meaningless(_ALWAYS),
    "--enable-auto-tool-choice": Meaningless(_ALWAYS),
    "--exclude-tools-when-tool-choice-none": Meaningless(_ALWAYS),
    "--chat-template-content-format": Meaningless(
        "templates get messages as text", ("auto", "string")
    ),
    "--response-role": Meaningless("answers are the assistant's", ("assistant",)),
}
REFUSED: Mapping[str, str] = {
    "--trust-remote-code": "no code of a checkpoint is ever run: models are computed by code here",
}
SHORT = {"-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size"}
DTYPES = {"half": "float16", "float": "float32"}
# Commands that vLLM's scripts call, and those that load a model in the same way.
COMMANDS = frozenset({"serve", "chat", "generate", "batch", "run-batch"})


def without_vllm_flags(arguments: Sequence[str], note: Callable[[str], None]) -> list[str]:
    """The command line without flags that change nothing; ``note`` gets a line for each.

    Raises:
        ConfigError: A flag that is refused, or one whose value would change something.
    """
    if not arguments or arguments[0] not in COMMANDS:
        return list(arguments)
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*kept, argument, *rest]
        name, equals, value = argument.partition("=")
        _refuse(name)
        if name == "--dtype" and (equals or rest):
            value = value if equals else rest.pop(0)
            kept += [name, DTYPES.get(value, value)]
        elif name in SHORT:
            kept.append(SHORT[name] + equals + value)
        elif name in MEANINGLESS:
            flag = MEANINGLESS[name]
            if flag.values and not equals:
                value = rest.pop(0) if rest else ""
            _check(name, value)
            note(f"{name} changes nothing: {flag.why}")
        else:
            kept.append(argument)
    return kept


def without_vllm_options(options: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    """Do for keyword arguments what is done for flags: ``enforce_eager=True`` is one.

    Raises:
        ConfigError: As for flags.
    """
    kept: dict[str, Any] = {}
    for option, value in options.items():
        name = "--" + option.replace("_", "-")
        if name in REFUSED and not value:
            continue
        _refuse(name)
        if name not in MEANINGLESS:
            kept[option] = DTYPES.get(value, value) if option == "dtype" else value
        elif value is not None:
            _check(name, str(value))
            note(f"{option} changes nothing: {MEANINGLESS[name].why}")
    return kept


def _refuse(name: str) -> None:
    if name in REFUSED:
        raise ConfigError(f"{name} is refused: {REFUSED[name]}", hint="leave it out")


def _check(name: str, value: str) -> None:
    flag = MEANINGLESS[name]
    if flag.values and flag.values != _ANY and value not in flag.values:
        allowed = " or ".join(flag.values)
        raise ConfigError(
            f"{name} must be {allowed}, got {value!r}: {flag.why}", hint="leave it out"
        )
