"""Protects: a fleet's file takes what flags take, and says where something in it is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.server.running import ROOT
from twostroke.cli.serving import fleet_file
from twostroke.cli.serving.fleet_file import FleetFile, read_fleet
from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import read_annotation

WHOLE = """
[server]
port = 8765
allowed-hosts = ["a.example", "b.example"]
access-log = true
api-key = ["a-key-of-16-bytes"]
max_body_size = "1MiB"

[pools.chat]
model = "pilot"
replicas = 3
kv-cache-memory = "64MiB"
max-num-seqs = 7
enable-prefix-caching = false

[pools."org/coder:7b"]
model = "pilot-draft"
autoscale = "kv"
min-replicas = 0
max-replicas = 5
devices = ["cuda:1", "cuda:2"]
drain-timeout = 1.5
"""


def read(tmp_path: Path, text: str) -> FleetFile:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_fleet(path)


def test_keys_are_flags(tmp_path: Path) -> None:
    server, gateway, pools = read(tmp_path, WHOLE)
    assert (server.port, server.access_log, server.max_body_size) == (8765, True, 2**20)
    assert server.allowed_hosts == ("a.example", "b.example")
    assert gateway.api_key == ("a-key-of-16-bytes",)
    chat, coder = pools["chat"], pools["org/coder:7b"]
    assert (chat.num_at_first, chat.most) == (3, 3)
    assert chat.config.cache.kv_cache_memory == 64 * 2**20
    assert chat.config.scheduler.max_num_seqs == 7
    assert not chat.config.cache.enable_prefix_caching
    assert coder.config.model.model == "pilot-draft"
    assert (coder.num_at_first, coder.most, coder.options.drain_timeout) == (1, 5, 1.5)
    assert [coder.device_of(number) for number in range(3)] == ["cuda:1", "cuda:2", "cuda:1"]


def test_replicas_share_devices_and_cores(tmp_path: Path) -> None:
    _, _, pools = read(tmp_path, WHOLE)
    assert [plan.share for plan in pools.values()] == [1 / 3, 1 / 3]
    cores = max(1, (os.cpu_count() or 1) // 8)
    assert [plan.num_threads for plan in pools.values()] == [cores, cores]


def test_a_device_that_has_several_names_is_shared_by_all(tmp_path: Path) -> None:
    devices = ("auto", "cuda", "cuda:0", "cuda:1")
    tables = [f"[pools.p{n}]\nmodel = 'pilot'\ndevice = '{each}'" for n, each in enumerate(devices)]
    _, _, pools = read(tmp_path, "\n".join(tables))
    assert [plan.share for plan in pools.values()] == [1 / 3, 1 / 3, 1 / 3, 1.0]


def test_the_file_that_the_tree_has_is_one() -> None:
    pools = read_fleet(ROOT / "deploy" / "fleet.toml").pools
    assert [(name, plan.num_at_first) for name, plan in pools.items()] == [("pilot", 2)]
    apart = read_fleet(ROOT / "deploy" / "fleet-roles.toml")
    assert {name: list(plans) for name, plans in apart.models.items()} == {
        "pilot": ["pilot", "prompts"]
    }
    assert [plan.options.role for plan in apart.pools.values()] == ["decode", "prefill"]


@pytest.mark.parametrize("command", ["_server", "_pool"])
def test_every_switch_can_be_set_both_ways(tmp_path: Path, command: str) -> None:
    """An option that another forbids says so; none is taken for another key or type."""
    flags = fleet_file._flags_of(getattr(fleet_file, command))
    switches = [key for key, each in flags.items() if bool in read_annotation(each).kinds]
    assert len(switches) > 3
    for key in switches:
        for value in ("true", "false"):
            table = "[server]\n{}\n[pools.a]\n" if command == "_server" else "[pools.a]\n{}\n"
            try:
                read(tmp_path, table.format(f"{key} = {value}"))
            except ConfigError as error:
                assert not re.search("unknown|must be true|no key", error.message), error.message


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "has no pools", "[pools.chat]"),
        ("pools = 3", "has no pools", "[pools.chat]"),
        ("[pools]\nchat = 3", "pools.chat is no table", "[pools.chat]"),
        ("server = 1\n[pools.a]", "server is no table", "[pools.chat]"),
        ("[pool.chat]", "there is no key 'pool'", "did you mean pools?"),
        ("[pools.chat]\nreplcas = 2", "[pools.chat]: there is no key 'replcas'", "replicas?"),
        ("[pools.chat]\nport = 1", "there is no key 'port'", "model"),
        ("[server]\nprot = 1\n[pools.a]", "[server]: there is no key 'prot'", "mean port?"),
        ("[pools.a]\nreplicas = true", "replicas must be a text or a number", "--help"),
        ("[pools.a]\nreplicas = 2024-01-01", "replicas must be a text or a number", "--help"),
        ("[pools.a]\nreplicas = [1]", "replicas must be a text or a number", "--help"),
        ('[pools.a]\nreplicas = "x"', 'unable to convert "x" into int', "--help"),
        (f"[pools.a]\nreplicas = 0x{'f' * 5000}", "replicas is too large a number", "--help"),
        ("[pools.a]\nreplicas = 0", "replicas must be from 1 to 64, got 0", "from 1 to 64"),
        ("[pools.a]\nlora = [true]", "lora must be a list of texts", "--help"),
        ("[pools.a]\ndevices = [{}]", "devices must be a list of texts", "--help"),
        ('[server]\naccess-log = "yes"\n[pools.a]', "access-log must be true or false", "--help"),
        ("[server]\nport = 70000\n[pools.a]", "port must be from 0 to 65535", "port from 0"),
        ("[server]\nengine-process = true\n[pools.a]", "is not for the server of a fleet", "all"),
        ('[server]\nidle-unload = "5"\n[pools.a]', "idle-unload is not for", "autoscale"),
        ('[pools."a b"]', "a pool cannot be called 'a b'", "letters"),
        ("[pools.a]\nnum-gpus = 1", "num-gpus means nothing without Ray", "up ray local"),
        ("[pools.a]\nnum-cpus = 0", "num-cpus must be from 0.001", "from 0.001"),
        ("[pools.a]\nnum-gpus = 1.5", "num-gpus must be 0, a share", "whole number up to 64"),
        ("[pools.a]\nmin-replicas = 2", "min-replicas means nothing without autoscale", "kv"),
        ('[pools.a]\nautoscale = "cpu"', 'invalid value "cpu" for autoscale', "--help"),
        ("[pools.a]\nkv-events = true", "kv-events is of one engine", "twostroke serve"),
        ('[pools.a]\nrecord = "x"', "record is of one engine", "twostroke serve"),
        ('[pools.a]\nkv-cache-memory = "lots"', "'lots' is not a size", "512MiB"),
        ('[pools.a]\nrole = "prefil"', 'invalid value "prefil" for role', "--help"),
        ('[pools.a]\nrole = "prefill"', "pool a has role prefill, and no pool of a has", "decode"),
        ('[pools.a]\nrole = "decode"', "pool a has role decode, and no pool of a has", "prefill"),
        ('[pools.a]\nprefill-memory = "1GiB"', "means nothing without role prefill", "leave"),
        ('[pools.a]\nserved-model-name = "a b"', "served-model-name must be a name", "letters"),
        (
            '[pools.a]\nrole = "decode"\nautoscale = "kv"\nmin-replicas = 0',
            "min-replicas 0 is not for a pool of role decode",
            "1 or more",
        ),
        (
            '[pools.a]\nrole = "decode"\nenable-prefix-caching = false\n'
            '[pools.b]\nrole = "prefill"\nserved-model-name = "a"\n'
            "enable-prefix-caching = false",
            "pool a has role decode, which needs the prefix cache",
            "no-enable-prefix-caching",
        ),
        (
            '[pools.a]\nrole = "decode"\ntensor-parallel-size = 2\n'
            '[pools.b]\nrole = "prefill"\nserved-model-name = "a"\ntensor-parallel-size = 2',
            "pool a has role decode, which does not work with tensor-parallel-size",
            "leave one of them out",
        ),
        (
            '[pools.a]\nrole = "decode"\n'
            '[pools.b]\nrole = "prefill"\nserved-model-name = "a"\nkv-cache-dtype = "int8"',
            "pools a and b serve one model, a, and have another kv-cache-dtype: auto and int8",
            "give both the same kv-cache-dtype, or another served-model-name",
        ),
        (  # whatever stands between them
            '[pools.a]\nrole = "decode"\n[pools.b]\nserved-model-name = "a"\n'
            '[pools.c]\nrole = "prefill"\nserved-model-name = "a"\nkv-transfer = "nixl"',
            "pools a and c serve one model, a, and have another kv-transfer: tcp and nixl",
            "give both the same kv-transfer",
        ),
        ("[pools.a]\nmodel = pilot", "is no TOML", "[pools.chat]"),
        ("a = " + "[" * 5000, "is no TOML", "[pools.chat]"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape("fleet.toml")) as caught:
        read(tmp_path, text)
    assert message in caught.value.message and hint in (caught.value.hint or "")


def test_ray_gives_replicas_their_devices(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    for wrong in ('devices = ["cuda:0"]', 'device = "cuda:1"'):
        path.write_text(f"[pools.a]\n{wrong}\n")
        assert read_fleet(path).pools["a"].num_at_first == 1
        with pytest.raises(ConfigError, match="Ray gives each its own"):
            read_fleet(path, by_ray=True)
    for cpus, gpus in ((2, 4), (0.5, 0.25), (1.5, 0)):
        path.write_text(f"[pools.a]\nnum-cpus = {cpus}\nnum-gpus = {gpus}\n")
        options = read_fleet(path, by_ray=True).pools["a"].options
        assert (options.num_cpus, options.num_gpus) == (cpus, gpus)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[pools.a]\nmodel = '\x00'", b"x" * 2**21])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read_fleet(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_fleet(tmp_path)
