"""Protects: a snapshot costs the engine the same however long the queue is."""

from __future__ import annotations

from tests.fakes import FakeExecutor
from twostroke.core.config import CacheConfig, EngineConfig, SchedulerConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.inspection import MAX_WAITING
from twostroke.engine.llm_engine import LLMEngine


def test_of_a_long_queue_the_first_of_each_tenant_are_copied() -> None:
    config = EngineConfig(
        cache=CacheConfig(block_size=4), scheduler=SchedulerConfig(max_num_seqs=2)
    )
    engine = LLMEngine(FakeExecutor(num_blocks=50, block_size=4, max_model_len=40), None, config)
    params = SamplingParams(max_tokens=5, ignore_eos=True, detokenize=False)
    for number in range(3 * MAX_WAITING):
        tenant = "loud" if number < 3 * MAX_WAITING - 1 else "quiet"
        engine.submit(
            GenerationRequest(
                request_id=f"r{number}", prompt_token_ids=[1, 2, 3], params=params, tenant=tenant
            )
        )
    engine.step()
    found = engine.snapshot()
    assert len(found.running) == 2
    assert [r.request_id for r in found.waiting[:2]] == ["r2", "r3"]
    assert len(found.waiting) == MAX_WAITING + 1
    assert found.waiting[-1].tenant == "quiet"
    assert found.waiting_left_out == 3 * MAX_WAITING - 2 - len(found.waiting)
    engine.close()
