"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.server.answers import RunningUsage, Sample
from twostroke.server.generation import Generation, check_tokens, encode_text, truncate
from twostroke.server.logprobs import TextOffsets, completion_logprobs, prompt_logprobs
from twostroke.server.openapi import ERROR_RESPONSES, answers
from twostroke.server.protocol import CompletionRequest
from twostroke.server.request_id import name_request
from twostroke.server.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from twostroke.server.serving import ServedModel, Serving
from twostroke.server.strict_json import StrictRoute
from twostroke.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its tokens, and its text where it is echoed."""

    token_ids: list[int]
    text: str


def completions_router(serving: Serving) -> APIRouter:
    """The route of text completions."""
    router = APIRouter(route_class=StrictRoute, tags=["completions"])

    responses = answers(
        Completion, "The answers; or, streamed, their pieces, then [DONE].", stream=Completion
    )

    @router.post("/v1/completions", response_class=Response, responses=responses | ERROR_RESPONSES)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """What the model writes after a text, or after each of several."""
        model = serving.accepting(request.scope)
        model.check_name(body.model)
        params = body.to_params(model.client.info.sampling_defaults)
        prompts: list[Prompt] = []
        for prompt in body.prompts():
            prompts.append(await _encode_prompt(model, body, params, prompt))
            await asyncio.sleep(0)  # each may take 10 ms, and there may be 256: the others' turn
        request_id = name_request(request.scope, "cmpl")
        generation = Generation(
            model.client, request_id, [p.token_ids for p in prompts], params, body
        )
        return await generation.respond(
            CompletionShape(request_id, model.name, model.client.tokenizer, body, prompts),
            body,
            request,
        )

    return router


async def _encode_prompt(
    model: ServedModel, body: CompletionRequest, params: SamplingParams, prompt: str | list[int]
) -> Prompt:
    tokenizer = model.client.tokenizer
    if isinstance(prompt, str):
        special = body.add_special_tokens is not False
        tokens = await encode_text(
            model,
            prompt,
            add_special_tokens=special,
            most=body.most_prompt_tokens(model.client.info),
        )
    else:
        tokens = prompt
        check_tokens(model, tokens, "prompt")
    kept = truncate(tokens, body.kept_prompt_tokens(model.client.info, params))
    # What is too long will be refused, with the numbers: its text, of millions of tokens perhaps,
    # is not needed.
    if not body.echo or len(kept) > model.client.info.max_model_len:
        return Prompt(kept, "")
    whole = isinstance(prompt, str) and len(kept) == len(tokens)
    if whole and isinstance(prompt, str):
        return Prompt(kept, prompt)
    return Prompt(kept, tokenizer.decode(kept, params.skip_special_tokens))


class CompletionShape:
    """Implements ``Shape`` for text completions."""

    def __init__(
        self,
        request_id: str,
        model_name: str,
        tokenizer: Tokenizer,
        body: CompletionRequest,
        prompts: list[Prompt],
    ) -> None:
        self._id = request_id
        self._created = int(time.time())
        self._name = model_name
        self._tokenizer = tokenizer
        self._top = body.logprobs
        self._echo = bool(body.echo)
        self._scores_only = body.scores_only
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._prompts = prompts
        self._n = body.n or 1
        self._skip_special = body.skip_special_tokens is not False
        self._offsets: dict[int, TextOffsets] = {}  # of each choice's next token

    def chunk(
        self, index: int, output: RequestOutput, usage: RunningUsage, *, first: bool
    ) -> list[object]:
        """One event, or none while text is held back; an echoed prompt comes with the first."""
        prompt = self._prompts[index // self._n]
        text = "" if self._scores_only else output.text
        if first and self._echo:
            text = prompt.text + text
        if not (text or output.finished or output.logprobs or self._token_ids):
            return []
        choice = CompletionChoice(index=index, text=text, stop_reason=UNSET)
        if output.logprobs and self._top is not None:
            offsets = self._offsets.setdefault(index, self._offsets_from(len(prompt.text)))
            choice.logprobs = completion_logprobs(
                output.logprobs, output.token_ids, self._tokenizer, self._top, offsets
            )
        if output.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = (
                output.finish_reason.value,
                output.stop_reason,
            )
            if self._scores_only:
                choice.finish_reason, choice.stop_reason = "length", None
        if self._token_ids:
            choice.token_ids = [] if self._scores_only else output.token_ids
            if first:
                choice.prompt_token_ids = prompt.token_ids
        return [
            self._completion([choice], self._count(usage) if isinstance(usage, Usage) else usage)
        ]

    def usage_chunk(self, usage: Usage) -> object:
        return self._completion([], self._count(usage))

    def complete(self, samples: Sequence[Sample], usage: Usage) -> object:
        choices = [self._choice(index, sample) for index, sample in enumerate(samples)]
        # Only the first sample of a prompt carries its log-probabilities, so the others take them
        # from it.
        if self._prompt_logprobs:
            for choice in choices:
                positions = samples[choice.index - choice.index % self._n].prompt_logprobs or []
                choice.prompt_logprobs = prompt_logprobs(positions, self._tokenizer)
        if self._echo and self._top is not None:
            for choice in choices:
                leader = samples[choice.index - choice.index % self._n]
                choice.logprobs = self._echoed_logprobs(choice.index, samples[choice.index], leader)
        return self._completion(choices, self._count(usage))

    def _choice(self, index: int, sample: Sample) -> CompletionChoice:
        prompt = self._prompts[index // self._n]
        if self._scores_only:
            sample.text, sample.token_ids, sample.logprobs = "", [], []
            sample.finish_reason, sample.stop_reason = "length", None
        choice = CompletionChoice(
            index=index,
            text=prompt.text + sample.text,
            finish_reason=sample.finish_reason,
            stop_reason=sample.stop_reason,
        )
        if self._top is not None and not self._echo:
            offsets = self._offsets_from(0)
            choice.logprobs = completion_logprobs(
                sample.logprobs, sample.token_ids, self._tokenizer, self._top, offsets
            )
        if self._token_ids:
            choice.token_ids, choice.prompt_token_ids = sample.token_ids, prompt.token_ids
        return choice

    def _echoed_logprobs(self, index: int, sample: Sample, leader: Sample) -> CompletionLogprobs:
        prompt = self._prompts[index // self._n]
        assert self._top is not None
        positions = [None, *(leader.prompt_logprobs or [])]
        before = TextOffsets(self._tokenizer, text=prompt.text)
        result = completion_logprobs(
            positions, prompt.token_ids, self._tokenizer, self._top, before
        )
        # The answer begins where the prompt ends, whatever the tokenizer made of that.
        behind = self._offsets_from(len(prompt.text))
        answer = completion_logprobs(
            sample.logprobs, sample.token_ids, self._tokenizer, self._top, behind
        )
        return CompletionLogprobs(
            result.text_offset + answer.text_offset,
            result.token_logprobs + answer.token_logprobs,
            result.tokens + answer.tokens,
            result.top_logprobs + answer.top_logprobs,
        )

    def _offsets_from(self, start: int) -> TextOffsets:
        return TextOffsets(self._tokenizer, start, skip_special_tokens=self._skip_special)

    def _count(self, usage: Usage) -> Usage:
        if self._scores_only:
            usage.completion_tokens, usage.total_tokens = 0, usage.prompt_tokens
        return usage

    def _completion(self, choices: list[CompletionChoice], usage: RunningUsage) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._name, choices=choices, usage=usage
        )
