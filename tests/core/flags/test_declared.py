"""Options say what they take in their annotations, and refuse the rest in the words of the flag."""

from __future__ import annotations

import math
from ast import literal_eval
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from twostroke.bench.options import OfflineBenchOptions, ServeBenchOptions, WorkloadOptions
from twostroke.core.config import (
    CacheConfig,
    ModelOptions,
    ObservabilityConfig,
    SchedulerConfig,
    SchedulerOptions,
)
from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import (
    SIZE,
    ByDevice,
    Count,
    Must,
    Unit,
    check_fields,
    declarations,
    within,
)
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.core.speculation_config import Speculation, SpeculationConfig
from twostroke.engine.workers.options import RouterOptions, WorkerOptions
from twostroke.gateway.options import GatewayOptions
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.server.options import ServerOptions
from twostroke.simulator.calibration.options import CalibrationOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

SECTIONS: dict[str, Any] = {
    section.__name__: section
    for section in (
        ModelOptions, CacheConfig, SchedulerOptions, SchedulerConfig, ObservabilityConfig,
        KVTierConfig, Speculation, SpeculationConfig, ChatTemplateConfig, LoraConfig, ServerOptions,
        GatewayOptions, WorkloadOptions, ServeBenchOptions, OfflineBenchOptions,
        CalibrationOptions, DeploymentOptions, SimulatedWorkloadOptions, WorkerOptions,
        RouterOptions, AutoscalerOptions,
    )
}  # fmt: skip
# What a section needs before a single field can be wrong.
GIVEN: dict[str, dict[str, Any]] = {
    "Speculation": {"method": "ngram", "num_speculative_tokens": 4},
    "ServerOptions": {"otlp_traces_endpoint": "http://localhost:4318"},
}


class Refusal(NamedTuple):
    """A line of the table: ``section.field = value: message``, and ``hint: ...`` if it differs."""

    section: str
    field: str
    value: Any
    message: str
    hint: str | None


def read_table() -> list[Refusal]:
    table = Path(__file__).with_name("refusals.txt").read_text(encoding="utf-8")
    rows = []
    for line in table.splitlines():
        name, _, rest = line.partition(" = ")
        value, _, message = rest.partition(": --")
        section, _, field = name.partition(".")
        message, _, hint = message.partition("; hint: ")
        known = {"inf": math.inf, "nan": math.nan}
        read = known[value] if value in known else literal_eval(value)
        rows.append(Refusal(section, field, read, "--" + message, hint or None))
    return rows


@pytest.mark.parametrize(
    "refusal",
    read_table(),
    ids=lambda refusal: f"{refusal.section}.{refusal.field}={refusal.value!r}",
)
def test_a_value_that_is_not_allowed_is_refused_in_these_words(refusal: Refusal) -> None:
    with pytest.raises(ConfigError) as caught:
        SECTIONS[refusal.section](
            **{**GIVEN.get(refusal.section, {}), refusal.field: refusal.value}
        )
    assert caught.value.message == refusal.message
    hint = refusal.hint
    if hint is None:
        flag, _, rest = refusal.message.partition(" must be ")
        hint = f"give {flag} {rest.rpartition(', got ')[0]}, or leave it out"
    assert caught.value.hint == hint


def test_the_table_has_a_refusal_of_every_field_that_declares_what_it_takes() -> None:
    listed = {(refusal.section, refusal.field) for refusal in read_table()}
    declared = {
        (name, field)
        for name, section in SECTIONS.items()
        for field, declaration in declarations(section).items()
        if name != "SchedulerConfig" and declaration.musts
    }
    assert declared <= listed


@dataclass(frozen=True, kw_only=True)
class Tank:
    """Options of nothing."""

    litres: Annotated[Count | None, ByDevice(5, gpu=7)] = None
    fill: Annotated[float, within(0, 1)] = 0.5
    memory: Annotated[int | None, SIZE, within(1, 2**40)] = None
    colour: Literal["red", "blue"] | None = None
    label: Annotated[str, Must("a printable word", str.isprintable)] = "tank"
    is_open: bool = False
    free: int = 0

    def __post_init__(self) -> None:
        check_fields(self)


def test_text_with_a_unit_becomes_a_number_and_the_rest_stays() -> None:
    tank = Tank(memory="2KiB", fill=1, litres=3, colour="red")  # type: ignore[arg-type]
    assert (tank.memory, tank.fill, tank.litres, tank.colour) == (2048, 1, 3, "red")
    assert Tank() == Tank(litres=None, memory=None, colour=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"litres": 0}, "--litres must be 1 or more, got 0"),
        ({"litres": True}, "--litres must be 1 or more, got True"),
        ({"litres": 1.0}, "--litres must be 1 or more, got 1.0"),
        ({"fill": math.nan}, "--fill must be from 0 to 1, got nan"),
        ({"fill": None}, "--fill must be from 0 to 1, got None"),
        ({"memory": "much"}, "--memory: 'much' is not a size"),
        ({"memory": 0}, "--memory must be from 1 to 1,099,511,627,776, got 0"),
        ({"colour": "green"}, "--colour must be one of red, blue, got 'green'"),
        ({"colour": []}, "--colour must be one of red, blue, got []"),
        ({"label": b"x"}, "--label must be a printable word, got b'x'"),
        ({"is_open": 1}, "--is-open must be true or false, got 1"),
    ],
)
def test_the_type_is_part_of_what_a_field_takes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Tank(**options)
    assert caught.value.message == message


def test_the_help_learns_of_units_and_of_defaults_that_are_known_later() -> None:
    declared = declarations(Tank)
    assert declared["memory"].unit == SIZE == Unit("SIZE", SIZE.parse, SIZE.example)
    assert declared["litres"].shown_default == "5; on a GPU 7"
    assert (declared["fill"].unit, declared["fill"].shown_default) == (None, None)
