"""How full an engine is, with what waits, as its client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from twostroke.engine.process.engine_process import EngineProcess

# Of more requests that wait the rest is taken to be like these: it is asked for each request.
MAX_MEASURED = 64


def fullness(engine: EngineProcess, more_tokens: int = 0) -> float:
    """How full it would be with a prompt of ``more_tokens``; see ``ReplicaLoad.fullness``.

    Blocks that are held are as old as the engine's last report. What waits counts from the moment
    it was sent.
    """
    info, stats = engine.info, engine.status.stats
    num_waiting = max(engine.num_waiting, stats.num_waiting)
    sizes = list(islice(waiting_prompts(engine, MAX_MEASURED), num_waiting))
    blocks = float(sum(info.kv_groups.most_blocks(size, info.block_size) for size in sizes))
    if sizes:
        blocks *= num_waiting / len(sizes)
    blocks += stats.total_blocks - stats.free_blocks
    if more_tokens:
        blocks += info.kv_groups.most_blocks(more_tokens, info.block_size)
    num_samples = stats.num_running + num_waiting + bool(more_tokens)
    places = num_samples / engine.scheduler_config.max_num_seqs
    # Of the facts: an engine that has just started has not told of its blocks yet.
    return max(blocks / max(1, info.num_blocks), places)


def waiting_prompts(engine: EngineProcess, most: int | None = None) -> Iterator[int]:
    """The lengths of prompts without an answer, of the ``most`` newest requests.

    The engine tells how many wait, not which: they are taken for those that came last.
    """
    for stream in islice(reversed(engine.unfinished()), most):
        if not stream.usage.output_tokens:
            yield stream.num_prompt_tokens
