"""One key attacks a real server: another key's requests are all answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from benchmarks.attacks import ATTACKS
from benchmarks.neighbour import join, measure_phases
from benchmarks.server import running_server
from twostroke.gateway.keys import given_keys

LIGHT_KEY, HOSTILE_KEY = "sk-light", "sk-hostile"
FLAGS = {
    "--policy": "fair",
    # Far above what the light key waits: what refuses one of its calls has predicted wrongly.
    "--admission": "predicted",
    "--target": f"ttft=p95:5,key={given_keys([LIGHT_KEY])[0].name}",
    "--kv-cache-memory": "64MiB",
    "--max-model-len": "2048",
    "--max-num-seqs": "32",
    "--max-num-batched-tokens": "512",
    "--max-logprobs-memory": "256MiB",
    "--api-key": LIGHT_KEY,
}
SECONDS = 1.0


def test_no_request_of_a_neighbour_is_refused(tmp_path: Path) -> None:
    """A second of each attack; how it is delayed is for `benchmarks.soak` to judge."""
    flags = [part for pair in FLAGS.items() for part in pair]
    with running_server(
        "pilot-draft", tmp_path / "server.log", *flags, "--api-key", HOSTILE_KEY
    ) as server:
        names = ["", *ATTACKS]
        phases = asyncio.run(
            measure_phases(server.url, LIGHT_KEY, HOSTILE_KEY, names, [SECONDS] * len(names))
        )
        assert server.process.poll() is None
    for phase in phases:
        assert phase.ttfts and not phase.refused and not phase.failed, phase
    assert all(phase.num_sent for phase in phases[1:]), "an attack was never sent"
    answered: Mapping[str, int] = join(phases).attack_statuses
    assert not [status for status in answered if status.startswith("5")], answered
