"""The reasons in step events are true."""

from __future__ import annotations

from tests.scheduling.harness import Harness, make_request
from twostroke.core.config import SchedulerConfig
from twostroke.core.step import Reason


def test_who_must_not_enter_a_step_that_preempts_is_not_told_of_blocks() -> None:
    """The victim's blocks are free in that step, and enough for the one that waits."""
    harness = Harness(SchedulerConfig(max_num_seqs=4), num_blocks=9, caching=False)
    for index in range(3):
        harness.scheduler.add(make_request(str(index), [index + 1] * 9, 14))
    while not harness.scheduler.batch.num_preemptions:
        harness.step()
    waiting = [d for d in harness.last.decisions if d.reason is not Reason.PREEMPTED]
    assert [(d.request_id, d.reason) for d in waiting] == [("2", Reason.POLICY)]
