"""Requests of the inspector itself: its page Next token asks for them, no user does.

They run like all others and are shown where one looks for them, but figures and choices that are
about users ("lately", "the newest") leave them out.
"""

from __future__ import annotations

from twostroke.observability.frames.columns import StepFrame

OWN_LABEL = "inspector"


def own_requests(frame: StepFrame) -> set[int]:
    """Name the ones that begin within a frame, as indices into its ids."""
    own = {name for note in frame.notes for name, labels in note.labels.items() if _is_own(labels)}
    return {index for index, name in enumerate(frame.ids) if name in own}


def _is_own(labels: dict[str, str]) -> bool:
    return OWN_LABEL in labels
