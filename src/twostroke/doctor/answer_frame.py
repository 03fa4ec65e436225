"""``python -m twostroke.doctor.answer_frame``: diagnoses for the page Doctor."""

from __future__ import annotations

from typing import Any

from twostroke.core.targets import parse_targets
from twostroke.doctor.diagnose import diagnose
from twostroke.doctor.json_text import diagnosis_fields
from twostroke.doctor.live import events_of
from twostroke.doctor.window import make_window, settings_of
from twostroke.questions.answering import answer_lines
from twostroke.questions.foresight import AskedDiagnosis


def diagnose_frame(asked: AskedDiagnosis) -> dict[str, Any]:
    """What ``twostroke doctor --json`` prints of these steps.

    Raises:
        ConfigError: No request begins in them, or they are too few.
    """
    events = events_of(asked.frame, asked.num_blocks)
    window = make_window(asked.name, events, (), settings_of(asked.configuration))
    return diagnosis_fields(
        diagnose([window], [(target, None) for target in parse_targets(asked.targets)])
    )


if __name__ == "__main__":
    answer_lines(AskedDiagnosis, diagnose_frame)
