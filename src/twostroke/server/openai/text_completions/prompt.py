"""From a completions request to prompts: token ids, and the text where it is echoed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from twostroke.core.sampling_params import SamplingParams
from twostroke.server.generation.encoding import check_tokens, encode_text, truncate_prompt
from twostroke.server.openai.text_completions.request import CompletionRequest
from twostroke.server.state.served_model import ServedModel

MANY_TOKENS = 2**14  # more are turned into text on a thread


@dataclass(frozen=True, slots=True)
class CompletionPrompt:
    """One prompt: its tokens, and its text where it is echoed."""

    token_ids: list[int]
    text: str


async def encode_prompts(
    model: ServedModel, body: CompletionRequest, params: SamplingParams
) -> list[CompletionPrompt]:
    """All prompts of a request, checked and cut to length."""
    prompts: list[CompletionPrompt] = []
    for prompt in body.prompts():
        prompts.append(await _encode_prompt(model, body, params, prompt))
        # Each may take 10 ms, and there may be 256: other requests get their turn in between.
        await asyncio.sleep(0)
    return prompts


async def _encode_prompt(
    model: ServedModel, body: CompletionRequest, params: SamplingParams, prompt: str | list[int]
) -> CompletionPrompt:
    info = model.client.info
    if isinstance(prompt, str):
        tokens = await encode_text(
            model,
            prompt,
            add_special_tokens=body.add_special_tokens is not False,
            must_fit=body.truncate_prompt_tokens is None,
        )
    else:
        tokens = prompt
    kept = truncate_prompt(tokens, body.truncate_prompt_tokens, info, params)
    # What is too long will be refused, with the numbers, whatever it holds.
    if not isinstance(prompt, str) and len(kept) <= info.max_model_len:
        check_tokens(model, tokens, "prompt")
    if not body.echo or len(kept) > info.max_model_len:
        return CompletionPrompt(kept, "")
    if isinstance(prompt, str) and len(kept) == len(tokens):
        return CompletionPrompt(kept, prompt)
    decode = partial(model.tokenizer.decode, kept, params.skip_special_tokens)
    text = await asyncio.to_thread(decode) if len(kept) > MANY_TOKENS else decode()
    return CompletionPrompt(kept, text)
