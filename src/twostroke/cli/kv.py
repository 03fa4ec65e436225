"""``twostroke kv``."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from twostroke.core.config import CacheConfig, SchedulerConfig, SchedulerOptions
from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.core.flags.byte_sizes import format_decimal_bytes
from twostroke.core.flags.values import require
from twostroke.core.kv_groups import KVGroups

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from twostroke.model_spec.kv_arithmetic import KVArithmetic
    from twostroke.model_spec.spec import ModelSpec
    from twostroke.simulator.cost.hardware_sheet import HardwareSheet

MAX_TOKENS, MAX_USERS = 2**24, 10**6
# Of one machine, and the length that is counted where none is given.
MOST_DEVICES, USUAL_LENGTH = 8, 8192


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """What fits beside the weights.

    Attributes:
        devices: How many the weights need; 0: more than ``MOST_DEVICES``, or than are linked.
        kv_bytes: Left for the cache on all of them together.
        conversations: How many fit at once.
        needed: How many devices would do for all users, as memory alone counts: copies of
            ``devices``, or whole machines over which the model is spread. 0: not any number.
    """

    gpu: str
    devices: int
    kv_bytes: int
    conversations: int
    needed: int


def kv(
    model: str,
    /,
    *,
    length: Annotated[int | None, Parameter(name="--len")] = None,
    users: int = 1,
    gpu: str | None = None,
    kv_cache_dtype: str = "auto",
    weight_dtype: str = "auto",
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Show what MODEL's KV cache takes, where it comes from, and how much fits where.

    Windows that are full grow no more; --kv-cache-dtype counts scales. No weights are needed.

    Example: twostroke kv llama-3.1-8b --len 8192 --users 50 --gpu h100 --kv-cache-dtype int8

    Args:
        model: A public model by name, a config.json or its folder, or pilot.
        length: Tokens of a conversation, prompt and output; by default 8,192, or the model's
            context where that is shorter.
        users: Conversations at once.
        gpu: One device by name, or a sheet of your own (.toml); by default all known ones.
        kv_cache_dtype: Format of keys and values (bf16, fp8, int8, int4).
        weight_dtype: Format of the weights; auto takes the checkpoint's.
        json_: Print JSON instead of tables.
    """
    from twostroke.model_spec.kv_arithmetic import kv_arithmetic
    from twostroke.model_spec.public_models import find_model
    from twostroke.simulator.cost.hardware_sheet import hardware_names, load_hardware

    require(1 <= users <= MAX_USERS, "--users", users, f"from 1 to {MAX_USERS:,}")
    spec = find_model(model)
    made = kv_arithmetic(spec, _length(spec, length), kv_cache_dtype)
    sheets = [load_hardware(name) for name in ([gpu] if gpu else hardware_names())]
    rooms = [_room(sheet, spec, made, users, weight_dtype) for sheet in sheets]
    if json_:
        print(json.dumps(_as_json(model, spec, made, users, rooms, weight_dtype), indent=1))
    else:
        _print_tables(model, spec, made, users, rooms, weight_dtype)


def _length(model: ModelSpec, given: int | None) -> int:
    """Tokens of a conversation. Raises ConfigError for more than the model's context."""
    context = model.context_length
    if given is None:
        return min(USUAL_LENGTH, context)
    require(1 <= given <= MAX_TOKENS, "--len", given, f"from 1 to {MAX_TOKENS:,}")
    if model.stated_length is not None and given > context:
        raise ConfigError(
            f"--len {given:,} is more than the model's context of {context:,} tokens",
            hint=f"give --len {context} or less; a config.json that stretches it is counted, too",
        )
    return given


