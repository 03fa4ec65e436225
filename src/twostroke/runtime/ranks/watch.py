"""Ends an engine's process with one of its ranks, though no pass may need that just now."""

from __future__ import annotations

import logging
import os
import threading
import time

from twostroke.engine.executor import Executor
from twostroke.runtime.ranks.first import OtherRanks
from twostroke.runtime.ranks.processes import RankProcesses
from twostroke.runtime.torch_executor import TorchExecutor

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
# In which a pass would notice by itself, and a close would be through.
PASS_NOTICES_SECONDS = 2.0


def end_with_ranks(executor: Executor) -> None:
    """Watch an executor's ranks on a thread, if it has some; for a process that is an engine's own.

    What stands before the process starts another, as where it is killed: so a rank that has ended
    while nothing ran costs no request the time of a start.
    """
    hooks = executor.hooks if isinstance(executor, TorchExecutor) else []
    for hook in hooks:
        if isinstance(hook, OtherRanks):
            threading.Thread(
                target=_watch, args=(hook.processes,), name="twostroke-ranks", daemon=True
            ).start()


def _watch(processes: RankProcesses) -> None:
    while not processes.ended():
        time.sleep(LOOK_SECONDS)
    time.sleep(PASS_NOTICES_SECONDS)
    if ended := processes.ended():
        logger.critical("%s; this engine ends with it", ended)
        os._exit(1)  # a pass, if there is one, waits for that rank
