"""What ``POST /v1/completions`` answers: OpenAI's objects, and vLLM's additions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.http.sse import event
from twostroke.server.openai.completion_prompt import CompletionPrompt
from twostroke.server.openai.completion_request import CompletionRequest
from twostroke.server.openai.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    TextOffsets,
    completion_logprobs,
    prompt_logprob_entries,
)
from twostroke.server.openai.stream_end import DONE, failure_events
from twostroke.server.openai.usage import ChunkUsage, Usage, make_usage
from twostroke.text.tokenizer import Tokenizer


class CompletionChoice(Struct, kw_only=True):
    """One choice of a text completion, or one piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """A text completion, or one chunk of it: OpenAI calls both ``text_completion``."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class CompletionResponseFormat:
    """Implements ``ResponseFormat`` for text completions."""

    def __init__(
        self,
        request_id: str,
        model_name: str,
        tokenizer: Tokenizer,
        body: CompletionRequest,
        prompts: list[CompletionPrompt],
    ) -> None:
        self._id = request_id
        self._created = int(time.time())
        self._name = model_name
        self._tokenizer = tokenizer
        self._num_top_logprobs = body.logprobs
        self._echo = bool(body.echo)
        self._scores_only = body.scores_only
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._prompts = prompts
        self._n = body.n or 1
        self._skip_special = body.skip_special_tokens is not False
        self._offsets: dict[int, TextOffsets] = {}  # of each choice's next token
        self._include_usage = body.include_usage
        self._continuous_usage = body.continuous_usage
        self._no_usage: ChunkUsage = None if body.include_usage else UNSET

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        """One event, or none while text is held back; an echoed prompt comes with the first."""
        events: list[Completion] = []
        text = "" if self._scores_only else output.text
        if first and self._echo:
            text = self._prompts[choice // self._n].text + text
        if text or output.finished or output.logprobs or self._token_ids:
            usage = self._usage(tokens) if self._continuous_usage else self._no_usage
            piece = self._chunk_choice(choice, text, output, first=first)
            events.append(self._completion([piece], usage))
        if last and self._include_usage:
            events.append(self._completion([], self._usage(tokens)))
        frames = b"".join(map(event, events))
        return frames + DONE if last else frames

    def failure(self, error: Exception) -> bytes:
        return failure_events(error)

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> object:
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        for choice in choices:
            # The first sample of a prompt has its log-probabilities; the others take them from it.
            first_sample = answers[choice.index - choice.index % self._n]
            positions = first_sample.prompt_logprobs or []
            if self._prompt_logprobs:
                choice.prompt_logprobs = prompt_logprob_entries(positions, self._tokenizer)
            if self._echo and self._num_top_logprobs is not None:
                answer = answers[choice.index]
                choice.logprobs = self._echoed_logprobs(choice.index, answer, positions)
        return self._completion(choices, self._usage(tokens))

    def _chunk_choice(
        self, index: int, text: str, output: RequestOutput, *, first: bool
    ) -> CompletionChoice:
        prompt = self._prompts[index // self._n]
        choice = CompletionChoice(index=index, text=text, stop_reason=UNSET)
        if output.logprobs and self._num_top_logprobs is not None:
            offsets = self._offsets.setdefault(index, self._offsets_from(len(prompt.text)))
            choice.logprobs = completion_logprobs(
                output.logprobs, output.token_ids, self._tokenizer, self._num_top_logprobs, offsets
            )
        if output.finish_reason is not None:
            choice.finish_reason = output.finish_reason.value
            choice.stop_reason = output.stop_reason
            if self._scores_only:
                choice.finish_reason, choice.stop_reason = "length", None
        if self._token_ids:
            choice.token_ids = [] if self._scores_only else output.token_ids
            if first:
                choice.prompt_token_ids = prompt.token_ids
        return choice

    def _choice(self, index: int, answer: CollectedAnswer) -> CompletionChoice:
        prompt = self._prompts[index // self._n]
        if self._scores_only:
            answer.text, answer.token_ids, answer.logprobs = "", [], []
            answer.finish_reason, answer.stop_reason = FinishReason.LENGTH, None
        choice = CompletionChoice(
            index=index,
            text=prompt.text + answer.text,
            finish_reason=answer.finish_reason and answer.finish_reason.value,
            stop_reason=answer.stop_reason,
        )
        if self._num_top_logprobs is not None and not self._echo:
            offsets = self._offsets_from(0)
            choice.logprobs = completion_logprobs(
                answer.logprobs, answer.token_ids, self._tokenizer, self._num_top_logprobs, offsets
            )
        if self._token_ids:
            choice.token_ids, choice.prompt_token_ids = answer.token_ids, prompt.token_ids
        return choice

    def _echoed_logprobs(
        self, index: int, answer: CollectedAnswer, prompt_positions: Sequence[PositionLogprobs]
    ) -> CompletionLogprobs:
        prompt = self._prompts[index // self._n]
        num_top = self._num_top_logprobs
        assert num_top is not None
        prompt_part = completion_logprobs(
            [None, *prompt_positions],
            prompt.token_ids,
            self._tokenizer,
            num_top,
            TextOffsets(self._tokenizer, text=prompt.text),
        )
        # The answer begins where the prompt ends, whatever the tokenizer made of that.
        offsets = self._offsets_from(len(prompt.text))
        answer_part = completion_logprobs(
            answer.logprobs, answer.token_ids, self._tokenizer, num_top, offsets
        )
        return CompletionLogprobs(
            prompt_part.text_offset + answer_part.text_offset,
            prompt_part.token_logprobs + answer_part.token_logprobs,
            prompt_part.tokens + answer_part.tokens,
            prompt_part.top_logprobs + answer_part.top_logprobs,
        )

    def _offsets_from(self, start: int) -> TextOffsets:
        return TextOffsets(self._tokenizer, start, skip_special_tokens=self._skip_special)

    def _usage(self, tokens: CallTokens) -> Usage:
        usage = make_usage(tokens)
        if self._scores_only:
            usage.completion_tokens, usage.total_tokens = 0, usage.prompt_tokens
        return usage

    def _completion(self, choices: list[CompletionChoice], usage: ChunkUsage) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._name, choices=choices, usage=usage
        )