def _room(
    sheet: HardwareSheet, model: ModelSpec, made: KVArithmetic, users: int, weight_dtype: str
) -> DeviceRoom:
    """The room on as few devices as hold the weights; the rest is counted as the simulator does."""
    from twostroke.simulator.deployment.memory import room_for_kv
    from twostroke.simulator.deployment.options import DeploymentOptions

    scheduler = SchedulerOptions(max_num_seqs=1).for_device(gpu=not sheet.is_cpu)
    format_ = None if weight_dtype == "auto" else weight_dtype
    devices = 1
    while devices <= (1 if sheet.is_cpu or not sheet.link_bandwidth else MOST_DEVICES):
        options = DeploymentOptions(gpu=sheet.name, tp=devices)
        weights = model.weight_bytes(format_, devices)
        cache = CacheConfig(cpu_memory_utilization=1.0)
        try:
            model.check_ranks(devices)
            room = room_for_kv(options, cache, scheduler, sheet, model, weights, 0, 0)
        except (InsufficientMemoryError, ConfigError):
            devices *= 2
            continue
        if sheet.is_cpu:  # the simulator stops where all requests have room
            room = sheet.memory_bytes - weights
        if fit := _conversations(model, made, room, devices, cache, scheduler):
            needed = devices * -(-users // fit)
            return DeviceRoom(sheet.name, devices, int(room * devices), fit, needed)
        devices *= 2
    return DeviceRoom(sheet.name, 0, 0, 0, _needed(sheet, model, made, users, format_))


def _needed(
    sheet: HardwareSheet, model: ModelSpec, made: KVArithmetic, users: int, format_: str | None
) -> int:
    """Devices over which the model would have to be spread, in whole machines where it is more.

    Each keeps buffers of collectives, as in the simulator. One alone does not do.
    """
    from twostroke.simulator.deployment.memory import room_for_kv
    from twostroke.simulator.deployment.options import DeploymentOptions

    if sheet.is_cpu:
        return 0
    options, cache = DeploymentOptions(gpu=sheet.name, tp=2), CacheConfig()
    scheduler = SchedulerOptions(max_num_seqs=1).for_device(gpu=True)
    try:
        room = room_for_kv(options, cache, scheduler, sheet, model, 0, 0, 0)
    except InsufficientMemoryError:
        return 0
    whole = model.weight_bytes(format_) + made.conversation_bytes * users
    count = max(2, math.ceil(whole / room))
    if count > MOST_DEVICES:
        return MOST_DEVICES * -(-count // MOST_DEVICES)
    return 1 << (count - 1).bit_length()


def _conversations(
    model: ModelSpec,
    made: KVArithmetic,
    room: float,
    devices: int,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
) -> int:
    """How many fit into ``room`` bytes of each device, in whole blocks, as a server counts them."""
    from twostroke.model_spec.layer_groups import group_layers

    size, state = cache.block_size, model.state_bytes(devices)
    members = group_layers(model)
    groups = KVGroups(members.windows, scheduler.max_num_batched_tokens)
    block_bytes = size * members.bytes_per_slot(model, made.format, devices)
    if not state:
        num_blocks = int(room // block_bytes) if block_bytes else 0
        return groups.num_requests(num_blocks, made.tokens, size)
    conversation = groups.most_blocks(made.tokens, size) * block_bytes + state
    return int(room // conversation)


def _as_json(
    name: str,
    model: ModelSpec,
    made: KVArithmetic,
    users: int,
    rooms: list[DeviceRoom],
    weight_dtype: str,
) -> dict[str, Any]:
    return {
        "model": name,
        "kv_cache_dtype": made.format,
        "bytes_per_token": round(made.bytes_per_token),
        "layers": [asdict(layers) for layers in made.layers],
        "tokens": made.tokens,
        "users": users,
        "bytes_per_conversation": made.conversation_bytes,
        "state_bytes_per_conversation": made.state_bytes,
        "bytes_of_users": made.conversation_bytes * users,
        "weight_bytes": model.weight_bytes(None if weight_dtype == "auto" else weight_dtype),
        "alternatives": [asdict(each) for each in made.alternatives],
        "devices": [asdict(room) for room in rooms],
    }


def _print_tables(
    name: str,
    model: ModelSpec,
    made: KVArithmetic,
    users: int,
    rooms: list[DeviceRoom],
    weight_dtype: str,
) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.print(_layer_table(made))
    states = f", {_size(made.state_bytes)} of it states" if made.state_bytes else ""
    whole = made.conversation_bytes
    console.print(
        f"{name}: {_size(made.bytes_per_token)} per token in {made.format};"
        f" {_size(whole)} for {made.tokens:,} tokens{states}; {_size(whole * users)} for"
        f" {users:,} of them\n",
        soft_wrap=True,
    )
    if made.alternatives:
        _print_alternatives(console, made)
    weights = model.weight_bytes(None if weight_dtype == "auto" else weight_dtype)
    title = f"beside {_size(weights)} of weights: conversations of {made.tokens:,} tokens"
    table = _table(title, ("device", "devices", "KV cache", "fit", f"{users:,} fit"))
    for room in rooms:
        would_do = f": {room.needed:,} would do" if room.needed else ""
        fits = "yes" if room.conversations >= users else f"no{would_do}"
        cells = (str(room.devices), _size(room.kv_bytes), f"{room.conversations:,}", fits)
        table.add_row(room.gpu, *(cells if room.devices else ("-", "-", "0", fits)))
    console.print(table)


def _layer_table(made: KVArithmetic) -> Table:
    columns = ("layers", "kind", "elements per token", "from", "bytes per token", "window")
    table = _table("what one layer caches", columns)
    for layers in made.layers:
        table.add_row(
            str(layers.count),
            layers.kind,
            f"{layers.elements:,}",
            layers.source,
            f"{layers.bytes_per_token:,g}",
            "all" if layers.window is None else f"{layers.window:,}",
        )
    return table


def _print_alternatives(console: Console, made: KVArithmetic) -> None:
    table = _table("what it would take with", ("", "a conversation", "of today's"))
    for each in made.alternatives:
        table.add_row(each.name, _size(each.bytes), f"{each.share:.3g}x")
    console.print(table)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or column == "from" else "right")
    return table


def _size(count: float) -> str:
    return format_decimal_bytes(count) if count >= 1e6 else f"{count:,g} bytes"
