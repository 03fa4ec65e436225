"""LoRA adapters that the operator has loaded, and how many there may be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import SIZE, Must, at_least, check_fields, within

# Over HTTP it is a model's name, in URLs and metrics too.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """LoRA adapters: small additions to the model's weights, chosen by each request."""

    lora: Annotated[tuple[str, ...], Must("a list of adapters such as sql=adapters/sql")] = ()
    """A LoRA adapter as `NAME=FOLDER`, in PEFT's layout; requests name it as their model. May be
    given several times.
    """
    enable_lora: bool = False
    """Let adapters be loaded while the server runs; `--lora` alone serves those that it names."""
    max_loras: Annotated[int, within(1, 1000)] = 8
    """Most adapters in memory at once. Where there is no room, the one that was used longest ago
    makes it, and is read again when it is asked for.
    """
    max_lora_rank: Annotated[int, within(1, 256)] = 256
    """Highest rank of an adapter."""
    max_lora_memory: Annotated[int, SIZE, at_least(1, "a positive size")] = 2**30
    """Most memory that adapters take together."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.paths()

    @property
    def wanted(self) -> bool:
        """Whether there are adapters, or may be some later."""
        return self.enable_lora or bool(self.lora)

    def paths(self) -> dict[str, str]:
        """The folder of each adapter by its name. Raises ConfigError for a malformed one."""
        paths: dict[str, str] = {}
        for given in self.lora:
            name, equals, path = given.partition("=")
            if not (equals and path and is_adapter_name(name)):
                raise ConfigError(
                    f"--lora must be NAME=FOLDER, got {given!r}",
                    hint="a name has letters, digits and . _ : / - and at most 128 characters",
                )
            if name in paths:
                raise ConfigError(f"--lora names {name} twice", hint="give each another name")
            paths[name] = path
        return paths


def is_adapter_name(name: str) -> bool:
    """Whether an adapter may be called so."""
    return _NAME.fullmatch(name) is not None
