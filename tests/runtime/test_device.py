"""How much memory there is, where control groups limit it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from twostroke.core.operator import host_memory
from twostroke.runtime import device


def limit(group: Path, most: str, used: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 10\n")


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("0::/\n", 1000 - 300 + 10),  # in a container, whose own group is the root of what it sees
        ("0::/service/worker\n", 500 - 200 + 10),  # limited by the group around it
        ("0::/service/tight\n", 0),  # over its limit already
        ("0::/user/session\n", 1000 - 300 + 10),
        ("1:memory:/old\n", 1000 - 300 + 10),
    ],
)
def test_the_tightest_limit_on_the_way_up_counts(
    own: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd and Slurm limit a group below the root, and its limit sizes the KV cache."""
    groups = tmp_path / "cgroup"
    limit(groups, "1000", 300)
    limit(groups / "service", "500", 200)
    limit(groups / "service" / "worker", "max", 100)
    limit(groups / "service" / "tight", "50", 70)
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(host_memory, "GROUPS_ROOT", groups)
    monkeypatch.setattr(host_memory, "OWN_GROUP_FILE", tmp_path / "own")
    assert device.free_memory(torch.device("cpu")) == expected
