"""Protects: advice can be typed, each flag has its own, and verdicts say whose they are."""

from __future__ import annotations

from io import StringIO

import pytest

from benchmarks.doctor.simulated_faults import SIMULATED_FAULTS
from twostroke.core.targets import parse_targets
from twostroke.doctor.cause import Cause
from twostroke.doctor.diagnose import diagnose, proven_first
from twostroke.doctor.figures import Change, Figure
from twostroke.doctor.json_text import diagnosis_fields
from twostroke.doctor.levers import Treatment
from twostroke.doctor.machine import model_findings
from twostroke.doctor.proof import Tried, TriedLever, _sort
from twostroke.doctor.replayed import Setting
from twostroke.doctor.report import print_diagnosis
from twostroke.model_spec.public_models import find_model

SOUND = next(fault for fault in SIMULATED_FAULTS if fault.name == "nothing wrong")


def helping(command: str, saved: float, cause: str = "token-budget") -> TriedLever:
    after = 1 - saved
    change = Change(Figure("ttft", 95), 1.0, after, after, after, saved)
    return TriedLever(cause, Treatment(command, Setting()), change, [], "helps")


def test_each_flag_has_its_own_advice() -> None:
    """Two flags to leave out were taken for two values of one: only the mildest was told."""
    proofs = [
        helping("--max-num-batched-tokens 512", 0.5),
        helping("--max-num-batched-tokens 1024", 0.51),
        helping("leave out --max-prefill-chunk", 0.4),
        helping("leave out --speculation", 0.39, "speculation"),
    ]
    tried = Tried()
    _sort(tried, proofs, ["token-budget", "speculation"])
    assert [proof.lever.command for proof in tried.advice] == [
        "--max-num-batched-tokens 512",
        "leave out --max-prefill-chunk",
        "leave out --speculation",
    ]


@pytest.mark.parametrize(("saved", "first"), [(0.4, "token-budget"), (0.2, "host")])
def test_a_cause_that_a_lever_proves_goes_before_a_smaller_share(saved: float, first: str) -> None:
    """The host's 24 % of all time came first where a budget made the slowest wait 40 % longer."""
    causes = [Cause("host", 0.24, 2.4), Cause("token-budget", 0.2, 2.0), Cause("idle", 0.5, 5.0)]
    tried = Tried(advice=[helping("--max-num-batched-tokens 512", saved)])
    assert proven_first(causes, tried)[0].name == first
    assert proven_first(causes, Tried()) == causes
    # What has a lever of its own that helps less was found to be the cause by its share.
    causes[0] = Cause("kv-blocks", 0.24, 2.4)
    assert proven_first(causes, tried)[0].name == "kv-blocks"
    # Nor is a replica that is down, or a call that was refused, a share of time to compare with.
    for name in ("replica-down", "early-refusal", "rate-limits"):
        causes[0] = Cause(name, 0.24, 0.0)
        assert proven_first(causes, tried)[0].name == name


@pytest.mark.parametrize(
    ("name", "served"), [("llama-3.1-8b", "CHECKPOINT"), ("./my-model", "./my-model")]
)
def test_a_model_by_its_public_name_is_served_from_a_checkpoint(name: str, served: str) -> None:
    """``twostroke serve llama-3.1-8b`` finds no weights: the name is the planner's."""
    fits, _ = model_findings(name, find_model("llama-3.1-8b"), 12 << 30, 1e10)
    assert not fits.is_good
    assert fits.command == f"twostroke serve {served} --quantization int8"


def test_a_target_that_only_the_server_saw_missed() -> None:
    (target,) = parse_targets(["ttft=p95:9"])
    (window,) = SOUND.windows()
    window.age = 90.0
    found = diagnose([window], [(target, True)], proof=False)
    text = StringIO()
    print_diagnosis(found, text)
    assert found.is_missed
    assert "target ttft=p95:9: MISSED by the server's own count; here it is" in text.getvalue()
    assert "the last one ended 90 s ago" in text.getvalue().splitlines()[0]
    (values,) = diagnosis_fields(found)["targets"]
    assert values["missed"] and values["by_the_servers_count_only"]
