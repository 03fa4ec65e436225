"""Flags from configuration dataclasses: fields are flags, their docstrings help texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Group, Parameter

from twostroke.batch.options import BatchOptions
from twostroke.cli.help_pages import SIZE_FLAGS
from twostroke.core.byte_sizes import parse_size
from twostroke.core.config import (
    CacheConfig,
    EngineConfig,
    ModelOptions,
    ObservabilityConfig,
    SchedulerConfig,
)
from twostroke.core.errors import ConfigError
from twostroke.gateway.options import GatewayOptions
from twostroke.server.options import ServerOptions


def _section(title: str, order: int) -> Parameter:
    # Lists need no flag that empties them.
    group = Group(title, sort_key=order)
    return Parameter(name="*", group=group, negative_iterable=(), show_default=shown_default)


def shown_default(value: object) -> str | None:
    """A default as the help shows it; nothing where there is none."""
    return None if value is None or value == () else str(value)


ModelFlags = Annotated[ModelOptions, _section("Model", 1)]
ServerFlags = Annotated[ServerOptions, _section("Server", 2)]
GatewayFlags = Annotated[GatewayOptions, _section("Keys and limits", 3)]
SchedulerFlags = Annotated[SchedulerConfig, _section("Scheduling", 4)]
CacheFlags = Annotated[CacheConfig, _section("KV cache", 5)]
ObservabilityFlags = Annotated[ObservabilityConfig, _section("Observability", 6)]
BatchFlags = Annotated[
    BatchOptions,
    Parameter(
        name="*",
        group=Group("Batch", sort_key=0),
        negative_bool=(),
        negative_iterable=(),
        show_default=shown_default,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the answer is sampled; without a flag the engine's or the server's default holds."""

    max_tokens: int | None = None
    """Most tokens to generate; by default all that fits."""
    temperature: float | None = None
    """0 is greedy; by default the model's own (generation_config.json), else 1."""
    top_k: int | None = None
    """Keep the k likeliest tokens."""
    top_p: float | None = None
    """Keep the likeliest tokens whose probability reaches this."""
    min_p: float | None = None
    """Drop tokens less likely than this times the likeliest."""
    repetition_penalty: float | None = None
    """Above 1 discourages tokens that were there before."""
    presence_penalty: float | None = None
    """Subtracted once from what the answer already holds."""
    frequency_penalty: float | None = None
    """Subtracted for each time that the answer holds it."""
    stop: tuple[str, ...] = ()
    """Text that ends the answer (repeat the flag for more)."""
    ignore_eos: bool = False
    """Go on after the model's end token."""

    def as_fields(self) -> dict[str, Any]:
        """What was given, under the names that ``SamplingParams`` and the API share."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None and value is not False and value != ()
        }


SamplingFlags = Annotated[SamplingOptions, _section("Sampling", 0)]


def engine_config(
    name: str | None,
    model: ModelOptions | None,
    cache: CacheConfig | None = None,
    scheduler: SchedulerConfig | None = None,
    observability: ObservabilityConfig | None = None,
) -> EngineConfig:
    """The engine's configuration from a command's flags; ``name`` is the positional MODEL."""
    model = model or ModelOptions()
    if name is not None:
        if model.model not in (name, ModelOptions().model):
            raise ConfigError(
                f"MODEL is {name}, but --model is {model.model}", hint="give the model once"
            )
        model = replace(model, model=name)
    return EngineConfig(
        model=model,
        cache=cache or CacheConfig(),
        scheduler=scheduler or SchedulerConfig(),
        observability=observability or ObservabilityConfig(),
    )


def expand_sizes(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A cyclopts configuration hook: writes sizes as plain bytes before integers are read."""
    for argument in arguments:
        if argument.name in SIZE_FLAGS:
            try:
                argument.tokens = [
                    token.evolve(value=str(parse_size(token.value))) for token in argument.tokens
                ]
            except ValueError as error:
                raise ConfigError(
                    f"{argument.name}: {error}", hint="write it as 512MiB or 2GiB"
                ) from error
