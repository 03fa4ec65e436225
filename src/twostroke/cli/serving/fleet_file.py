"""The file of a fleet: a table of the server, and one for each pool of replicas.

Keys are flags without their dashes, so that all that holds for a flag holds for its key.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Parameter

from twostroke.cli.flags import (
    CacheFlags,
    GatewayFlags,
    LoraFlags,
    ModelFlags,
    ObservabilityFlags,
    SchedulerFlags,
    ServerFlags,
    SpeculationFlags,
    TemplateFlags,
    TierFlags,
    engine_config,
    expand_units,
)
from twostroke.core.errors import ConfigError
from twostroke.core.files import read_bytes, reason
from twostroke.core.flags.declared import read_annotation
from twostroke.core.operator.lora_config import is_adapter_name
from twostroke.engine.fleet.pool_plan import PoolOptions, PoolPlan
from twostroke.engine.fleet.pool_roles import check_roles
from twostroke.gateway.options import GatewayOptions
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.server.options import SERVED, ServerOptions

MAX_BYTES = 2**20
EXAMPLE = 'a pool looks like [pools.chat], then model = "pilot" and replicas = 2'
HELP = "twostroke serve --help and docs/reference/fleet.md say what each key takes"
PoolFlags = Annotated[PoolOptions, Parameter(name="*")]
ScalingFlags = Annotated[AutoscalerOptions, Parameter(name="*")]


class FleetFile(NamedTuple):
    """What a fleet is to be.

    Attributes:
        pools: By their names; the model of the first answers where a request names none.
    """

    server: ServerOptions
    gateway: GatewayOptions
    pools: dict[str, PoolPlan]

    @property
    def models(self) -> dict[str, dict[str, PoolPlan]]:
        """The pools of each model, by the name that requests give it."""
        models: dict[str, dict[str, PoolPlan]] = {}
        for name, plan in self.pools.items():
            models.setdefault(plan.options.served_model_name or name, {})[name] = plan
        return models


def read_fleet(path: Path, *, by_ray: bool = False) -> FleetFile:
    """Read a file and check all of it.

    Args:
        by_ray: Whether Ray is to place the replicas.

    Raises:
        ConfigError: It cannot be read, or something in it cannot be; says where.
    """
    try:
        content = tomllib.loads(read_bytes(path, MAX_BYTES).decode())
    except OSError as error:
        message = f"cannot read {path}: {reason(error)}"
        raise ConfigError(message, hint="give the file of a fleet as --config") from error
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8
        raise ConfigError(f"{path} is no TOML: {error}", hint=EXAMPLE) from error
    reader = _Reader(path)
    reader.check_names("the file", content, {"server": "", "pools": ""})
    server, gateway = reader.parse("server", _server, content.get("server", {}))
    pools = content.get("pools", {})
    if not isinstance(pools, dict) or not pools:
        raise ConfigError(f"{path} has no pools", hint=EXAMPLE)
    plans = {}
    for name, table in pools.items():
        if not is_adapter_name(name):
            hint = "names have letters, digits and . _ : / -; TOML wants most of them in quotes"
            raise ConfigError(f"{path}: a pool cannot be called {name!r}", hint=hint)
        check = partial(PoolPlan.check_placement, by_ray=by_ray)
        plans[name] = reader.parse(f"pools.{name}", _pool, table, check)
    file = FleetFile(server, gateway, dict(_divided(plans)))
    for model, own in file.models.items():
        try:
            check_roles(model, own)
        except ConfigError as error:
            message = f"{path}: {_without_dashes(error.message)}"
            raise ConfigError(message, hint=_without_dashes(error.hint or "")) from error
    return file


def _server(
    *, server: ServerFlags | None = None, gateway: GatewayFlags | None = None
) -> tuple[ServerOptions, GatewayOptions]:
    options = server or ServerOptions()
    for given, flag, instead in (
        (options.served_model_name, "--served-model-name", "a pool's name is its model's"),
        (options.engine_process, "--engine-process", "all replicas are processes"),
        (options.data_parallel_size > 1, "--data-parallel-size", "give a pool replicas = N"),
        (options.prefill_engines, "--prefill-engines", 'give a pool role = "prefill"'),
        (options.idle_unload is not None, "--idle-unload", 'give a pool autoscale = "kv"'),
        (options.kv_cache_share, "--kv-cache-share", "give a pool kv-cache-memory"),
        (options.context_ranker not in (None, SERVED), "--context-ranker", 'give "served"'),
        (options.inspect_content, "--inspect-content", "leave it out, or use twostroke serve"),
        (options.inspect_efficiencies, "--inspect-efficiencies", "leave it out"),
    ):
        if given:
            raise ConfigError(f"{flag} is not for the server of a fleet", hint=instead)
    return options, gateway or GatewayOptions()


def _pool(
    *,
    pool: PoolFlags | None = None,
    scaling: ScalingFlags | None = None,
    model: ModelFlags | None = None,
    cache: CacheFlags | None = None,
    scheduler: SchedulerFlags | None = None,
    observability: ObservabilityFlags | None = None,
    speculation: SpeculationFlags | None = None,
    tiers: TierFlags | None = None,
    template: TemplateFlags | None = None,
    lora: LoraFlags | None = None,
) -> PoolPlan:
    own = cache, scheduler, observability, speculation, tiers, template, lora
    config = engine_config(None, model, *own)
    plan = PoolPlan(config, pool or PoolOptions(), scaling or AutoscalerOptions())
    plan.check()
    return plan


def _divided(plans: Mapping[str, PoolPlan]) -> Iterator[tuple[str, PoolPlan]]:
    """Have all replicas that there may be share devices and cores equally."""
    on_device = Counter(
        _one_name(plan.device_of(number)) for plan in plans.values() for number in range(plan.most)
    )
    num_threads = max(1, (os.cpu_count() or 1) // sum(plan.most for plan in plans.values()))
    for name, plan in plans.items():
        num_sharing = max(
            on_device[_one_name(plan.device_of(number))] for number in range(plan.most)
        )
        yield name, plan._replace(share=1 / num_sharing, num_threads=num_threads)


def _one_name(device: str) -> str:
    """One name for the first GPU, which has three; where there is none, ``auto`` is the CPU."""
    return "cuda:0" if device in ("auto", "cuda") else device


class _Reader:
    """Reads tables of one file as flags."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def parse(
        self,
        place: str,
        command: Any,
        table: object,
        check: Callable[[Any], None] = lambda read: None,
    ) -> Any:
        """What a command returns that gets a table's keys as flags.

        Args:
            check: Raises ConfigError for what cannot be.
        """
        where = f"[{place}]"
        if not isinstance(table, dict):
            raise ConfigError(f"{self._path}: {place} is no table", hint=EXAMPLE)
        app = App(config=expand_units, default_parameter=Parameter(allow_repeating=True))
        app.default(command)
        flags = _flags_of(command)
        table = {key.replace("_", "-"): value for key, value in table.items()}
        self.check_names(where, table, flags)
        tokens = [
            token
            for key, value in table.items()
            for token in self._tokens(where, key, value, flags[key])
        ]
        try:
            run, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
            read = run(*bound.args, **bound.kwargs)
            check(read)
            return read
        except CycloptsError as error:
            raise ConfigError(self._say(where, _sentence(str(error))), hint=HELP) from error
        except ConfigError as error:
            hint = None if error.hint is None else _without_dashes(error.hint)
            raise ConfigError(self._say(where, error.message), hint=hint) from error

    def check_names(self, where: str, table: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
        """Raise ConfigError for a key that is none."""
        for key in table:
            if key not in allowed:
                near = get_close_matches(key, allowed, 1)
                hint = f"did you mean {near[0]}?" if near else f"it may have: {', '.join(allowed)}"
                raise ConfigError(self._say(where, f"there is no key {key!r}"), hint=hint)

    def _tokens(self, where: str, key: str, value: object, annotation: Any) -> Iterator[str]:
        """The flag of a key, once for each value of a list."""
        kinds = read_annotation(annotation).kinds
        takes_list = any(get_origin(kind) is tuple for kind in kinds)
        values = value if isinstance(value, list) and takes_list else [value]
        for each in values:
            is_switch = isinstance(each, bool)
            if is_switch != (bool in kinds) or not isinstance(each, str | int | float):
                wanted = "true or false" if bool in kinds else "a text or a number"
                wanted = "a list of texts" if takes_list else wanted
                raise ConfigError(self._say(where, f"{key} must be {wanted}"), hint=HELP)
            if isinstance(each, int) and each.bit_length() > 64:  # Python writes no endless ones
                raise ConfigError(self._say(where, f"{key} is too large a number"), hint=HELP)
            yield f"--{key}={each}" if not is_switch else f"--{'' if each else 'no-'}{key}"

    def _say(self, where: str, message: str) -> str:
        return f"{self._path}: {where}: {_without_dashes(message)}"


def _flags_of(command: Any) -> dict[str, Any]:
    """The annotations of a command's flags by their keys."""
    flags = {}
    for annotation in get_type_hints(command).values():
        for kind in read_annotation(annotation).kinds:
            if not is_dataclass(kind):
                continue
            hints = get_type_hints(kind, include_extras=True)
            for each in fields(kind):
                flags[each.name.replace("_", "-")] = hints[each.name]
    return flags


def _sentence(message: str) -> str:
    message = " ".join(message.split())
    return message[:1].lower() + message[1:].rstrip(".")


def _without_dashes(text: str) -> str:
    """Flags as keys of the file."""
    return re.sub(r"(?<![\w-])--([a-z][a-z0-9-]*)", r"\1", text)
