"""Protects: addresses are read as people write them, and none is open to others by mistake."""

from __future__ import annotations

import pytest

from twostroke.core.errors import ConfigError
from twostroke.core.network.address import Address, is_address
from twostroke.engine.workers.options import RouterOptions, WorkerOptions


@pytest.mark.parametrize(
    "text", ["127.0.0.1:80", "[::1]:8100", "gpu-7.example:1", "localhost:0", f"{63 * 'a'}.b.:1"]
)
def test_addresses_are_read_and_written(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8100",
        ":8100",
        "a:b",
        "a:65536",
        "::1:8",
        "a b:1",
        "[a]:1",
        "a..b:1",
        ".:1",
        f"{64 * 'a'}:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.7", "gpu-7", "127.evil.example"])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match="reached from other machines") as refused:
        WorkerOptions(listen=f"{host}:8100")
    assert "--token-file" in str(refused.value.hint)
    with pytest.raises(ConfigError, match="would not know this router"):
        _ = RouterOptions(worker=(f"{host}:8100",)).addresses
    WorkerOptions(listen=f"{host}:8100", token_file="token")
    assert RouterOptions(worker=(f"{host}:8100",), token_file="token").addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "127.8.8.8"])
def test_on_loopback_none_is(host: str) -> None:
    WorkerOptions(listen=f"{host}:8100")
    assert RouterOptions(worker=(f"{host}:8100",)).addresses


def test_a_router_has_workers_and_each_once() -> None:
    with pytest.raises(ConfigError, match="a router needs workers"):
        _ = RouterOptions().addresses
    with pytest.raises(ConfigError, match="names one worker twice"):
        RouterOptions(worker=("a:1", "a:1"))
