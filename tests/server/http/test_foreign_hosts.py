"""Pages of other sites do not reach a server on loopback, by no name and from no origin."""

from __future__ import annotations

import socket

import httpx
import pytest

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from twostroke.core.errors import ConfigError
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.server.http.foreign_hosts import needs_host_check
from twostroke.server.options import ServerOptions

PROMPT = {"prompt": "the dog"}
TWICE = b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n"
HOSTS = {
    "localhost": 200,
    "LOCALHOST:{port}": 200,
    "app.localhost:{port}": 200,
    "localhost.:{port}": 200,
    "127.0.0.1:{port}": 200,
    "127.8.9.1": 200,
    "[::1]:{port}": 200,
    "192.168.1.7:{port}": 200,
    "evil.example": 403,
    "evil.example:{port}": 403,
    "localhost.evil.example": 403,
    "127.0.0.1.evil.example": 403,
    "evil.example@localhost": 403,
    "localhost@evil.example": 403,
    "localhost/evil.example": 403,
    "evillocalhost": 403,
    "localhost:x": 403,
    "[evil": 403,
    "": 403,
}
ORIGINS = {
    "http://localhost:{port}": 200,
    "http://127.0.0.1:3000": 200,
    "https://[::1]": 200,
    "https://evil.example": 403,
    "http://evil.example:{port}": 403,
    "http://192.168.1.7": 403,
    "http://localhost.evil.example": 403,
    "null": 403,
    "": 403,
}


def test_only_a_name_of_this_machine_is_accepted_on_loopback() -> None:
    engine = ScriptedEngine()
    with running_server(engine, allowed_hosts=()) as url, httpx.Client(base_url=url) as client:
        port = str(client.base_url.port)
        statuses = {}
        for host in HOSTS:
            answer = client.get("/health", headers={"host": host.replace("{port}", port)})
            statuses[host] = answer.status_code
        assert statuses == HOSTS
        refused = client.post("/v1/completions", json=PROMPT, headers={"host": "evil.example"})
        assert refused.json()["error"]["code"] == "foreign_host"
        assert "'evil.example'. Hint: " in refused.json()["error"]["message"]
        assert refused.headers["x-request-id"].startswith("req-")
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5) as opened:
            opened.sendall(TWICE)
            assert opened.recv(100).startswith(b"HTTP/1.1 403")
    assert not engine.submitted


def test_pages_of_other_sites_cannot_send_either() -> None:
    """CORS alone only keeps them from reading: a form or a plain-text POST is sent all the same."""
    engine = ScriptedEngine()
    with running_server(engine, allowed_hosts=()) as url, httpx.Client(base_url=url) as client:
        port = str(client.base_url.port)
        statuses = {}
        for origin in ORIGINS:
            headers = {"origin": origin.replace("{port}", port)}
            statuses[origin] = client.get("/health", headers=headers).status_code
        assert statuses == ORIGINS
        refused = client.post(
            "/v1/completions", json=PROMPT, headers={"origin": "https://evil.example"}
        )
        assert refused.json()["error"]["code"] == "foreign_origin"
    assert not engine.submitted


def test_names_and_origins_that_were_given() -> None:
    origins = ("https://chat.example",)
    names: tuple[str, ...] = ("llm.example.org",)
    with (
        running_server(ScriptedEngine(), allowed_hosts=names, allowed_origins=origins) as url,
        httpx.Client(base_url=url, headers={"host": "LLM.example.org:8000"}) as client,
    ):
        page = {"origin": "https://chat.example"}
        assert client.get("/health").status_code == 200
        answer = client.get("/health", headers=page)
        assert answer.headers["access-control-allow-origin"] == page["origin"]
        # The server's own pages, behind a proxy that ends TLS.
        own = client.get("/health", headers={"origin": "https://llm.example.org"})
        assert own.status_code == 200
        for foreign in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            assert client.get("/health", headers=foreign).status_code == 403
    for names, host in ((("*",), "127.0.0.1"), ((), "0.0.0.0")):
        with running_server(ScriptedEngine(), allowed_hosts=names, host=host) as url:
            assert httpx.get(url + "/health", headers={"host": "any.example"}).status_code == 200


def test_the_check_comes_before_the_key() -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-secret",), requests_per_minute=9))
    with running_server(ScriptedEngine(), gateway=gateway, allowed_hosts=()) as url:
        answer = httpx.post(url + "/v1/completions", headers={"host": "evil.example"})
    assert (answer.status_code, "x-ratelimit-limit-requests" in answer.headers) == (403, False)


@pytest.mark.parametrize(
    ("host", "names", "checked"),
    [
        ("127.0.0.1", (), True),
        ("localhost", (), True),
        ("::1", (), True),
        ("0.0.0.0", (), False),
        ("0.0.0.0", ("llm.example.org",), True),
        ("127.0.0.1", ("*",), False),
    ],
)
def test_where_names_are_checked(host: str, names: tuple[str, ...], checked: bool) -> None:
    assert needs_host_check(ServerOptions(host=host, allowed_hosts=names)) is checked


@pytest.mark.parametrize("name", ["", "llm.example.org:80", "http://llm", "a/b", "*.example.org"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-hosts must be a name such as"):
        ServerOptions(allowed_hosts=(name,))
