"""HTTPS on loopback with self-made certificates: what it serves, refuses, survives and renews."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from tests.server.running import ServerProcess, running_process, wait_until
from twostroke.core.errors import ConfigError
from twostroke.server.options import ServerOptions
from twostroke.server.process import server_tls

PASSWORD = "two strokes"
BODY = {"prompt": "the dog", "max_tokens": 8}


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Self-signed certificates for loopback, by name."""
    folder = tmp_path_factory.mktemp("tls")
    return {name: _make_pair(folder, name) for name in ("server", "renewed", "client", "locked")}


def _make_pair(folder: Path, name: str) -> Pair:
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    protection = ["-passout", f"pass:{PASSWORD}"] if name == "locked" else ["-nodes"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", *protection, "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return pair


@contextmanager
def https_server(pair: Pair, **options: Any) -> Iterator[ServerProcess]:
    settings = {"ssl_certfile": str(pair.certificate), "ssl_keyfile": str(pair.key), "port": 0}
    argument = json.dumps({**settings, **options})
    with running_process("-m", "tests.server.serve_scripted", argument) as server:
        yield server


def trusting(pair: Pair, client: Pair | None = None) -> ssl.SSLContext:
    """A client's context that trusts a server's certificate, and shows one of its own."""
    context = ssl.create_default_context(cafile=pair.certificate)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("https://").partition(":")
    return host, int(port)


def answer_to_plain_http(url: str) -> bytes:
    """What a client without TLS gets until the connection ends."""
    with socket.create_connection(address_of(url), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


def test_serves_https_streams_and_drains(pairs: dict[str, Pair]) -> None:
    pair = pairs["server"]
    with https_server(pair) as server, httpx.Client(verify=trusting(pair)) as client:
        url = server.url()
        assert url.startswith("https://")
        assert client.post(url + "/v1/completions", json=BODY).status_code == 200
        with client.stream("POST", url + "/v1/completions", json={**BODY, "stream": True}) as told:
            assert list(told.iter_lines())[-2] == "data: [DONE]"
        command = next(line for line in server.stderr.splitlines() if line.startswith("curl"))
        shown = subprocess.run(["sh", "-c", command + " -s"], capture_output=True, text=True)
        assert shown.returncode == 0 and shown.stdout.rstrip().endswith("data: [DONE]")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.stderr


def test_large_bodies_and_answers_come_through_whole(pairs: dict[str, Pair]) -> None:
    """Bodies of many records of TLS, both ways."""
    pair = pairs["server"]
    with https_server(pair) as server, httpx.Client(verify=trusting(pair)) as client:
        url = server.url()
        body = {"prompt": "the dog " * 100_000, "return_token_strs": True}
        count = client.post(url + "/tokenize", json=body, timeout=30).json()["count"]
        assert count > 100_000
        assert client.post(url + "/v1/completions", content=b"x" * 2**23).status_code == 413


def test_plain_http_and_silence_do_not_hang(pairs: dict[str, Pair]) -> None:
    """A client without TLS is cut off at once, a silent one in time, and others are served."""
    pair = pairs["server"]
    with https_server(pair, client_timeout=1.0) as server:
        url = server.url()
        began = time.monotonic()
        assert not answer_to_plain_http(url).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - began < 1.0
        with socket.create_connection(address_of(url), timeout=10) as silent:
            assert httpx.get(url + "/health", verify=trusting(pair)).status_code == 200
            assert silent.recv(1) == b""
        assert "Traceback" not in server.stderr


def test_a_client_that_takes_nothing_is_cut_off(pairs: dict[str, Pair]) -> None:
    """As without TLS, so that its request gives its blocks back."""
    pair = pairs["server"]
    script = {"pieces": ["the quick brown fox " * 500] * 8, "endless": True}
    limits = {"client_timeout": 0.5, "min_client_rate": 2**20}
    body = json.dumps({"prompt": "the dog", "stream": True, "max_tokens": 8}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with https_server(pair, script=script, **limits) as server, socket.socket() as plain:
        address, process = address_of(server.url()), psutil.Process(server.process.pid)

        def is_connected() -> bool:
            return any(each.raddr == plain.getsockname() for each in process.net_connections())

        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(address)
        with trusting(pair).wrap_socket(plain, server_hostname="localhost") as opened:
            plain = opened
            opened.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            assert opened.recv(15) == b"HTTP/1.1 200 OK" and is_connected()
            wait_until(lambda: not is_connected())


def test_strangers_trust_no_self_made_certificate(pairs: dict[str, Pair]) -> None:
    with https_server(pairs["server"]) as server, pytest.raises(httpx.ConnectError):
        httpx.get(server.url() + "/health")


def test_client_certificates(pairs: dict[str, Pair]) -> None:
    """With 2 no request comes through without one, and no other's is taken."""
    pair, known = pairs["server"], pairs["client"]
    authorities = {"ssl_ca_certs": str(known.certificate), "ssl_cert_reqs": 2}
    with https_server(pair, **authorities) as server:
        url = server.url() + "/health"
        assert httpx.get(url, verify=trusting(pair, known)).status_code == 200
        for other in (None, pairs["renewed"]):
            with pytest.raises(httpx.TransportError):
                httpx.get(url, verify=trusting(pair, other))


def test_a_renewed_certificate_is_taken_up(pairs: dict[str, Pair], tmp_path: Path) -> None:
    """Without a restart; a broken one is named in the log, and the former stays."""
    used = Pair(tmp_path / "used.pem", tmp_path / "used.key")
    for source, target in zip(pairs["server"], used):
        shutil.copy(source, target)
    with https_server(used, enable_ssl_refresh=True) as server:
        url = server.url() + "/health"
        used.key.write_text("no key")
        wait_until(lambda: "the former certificate stays" in server.stderr)
        assert httpx.get(url, verify=trusting(pairs["server"])).status_code == 200
        for source, target in zip(pairs["renewed"], used):
            shutil.copy(source, target)

        def is_renewed() -> bool:
            try:
                return httpx.get(url, verify=trusting(pairs["renewed"])).status_code == 200
            except httpx.ConnectError:
                return False

        wait_until(is_renewed)


def options_of(certificate: Path, key: Path | None = None, **others: Any) -> ServerOptions:
    return ServerOptions(
        ssl_certfile=str(certificate), ssl_keyfile=None if key is None else str(key), **others
    )


def test_wrong_files_are_said_at_start(pairs: dict[str, Pair], tmp_path: Path) -> None:
    """Each with its flag; an encrypted key opens no question on the terminal."""
    pair, locked, missing = pairs["server"], pairs["locked"], tmp_path / "missing.pem"
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    refused = [
        (options_of(missing, pair.key), f"--ssl-certfile {missing}: no such file"),
        (options_of(pair.certificate, missing), f"--ssl-keyfile {missing}: no such file"),
        (options_of(wrong, pair.key), f"--ssl-certfile {wrong} holds no certificate"),
        (options_of(pair.certificate, wrong), f"no private key in {wrong}"),
        (options_of(pair.certificate), f"no private key in {pair.certificate}"),
        (options_of(pair.certificate, pairs["client"].key), "is not that of the certificate"),
        (options_of(*locked), f"the key in {locked.key} is encrypted"),
        (options_of(*locked, ssl_keyfile_password="no"), f"--ssl-keyfile {locked.key}: "),
        (options_of(*pair, ssl_ciphers="MD5-OF-OLD"), "--ssl-ciphers 'MD5-OF-OLD': no such"),
        (
            options_of(*pair, ssl_ca_certs=str(wrong), ssl_cert_reqs=2),
            f"--ssl-ca-certs {wrong}: ",
        ),
    ]
    for options, message in refused:
        with pytest.raises(ConfigError) as caught:
            server_tls(options)
        assert message in caught.value.message and caught.value.hint, message
    assert server_tls(options_of(*locked, ssl_keyfile_password=PASSWORD)) is not None
    assert server_tls(ServerOptions()) is None


def test_unreadable_key(pairs: dict[str, Pair], tmp_path: Path) -> None:
    key = tmp_path / "own.key"
    shutil.copy(pairs["server"].key, key)
    key.chmod(0)
    if os.access(key, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ConfigError, match=r"own\.key: Permission denied"):
        server_tls(options_of(pairs["server"].certificate, key))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ssl_keyfile": "k.pem"}, "--ssl-keyfile means nothing without --ssl-certfile"),
        ({"enable_ssl_refresh": True}, "--enable-ssl-refresh means nothing without"),
        ({"ssl_certfile": "c.pem", "ssl_cert_reqs": 3}, "--ssl-cert-reqs must be 0, 1 or 2"),
        ({"ssl_certfile": "c.pem", "ssl_cert_reqs": 2}, "without --ssl-ca-certs"),
        ({"ssl_certfile": "c.pem", "ssl_ca_certs": "a.pem"}, "without --ssl-cert-reqs"),
    ],
)
def test_flags_that_mean_nothing_alone(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerOptions(**fields)
    assert message in caught.value.message
