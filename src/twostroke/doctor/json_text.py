"""A diagnosis as JSON: all that the text says, for scripts; times in seconds."""

from __future__ import annotations

import json
from typing import Any

from twostroke.doctor.diagnose import Diagnosis
from twostroke.doctor.figures import Change
from twostroke.doctor.proof import TriedLever


def diagnosis_fields(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain values."""
    tried = diagnosis.tried
    return {
        "windows": [
            {
                "name": window.name,
                "seconds": window.seconds,
                "steps": len(window.events),
                "requests": len(window.requests),
                "ended_ago": window.age,
            }
            for window in diagnosis.windows
        ],
        "figures": {figure.name: value for figure, value in diagnosis.figures},
        "targets": [
            {
                "target": v.target.text,
                "value": v.value,
                "missed": v.missed,
                "by_the_servers_count_only": v.server_only,
            }
            for v in diagnosis.verdicts
        ],
        "causes": [
            {
                "cause": cause.name,
                "title": cause.title,
                "share": cause.share,
                "seconds": cause.seconds,
                "evidence": cause.evidence,
                "is_floor": cause.is_floor,
            }
            for cause in diagnosis.causes
        ],
        "ttft_spike": diagnosis.spike,
        "advice": [_proof_fields(proof) for proof in tried.advice],
        "refused": [_proof_fields(proof) for proof in tried.refused],
        "look_at": diagnosis.elsewhere,
        "time": {part.value: seconds for part, seconds in diagnosis.parts.items()},
        "replay": {
            "requests": tried.num_requests,
            "step_time_error": tried.seconds_fit,
            "figure": tried.figure.name,
            "replayed": tried.replayed[0],
            "recorded": tried.replayed[1],
        },
    }


def diagnosis_json(diagnosis: Diagnosis) -> str:
    return json.dumps(diagnosis_fields(diagnosis), indent=1)


def _proof_fields(proof: TriedLever) -> dict[str, Any]:
    return {
        "change": proof.lever.command,
        "cause": proof.cause,
        "verdict": proof.verdict,
        "note": proof.lever.note,
        "effects": [_change_fields(change) for change in (proof.main, *proof.others)],
    }


def _change_fields(change: Change) -> dict[str, Any]:
    return {
        "figure": change.figure.name,
        "before": change.before,
        "after": change.after,
        "low": change.low,
        "high": change.high,
    }
