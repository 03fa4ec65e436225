"""From a completions request to prompts: token ids, and the text where it is echoed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from twostroke.core.sampling_params import SamplingParams
from twostroke.server.generation.encoding import check_tokens, encode_text, truncate_prompt
from twostroke.server.openai.completion_request import CompletionRequest
from twostroke.server.state.served_model import ServedModel


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
        check_tokens(model, tokens, "prompt")
    kept = truncate_prompt(tokens, body.truncate_prompt_tokens, info, params)
    # What is too long will be refused, with the numbers: its text, of millions of tokens perhaps,
    # is not needed.
    if not body.echo or len(kept) > info.max_model_len:
        return CompletionPrompt(kept, "")
    if isinstance(prompt, str) and len(kept) == len(tokens):
        return CompletionPrompt(kept, prompt)
    text = model.client.tokenizer.decode(kept, params.skip_special_tokens)
    return CompletionPrompt(kept, text)
