"""What ``POST /v1/completions`` answers: OpenAI's objects, and vLLM's additions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.http.sse import event
from twostroke.server.openai.drafts import Drafts, drafts_of
from twostroke.server.openai.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    TextOffsets,
    completion_logprobs,
    joined,
    prompt_logprob_entries,
    token_as_id,
    token_text,
)
from twostroke.server.openai.stream_end import DONE, failure_events
from twostroke.server.openai.text_completions.prompt import CompletionPrompt
from twostroke.server.openai.text_completions.request import CompletionRequest
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
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    drafts: Drafts | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """A text completion, or one chunk of it: OpenAI calls both ``text_completion``."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: None = None
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
        *,
        ends_with_usage: bool = False,
    ) -> None:
        self._id = request_id
        self._created = int(time.time())
        self._name = model_name
        self._tokenizer = tokenizer
        self._num_top_logprobs = body.logprobs
        if body.logprobs is not None and body.logprob_token_ids:
            self._num_top_logprobs = len(body.logprob_token_ids)
        self._name_of_token = token_as_id if body.return_tokens_as_token_ids else token_text
        self._echo = bool(body.echo)
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._drafts = bool(body.return_drafts)
        self._prompts = prompts
        self._n = body.n or 1
        self._skip_special = body.skip_special_tokens is not False
        self._offsets: dict[int, TextOffsets] = {}  # of each choice's next token
        # Of streams that echo them: by prompt, in order, as the prompt is computed.
        self._prompt_positions: dict[int, list[PositionLogprobs]] = {}
        self._num_to_echo = [self._n] * len(prompts)  # samples, by prompt
        self._include_usage = body.include_usage or ends_with_usage
        self._continuous_usage = body.continuous_usage
        self._no_usage: ChunkUsage = None if self._include_usage else UNSET

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        """What there is to say, then why it ended; an echoed prompt comes before all else.

        Nothing is said while text is held back, or while the prompt has yet to be scored.
        """
        prompt = choice // self._n
        positions = self._prompt_positions.setdefault(prompt, [])
        positions += output.prompt_logprobs or ()
        if not output.token_ids and not output.finished:
            return b""
        usage = make_usage(tokens) if self._continuous_usage else self._no_usage
        events: list[Completion] = []
        echoes = first and self._echo
        drafts = drafts_of(output, self._tokenizer) if self._drafts else UNSET
        shown = bool(output.text or output.logprobs) or echoes or drafts is not UNSET
        # Without a text, the ids of the last tokens are in the chunk that says why it ended.
        has_piece = shown or (self._token_ids and (first or not output.finished))
        if has_piece:
            piece = self._chunk_choice(choice, output, first=first)
            piece.drafts = drafts
            if echoes:
                self._prepend_prompt(piece, positions)
                self._num_to_echo[prompt] -= 1
                if not self._num_to_echo[prompt]:
                    del self._prompt_positions[prompt]
            events.append(self._completion([piece], usage))
        if output.finish_reason is not None:
            ended = CompletionChoice(index=choice, text="")
            ended.finish_reason, ended.stop_reason = output.finish_reason.value, output.stop_reason
            if self._token_ids:
                ended.token_ids = [] if has_piece else output.token_ids
            events.append(self._completion([ended], usage))
        if last and self._include_usage:
            events.append(self._completion([], make_usage(tokens)))
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
        return self._completion(choices, make_usage(tokens))

    def _chunk_choice(self, index: int, output: RequestOutput, *, first: bool) -> CompletionChoice:
        prompt = self._prompts[index // self._n]
        choice = CompletionChoice(index=index, text=output.text)
        if output.logprobs and self._num_top_logprobs is not None:
            offsets = self._offsets.setdefault(index, self._offsets_from(len(prompt.text)))
            choice.logprobs = self._listed(output.logprobs, output.token_ids, offsets)
        if self._token_ids:
            choice.token_ids = output.token_ids
            if first:
                choice.prompt_token_ids = prompt.token_ids
        return choice

    def _choice(self, index: int, answer: CollectedAnswer) -> CompletionChoice:
        prompt = self._prompts[index // self._n]
        choice = CompletionChoice(
            index=index,
            text=prompt.text + answer.text,
            finish_reason=answer.finish_reason and answer.finish_reason.value,
            stop_reason=answer.stop_reason,
            prompt_token_ids=prompt.token_ids if self._token_ids else None,
            prompt_logprobs=None,
        )
        if self._num_top_logprobs is not None and not self._echo:
            offsets = self._offsets_from(0)
            choice.logprobs = self._listed(answer.logprobs, answer.token_ids, offsets)
        if self._token_ids:
            choice.token_ids = answer.token_ids
        return choice

    def _echoed_logprobs(
        self, index: int, answer: CollectedAnswer, prompt_positions: Sequence[PositionLogprobs]
    ) -> CompletionLogprobs:
        prompt = self._prompts[index // self._n]
        # The answer begins where the prompt ends, whatever the tokenizer made of that.
        offsets = self._offsets_from(len(prompt.text))
        answer_part = self._listed(answer.logprobs, answer.token_ids, offsets)
        return joined(self._prompt_part(prompt, prompt_positions), answer_part)

    def _prepend_prompt(
        self, piece: CompletionChoice, positions: Sequence[PositionLogprobs]
    ) -> None:
        prompt = self._prompts[piece.index // self._n]
        piece.text = prompt.text + piece.text
        if self._num_top_logprobs is not None:
            answer_part = piece.logprobs or CompletionLogprobs()
            piece.logprobs = joined(self._prompt_part(prompt, positions), answer_part)

    def _prompt_part(
        self, prompt: CompletionPrompt, positions: Sequence[PositionLogprobs]
    ) -> CompletionLogprobs:
        offsets = TextOffsets(self._tokenizer, text=prompt.text)
        return self._listed([None, *positions], prompt.token_ids, offsets)

    def _listed(
        self,
        positions: Sequence[PositionLogprobs | None],
        tokens: Sequence[int],
        offsets: TextOffsets,
    ) -> CompletionLogprobs:
        num_top = self._num_top_logprobs or 0
        return completion_logprobs(
            positions, tokens, self._tokenizer, num_top, offsets, self._name_of_token
        )

    def _offsets_from(self, start: int) -> TextOffsets:
        return TextOffsets(self._tokenizer, start, skip_special_tokens=self._skip_special)

    def _completion(self, choices: list[CompletionChoice], usage: ChunkUsage) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._name, choices=choices, usage=usage
        )
