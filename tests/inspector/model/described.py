"""The tiny engine's model, as ``twostroke serve`` would describe it."""

from __future__ import annotations

from functools import partial

from tests.server.tiny import checkpoint
from twostroke.core.config import ModelOptions
from twostroke.engine.executor import ExecutorInfo
from twostroke.questions.model_facts import ModelFacts
from twostroke.simulator.cost.shown_costs import facts_of_engine
from twostroke.startup import make_speed_probe

TINY = ExecutorInfo(
    model_id="tiny",
    vocab_size=1,
    max_model_len=1,
    num_blocks=1,
    block_size=1,
    kv_cache_dtype="fp32",
    device="cpu",
)


def describe_tiny(info: ExecutorInfo = TINY) -> ModelFacts:
    options = ModelOptions(model=str(checkpoint()), dtype="float32")
    return facts_of_engine(options, info, partial(make_speed_probe, "cpu"))
