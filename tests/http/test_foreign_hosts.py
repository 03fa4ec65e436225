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
from twostroke.http.foreign_hosts import OwnNames
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
    "local\thost": 403,
    "localhost\t": 403,
    "localhost:80 80": 403,
    "localho\u017ft": 403,
    "0.0.0.0:{port}": 403,
    "[::]:{port}": 403,
    "[::ffff:0.0.0.0]": 403,
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
    "http://local\thost": 403,
    "http://0.0.0.0:{port}": 403,
    "null": 403,
    "": 403,
}


def test_only_a_name_of_this_machine_is_accepted_on_loopback() -> None:
    engine = ScriptedEngine()
    with running_server(engine, allowed_hosts=()) as url, httpx.Client(base_url=url) as client:
        port = str(client.base_url.port)
        statuses = {}
        for host in HOSTS:
            name = host.replace("{port}", port).encode()
            statuses[host] = _status(int(port), b"host: " + name)
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
            name = origin.replace("{port}", port).encode()
            statuses[origin] = _status(int(port), b"host: localhost", b"origin: " + name)
        assert statuses == ORIGINS
        refused = client.post(
            "/v1/completions", json=PROMPT, headers={"origin": "https://evil.example"}
        )
        assert refused.json()["error"]["code"] == "foreign_origin"
    assert not engine.submitted


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "llm.example.org"])
def test_what_a_page_only_fetches_is_no_way_in_either(host: str) -> None:
    """Images, scripts and frames have no ``Origin``: thousands of them kept a server busy."""
    link = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    image = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    frame = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    # Another port of this machine is the same site, as is another name below example.org.
    near = 403 if host == "llm.example.org" else 200
    expected = {
        "cross-site": [403, 403, 200],
        "same-site": [near, near, 200],
        "something new": [403, 403, 200],
        "same-origin": [200, 200, 200],
        "none": [200, 200, 200],
    }
    with (
        running_server(ScriptedEngine(), allowed_hosts=("llm.example.org",)) as url,
        httpx.Client(base_url=url, headers={"host": host}) as client,
    ):
        for site, statuses in expected.items():
            found = [
                client.get("/", headers={"sec-fetch-site": site, **kind}).status_code
                for kind in (image, frame, link)
            ]
            assert found == statuses, site
        form = client.post("/api/chat", headers={"sec-fetch-site": "cross-site", **link})
        assert form.json()["error"].startswith("pages of other sites may not call this server")
        assert client.get("/").status_code == 200


def test_a_page_that_was_named_may_fetch() -> None:
    page = "https://chat.example"
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": page}
    client = ScriptedEngine()
    with running_server(client, allowed_hosts=(), allowed_origins=(page,)) as url:
        assert httpx.get(url + "/v1/models", headers=headers).status_code == 200
        del headers["origin"]
        assert httpx.get(url + "/v1/models", headers=headers).status_code == 403


def _status(port: int, *lines: bytes) -> int:
    """Of a request whose headers no client library has looked at."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as opened:
        opened.sendall(b"\r\n".join([b"GET /health HTTP/1.1", *lines, b"", b""]))
        return int(opened.recv(100).split()[1])


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
    assert OwnNames(host=host, allowed_hosts=names).need_check() is checked


@pytest.mark.parametrize("name", ["", "llm.example.org:80", "http://llm", "a/b", "*.example.org"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-hosts must be a name such as"):
        ServerOptions(allowed_hosts=(name,))
