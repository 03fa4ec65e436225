"""Protects: what the machine is looked at for before traffic, each with what changes it."""

from __future__ import annotations

import pytest

from twostroke.doctor import machine
from twostroke.doctor.machine import check_machine, findings_fields


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied for a second."""
    monkeypatch.setattr(machine, "copy_bandwidth", lambda threads: 1e9)


@pytest.mark.usefixtures("quick")
def test_all_that_serving_wants_is_looked_at() -> None:
    stages: list[str] = []
    findings = check_machine("pilot", lambda what, *_: stages.append(what))
    assert [finding.name for finding in findings] == [
        "cores",
        "load of the last minute",
        "instruction set of the kernels",
        "threads",
        "memory bandwidth",
        "time stolen by other machines",
        "transparent huge pages",
        "shared memory (/dev/shm)",
        "open files",
        "pilot fits",
        "pilot, one request",
    ]
    for finding in findings[:-1]:
        assert finding.measured and finding.expected
        assert finding.is_good or finding.command
    assert stages == ["measuring bandwidth"]
    assert len(check_machine()) == len(findings) - 2


@pytest.mark.usefixtures("quick")
def test_what_is_low_says_what_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setattr(machine, "_read", lambda path: "always madvise [never]")
    low = {each.name: each.command for each in check_machine() if not each.is_good}
    assert low["threads"] == "unset OMP_NUM_THREADS"
    assert "transparent_hugepage" in low["transparent huge pages"]
    assert "numactl" in low["memory bandwidth"]


@pytest.mark.usefixtures("quick")
def test_values_say_what_the_text_says() -> None:
    findings = check_machine()
    for finding, values in zip(findings, findings_fields(findings), strict=True):
        assert values["name"] == finding.name and values["is_good"] == finding.is_good
        assert {"measured", "expected", "command"} < set(values)
