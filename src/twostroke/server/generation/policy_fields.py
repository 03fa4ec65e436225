"""Fields of a request that only some scheduling policies read."""

from __future__ import annotations

from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest


def check_policy_fields(config: SchedulerConfig, request: GenerationRequest) -> None:
    """Raise ``InvalidRequestError`` if a field would have no effect under the server's policy."""
    if request.priority and config.policy != "priority":
        raise InvalidRequestError(
            f"priority has no effect under this server's policy, {config.policy}",
            param="priority",
            hint="leave it out, or start the server with --policy priority",
        )
    reads_deadlines = config.policy == "deadline" or config.admission == "predicted"
    if request.ttft_target is not None and not reads_deadlines:
        raise InvalidRequestError(
            "deadline_ms has no effect on this server, which goes by no deadlines",
            param="deadline_ms",
            hint="leave it out, or start the server with --policy deadline or --admission"
            " predicted",
        )
