"""Requests and tokens of a step that serving stacks allow where nothing else is given.

vLLM: ``EngineArgs.get_batch_defaults`` (0.11 and later), for its API server, by a device's memory.
SGLang: ``ServerArgs``, ``chunked_prefill_size`` by memory; 2,048 is the least that it derives for
running requests. TensorRT-LLM: ``trtllm-serve``'s ``max_batch_size`` and ``max_num_tokens``.
"""

from __future__ import annotations

from typing import NamedTuple

from twostroke.simulator.cost.hardware_sheet import HardwareSheet

GIB = 2**30


class StackDefaults(NamedTuple):
    """Values of ``--max-num-seqs`` and ``--max-num-batched-tokens``."""

    max_num_seqs: int
    max_num_batched_tokens: int


def stack_defaults(stack: str, hardware: HardwareSheet) -> StackDefaults | None:
    """What a stack allows on a GPU; ``None`` for a stack that is not known here."""
    memory = hardware.memory_bytes
    if stack == "vllm":
        is_large = memory >= 70 * GIB and "a100" not in hardware.name
        return StackDefaults(1024, 8192) if is_large else StackDefaults(256, 2048)
    if stack == "sglang":
        tokens = 2048 if memory < 35e9 else 4096 if memory < 60e9 else 8192
        return StackDefaults(2048, tokens if memory < 160e9 else 16384)
    return StackDefaults(2048, 8192) if stack == "trtllm" else None
