"""Protects: the simulator's speed report gives verdicts as measured, and true digests."""

from __future__ import annotations

from benchmarks.simulator.speed_report import digests, report


def test_verdicts_follow_from_the_figures() -> None:
    def one(per_second: float, seconds: float = 1.0) -> dict[str, float]:
        return {"requests": 10, "steps": 20, "seconds": seconds, "per_second": per_second}

    here = {
        "environment": "somewhere",
        "speed": {
            "fast": {"stepping": one(1500), "jumping": one(12000)},
            "mooncake, slow": {"stepping": one(900), "jumping": one(700, seconds=61)},
        },
        "repeated": {"equal": ["a" * 64] * 3, "unequal": ["a" * 64, "a" * 64, "b" * 64]},
    }
    there = {
        "environment": "elsewhere",
        "loop_seconds": 1.5,
        "speed": {"there": {"stepping": one(999), "jumping": one(10000)}},
        "repeated": {"there too": ["c" * 64] * 3},
    }
    text = report({"results": here, "avx2": there})
    rows = {
        line.split(" | ")[0].strip("| "): line
        for line in text.splitlines()
        if line.startswith("| ")
    }
    assert rows["fast"] == "| fast | 20 | 1,500 | met | 12,000 | met |"
    assert rows["mooncake, slow"].count("**missed**") == 2
    assert "takes 61 s; asked were 60: **missed**" in text
    assert rows["there"] == "| there | 20 | 999 | **missed** | 10,000 | met |" and rows[
        "there too"
    ].endswith("| met |")
    assert text.count("additions") == 1 and "## Speed, avx2/simulator_speed.json" in text
    assert "elsewhere. 10,000,000 additions in a loop of Python's take this core 1.50 s." in text
    assert rows["equal"].endswith("| met |") and rows["unequal"].endswith("| **missed** |")


def test_reports_of_several_processes_are_equal_and_depend_on_the_seed() -> None:
    reports = digests(["--rate", "20"], requests=5)
    assert len(reports) == 3 and len(set(reports)) == 1
    assert digests(["--rate", "20", "--seed", "1"], requests=5)[0] != reports[0]
