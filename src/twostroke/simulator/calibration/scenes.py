"""What a calibration runs: scenes, each a few waves of requests.

They cover the cases that the cost model tells apart: prompts of several lengths, alone and
together; chunks after cached tokens, taken from the prefix cache or computed before; decoding with
few and many requests over short and long contexts, just after a prompt and later; prompts that
arrive while other requests decode, and prompts after a pause.
"""

from __future__ import annotations

from typing import NamedTuple

from twostroke.engine.llm_engine import LLMEngine
from twostroke.timing.step_shape import SETTLING


class Wave(NamedTuple):
    """Requests that arrive together.

    Attributes:
        requests: How many.
        prompt: Tokens of each prompt.
        output: Tokens of the first request's output.
        cached: Tokens of the prompt that are in the prefix cache.
        stagger: Output tokens that each request gets more than the one before it, so that batches
            of all sizes occur.
        before_step: The step of the scene before which they arrive; earlier if the engine is idle.
        pause: Seconds for which the engine is idle before they arrive.
    """

    requests: int
    prompt: int
    output: int
    cached: int = 0
    stagger: int = 0
    before_step: int = 0
    pause: float = 0.0


Scene = tuple[Wave, ...]
# Seconds of a pause, and steps between two waves: more than a wave takes.
PAUSE, LATER = 0.1, 1000
# Scenes that do not fit are left out. A 350M model on two cores takes about a minute for all.
SCENES: tuple[Scene, ...] = (
    *((Wave(1, prompt, SETTLING + 8),) for prompt in (16, 48, 128, 300, 512, 1000, 1500)),
    *(
        (Wave(*wave),)
        for wave in ((2, 64, 20), (4, 256, 8), (8, 32, 20), (8, 400, 8), (16, 128, 8))
    ),
    (Wave(24, 40, 4, stagger=1),),
    (Wave(64, 32, 18),),
    (Wave(24, 240, 6, stagger=1),),
    (Wave(1, 2500, 6),),  # above the default budget: a chunk after computed tokens
    *(
        (Wave(1, cached + new, 4, cached=cached),)
        for cached, new in ((512, 16), (512, 96), (1024, 48), (2048, 160))
    ),
    (Wave(4, 600, 4, cached=512),),
    # Prompts that join decoding requests.
    (
        Wave(2, 64, 24),
        Wave(1, 32, 4, before_step=4),
        Wave(1, 128, 4, before_step=10),
        Wave(1, 512, 4, before_step=16),
    ),
    (
        Wave(8, 100, 24),
        Wave(1, 64, 4, before_step=4),
        Wave(2, 200, 4, before_step=10),
        Wave(1, 640, 4, cached=512, before_step=16),
    ),
    (
        Wave(16, 64, 24),
        Wave(1, 24, 4, before_step=4),
        Wave(1, 256, 4, before_step=10),
        Wave(4, 64, 4, before_step=16),
    ),
    # Prompts of the same lengths on an idle engine.
    *(
        tuple(
            Wave(count, prompt, 8, cached, before_step=place * LATER, pause=PAUSE)
            for place, (count, prompt, cached) in enumerate(waves)
        )
        for waves in (
            ((1, 16, 0), (1, 48, 0), (2, 64, 0), (8, 32, 0)),
            ((1, 128, 0), (1, 608, 512), (1, 300, 0), (1, 512, 0)),
        )
    ),
)
# Longest prompt prefix in the prefix cache.
MAX_CACHED = 2048
WARM_UP: Scene = (Wave(1, 16, 4),)


def fits(scene: Scene, engine: LLMEngine) -> bool:
    """Whether the engine has room for all requests of a scene at once."""
    info = engine.info
    longest = [wave.prompt + wave.output + wave.stagger * (wave.requests - 1) for wave in scene]
    needed = sum(wave.requests * (tokens + info.block_size) for wave, tokens in zip(scene, longest))
    return (
        max(longest) <= info.max_model_len
        and needed <= info.cache_tokens
        and sum(wave.requests for wave in scene) <= engine.scheduler.config.max_num_seqs
    )
