"""Protects: a server's log is for its operator, and a client that does not read shows."""

from __future__ import annotations

import json
import socket
import time

from tests.server.batches.batch_calls import begin, ended, lines, openai_client
from tests.server.running import running_process
from twostroke.server.options import ServerOptions
from twostroke.server.process import listen


def test_a_batch_does_not_fill_the_log() -> None:
    """Each line of it wrote `INFO httpx: HTTP Request: POST http://batch/...`."""
    options = {"port": 0, "served_model_name": ["scripted"]}
    with running_process("-m", "tests.server.serve_scripted", json.dumps(options)) as server:
        with openai_client(server.url()) as api:
            batch = ended(api, begin(api, lines(3)))
        assert (batch.status, batch.request_counts.total) == ("completed", 3)
    assert "httpx" not in server.stderr


def test_the_kernel_keeps_little_of_what_a_client_does_not_take() -> None:
    """4 MB otherwise: a whole answer would count as read, and nothing would end its client."""
    with (
        listen(ServerOptions(port=0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            taken, until = 0, time.monotonic() + 0.5
            while time.monotonic() < until:
                try:
                    taken += connection.send(b"x" * 250)
                except BlockingIOError:
                    time.sleep(0.01)
            assert 0 < taken < 500_000
            assert client.recv(10) == b"x" * 10
