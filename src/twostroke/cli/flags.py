"""Flags from configuration dataclasses: fields are flags, their docstrings help texts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Group, Parameter

from twostroke.batch.options import BatchOptions
from twostroke.core.config import (
    CacheConfig,
    EngineConfig,
    ModelOptions,
    ObservabilityConfig,
    SchedulerOptions,
)
from twostroke.core.errors import ConfigError
from twostroke.core.files import reason
from twostroke.core.flags.declared import read_annotation
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.core.speculation_config import SpeculationConfig
from twostroke.engine.workers.options import RouterOptions, WorkerOptions
from twostroke.gateway.options import GatewayOptions
from twostroke.server.options import ServerOptions


def flag_section(title: str, order: int, *, lists: bool = False) -> Parameter:
    """The flags of one dataclass; ``lists`` are flags that take several values at once."""
    return Parameter(
        name="*",
        group=Group(title, sort_key=order),
        negative_iterable=(),  # lists need no flag that empties them
        show_default=shown_default,
        consume_multiple=lists,
    )


def shown_default(value: object) -> str | None:
    """A default as the help shows it; nothing where there is none."""
    return None if value in (None, (), "") else str(value)


ModelFlags = Annotated[ModelOptions, flag_section("Model", 1)]
TemplateFlags = Annotated[ChatTemplateConfig, flag_section("Model", 1)]
LoraFlags = Annotated[LoraConfig, flag_section("LoRA adapters", 1)]
ServerFlags = Annotated[ServerOptions, flag_section("Server", 2, lists=True)]
GatewayFlags = Annotated[GatewayOptions, flag_section("Keys and limits", 3)]
WorkerFlags = Annotated[WorkerOptions, flag_section("Worker", 0)]
RouterFlags = Annotated[RouterOptions, flag_section("Workers", 0, lists=True)]
SchedulerFlags = Annotated[SchedulerOptions, flag_section("Scheduling", 4)]
CacheFlags = Annotated[CacheConfig, flag_section("KV cache", 5)]
TierFlags = Annotated[KVTierConfig, flag_section("KV cache", 5)]
ObservabilityFlags = Annotated[ObservabilityConfig, flag_section("Observability", 6)]
SpeculationFlags = Annotated[SpeculationConfig, flag_section("Speculation", 7)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOptions:
    """What form the answer has; one of these."""

    schema: Path | None = None
    """File with a JSON schema: the answer is JSON that fits it."""
    regex: str | None = None
    """Expression that the whole answer matches."""
    choice: tuple[str, ...] = ()
    """Text that the answer may be (repeat the flag for more)."""

    def as_fields(self) -> dict[str, Any]:
        """What was given, as a sampling field.

        Raises:
            ConfigError: Two forms are given, or the schema cannot be read.
        """
        form: dict[str, Any] = {}
        if self.schema is not None:
            form["json"] = _read_schema(self.schema)
        if self.regex is not None:
            form["regex"] = self.regex
        if self.choice:
            form["choice"] = list(self.choice)
        if len(form) > 1:
            raise ConfigError(
                "--schema, --regex and --choice exclude one another", hint="give one of them"
            )
        return {"structured_outputs": form} if form else {}


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read the schema {path}: {reason(error)}", hint="--schema takes a file of JSON"
        ) from error
    if not isinstance(schema, dict):
        raise ConfigError(
            f"the schema {path} is no JSON object", hint='a schema looks like {"type": "object"}'
        )
    return schema


FormFlags = Annotated[FormOptions, flag_section("Form of the answer", 0)]
SamplingFlags = Annotated[SamplingOptions, flag_section("Sampling", 0)]


def engine_config(
    name: str | None,
    model: ModelOptions | None,
    cache: CacheConfig | None = None,
    scheduler: SchedulerOptions | None = None,
    observability: ObservabilityConfig | None = None,
    speculation: SpeculationConfig | None = None,
    tiers: KVTierConfig | None = None,
    template: ChatTemplateConfig | None = None,
    adapters: LoraConfig | None = None,
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
        scheduler=scheduler or SchedulerOptions(),
        observability=observability or ObservabilityConfig(),
        speculation=speculation or SpeculationConfig(),
        tiers=tiers or KVTierConfig(),
        chat=template or ChatTemplateConfig(),
        adapters=adapters or LoraConfig(),
    )


def expand_units(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A cyclopts configuration hook: writes sizes as plain bytes, and times as plain seconds.

    Numbers are read after it.
    """
    for argument in arguments:
        unit = read_annotation(argument.field_info.annotation).unit
        if unit is not None:
            argument.tokens = [
                token.evolve(value=repr(unit.read(argument.name, token.value)))
                for token in argument.tokens
            ]
