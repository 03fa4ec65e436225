"""X-Forwarded-For is believed from proxies that were named, and from no others."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.server.running import running_process, wait_until
from twostroke.core.errors import ConfigError
from twostroke.server.options import ServerOptions

CLIENT = "203.0.113.9"


@pytest.mark.parametrize(
    ("proxies", "sent", "shown"),
    [
        ([], CLIENT, "127.0.0.1"),
        (["10.0.0.0/8"], CLIENT, "127.0.0.1"),
        (["127.0.0.0/8"], CLIENT, CLIENT),
        (["127.0.0.1", "10.0.0.7"], f"198.51.100.1, {CLIENT}, 10.0.0.7", CLIENT),
        (["*", "10.0.0.7"], CLIENT, CLIENT),
    ],
)
def test_what_the_access_log_shows(
    proxies: list[str], sent: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says: uvicorn alone would believe all that comes from loopback."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    options: dict[str, object] = {"port": 0, "access_log": True}
    if proxies:
        options["forwarded_allow_ips"] = proxies
    with running_process("-m", "tests.server.serve_scripted", json.dumps(options)) as server:
        httpx.get(server.url() + "/version", headers={"x-forwarded-for": sent})
        wait_until(lambda: '"GET /version' in server.stderr)
    line = next(line for line in server.stderr.splitlines() if '"GET /version' in line)
    assert f' {shown} "GET' in line


@pytest.mark.parametrize("value", ["", "proxy.example", "10.0.0.1/8", "10.0.0.300", "10.0.0.7:80"])
def test_what_is_no_proxy_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="--forwarded-allow-ips must be an address such as"):
        ServerOptions(forwarded_allow_ips=(value,))
