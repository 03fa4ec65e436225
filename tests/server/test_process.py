"""Protects: a server's log has what concerns its operator, not a line for each of its own calls."""

from __future__ import annotations

import json

from tests.server.batches.batch_calls import begin, ended, lines, openai_client
from tests.server.running import running_process


def test_a_batch_does_not_fill_the_log() -> None:
    """Each line of it wrote `INFO httpx: HTTP Request: POST http://batch/...`."""
    options = {"port": 0, "served_model_name": ["scripted"]}
    with running_process("-m", "tests.server.serve_scripted", json.dumps(options)) as server:
        with openai_client(server.url()) as api:
            batch = ended(api, begin(api, lines(3)))
        assert (batch.status, batch.request_counts.total) == ("completed", 3)
    assert "httpx" not in server.stderr
