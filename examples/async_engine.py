"""Stream several requests at once from an engine in this process, and abort one.

python examples/async_engine.py
"""

from __future__ import annotations

import argparse
import asyncio

from twostroke import SamplingParams, start_async_engine
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.clients.thread import AsyncEngine


async def follow(
    engine: AsyncEngine, name: str, prompt: str, max_tokens: int, stop_after: int | None = None
) -> None:
    """Print a request's tokens as they come; give it up after ``stop_after`` of them."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    tokens = engine.tokenizer.encode(prompt)
    stream = engine.submit(
        GenerationRequest(request_id=name, prompt_token_ids=tokens, params=params)
    )
    count = 0
    async for output in stream:
        if output.error is not None:
            raise output.error.to_exception()
        count += len(output.token_ids)
        print(f"{name}: {output.text!r}")
        if stop_after is not None and count >= stop_after:
            stream.abort()  # frees its KV blocks; the other requests do not notice
            print(f"{name}: aborted after {count} tokens")
            return
    print(f"{name}: finished with {count} tokens")


async def run(engine: AsyncEngine, max_tokens: int) -> None:
    await asyncio.gather(
        follow(engine, "first", "The KV cache holds", max_tokens),
        follow(engine, "second", "A scheduler decides", max_tokens),
        follow(
            engine, "third", "This one is given up", max_tokens, stop_after=max(1, max_tokens // 2)
        ),
    )
    await engine.drain(timeout=10)


def main(model: str, max_tokens: int) -> None:
    engine = start_async_engine(EngineConfig.from_flat({"model": model}))
    try:
        asyncio.run(run(engine, max_tokens))
    finally:
        engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="pilot", help="pilot, a checkpoint folder or a Hugging Face Hub id"
    )
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()
    main(options.model, options.max_tokens)
