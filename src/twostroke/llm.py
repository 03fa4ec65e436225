"""The Python API for offline use: prompts in, answers out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import TracebackType
from typing import Any, cast

from rich.console import Console
from rich.progress import Progress

from twostroke.core.config import EngineConfig
from twostroke.core.errors import InvalidRequestError, TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import CollectedAnswer
from twostroke.engine.messages import GenerationRequest
from twostroke.startup import load_engine
from twostroke.text.chat_template import ChatTemplate

Message = Mapping[str, Any]
Prompt = str | Sequence[int]


@dataclass(slots=True)
class GenerationResult:
    """All samples for one prompt, in order of ``index``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CollectedAnswer]

    @property
    def text(self) -> str:
        """The first sample's text.

        Raises:
            TwostrokeError: The request failed: half an answer must not be taken for whole.
        """
        if (error := self.error) is not None:
            raise error
        return self.outputs[0].text

    @property
    def error(self) -> TwostrokeError | None:
        """Why the request failed while it ran, if it did; ``outputs`` hold what came before."""
        return next((sample.error for sample in self.outputs if sample.error is not None), None)

    @property
    def prompt_logprobs(self) -> list[PositionLogprobs]:
        """For the prompt's tokens but the first, where asked for; else empty."""
        return self.outputs[0].prompt_logprobs or []

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return self.outputs[0].num_cached_tokens


class LLM:
    """A model, loaded, and an engine to run it.

    >>> llm = LLM("pilot")                                                      # doctest: +SKIP
    >>> llm.generate("Prefill is", SamplingParams(temperature=0))[0].text       # doctest: +SKIP

    Args:
        model: ``pilot``, a local folder, or a Hugging Face Hub id.
        options: Any field of the configuration by name (``max_num_seqs=8``, ``dtype="float32"``).

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: With a hint that says what to change.
    """

    def __init__(self, model: str = "pilot", **options: Any) -> None:
        self.engine = load_engine(EngineConfig.from_flat({"model": model, **options}))
        assert self.engine.tokenizer is not None
        self.tokenizer = self.engine.tokenizer
        self._template = ChatTemplate.from_tokenizer(self.tokenizer)
        self._num_calls = 0
        self._running = False

    def default_params(self, **fields: Any) -> SamplingParams:
        """The sampling parameters that the checkpoint recommends, changed by ``fields``."""
        return SamplingParams(**{**self.engine.info.sampling_defaults, **fields})

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[GenerationResult]:
        """Complete prompts, as text or as token ids, all in one batch.

        Args:
            params: For all prompts, or one for each; by default ``default_params()``.
            progress: Show a progress bar on stderr.

        Raises:
            InvalidRequestError: A prompt or its parameters are unusable; nothing has run then.

        A request that fails while it runs ends alone: its result carries the ``error``.
        """
        prompt_list = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params_list = [params or self.default_params()] * len(prompt_list)
        else:
            params_list = list(params)
            if not all(isinstance(item, SamplingParams) for item in params_list):
                raise InvalidRequestError(
                    "params must be SamplingParams, or one for each prompt", param="params"
                )
        if len(params_list) != len(prompt_list):
            raise InvalidRequestError(
                f"{len(prompt_list)} prompts but {len(params_list)} sampling parameters",
                param="params",
            )
        results = [
            self._empty_result(prompt, prompt_params)
            for prompt, prompt_params in zip(prompt_list, params_list, strict=True)
        ]
        for _ in self._run(results, params_list, progress):
            pass
        return results

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
        *,
        progress: bool = False,
    ) -> list[GenerationResult]:
        """Answer one conversation, or several; a message is ``{"role": ..., "content": ...}``.

        Without ``params`` an answer may be as long as the model's context allows.
        """
        if not messages:
            raise InvalidRequestError("messages is empty", param="messages")
        is_single = isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Sequence[Message]], [messages] if is_single else messages)
        params = params or self.default_params(max_tokens=None)
        return self.generate(
            [self.chat_prompt(c) for c in conversations], params, progress=progress
        )

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation in the model's chat template, ready for its answer."""
        text = self._template.render(messages, add_generation_prompt=True)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Complete one prompt and yield each step's output as it comes."""
        params = params or self.default_params()
        yield from self._run([self._empty_result(prompt, params)], [params], progress=False)

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _empty_result(self, prompt: Prompt, params: SamplingParams) -> GenerationResult:
        self._num_calls += 1
        text = prompt if isinstance(prompt, str) else None
        tokens = (
            self.tokenizer.encode(prompt)
            if isinstance(prompt, str)
            else [int(token) for token in prompt]
        )
        return GenerationResult(
            f"llm-{self._num_calls}", text, tokens, [CollectedAnswer(i) for i in range(params.n)]
        )

    def _run(
        self, results: list[GenerationResult], params: Sequence[SamplingParams], progress: bool
    ) -> Iterator[RequestOutput]:
        """Validate all, queue all, step until all have ended; leave nothing running."""
        if self._running:
            hint = (
                "read that stream to its end or close it first; for several at once, use"
                " start_async_engine"
            )
            raise InvalidRequestError("this LLM is in the middle of another call", hint=hint)
        by_id = {result.request_id: result for result in results}
        calls = [
            self.engine.prepare(
                GenerationRequest(
                    request_id=r.request_id,
                    prompt_token_ids=r.prompt_token_ids,
                    params=prompt_params,
                )
            )
            for r, prompt_params in zip(results, params, strict=True)
        ]
        self._running = True
        try:
            for samples in calls:
                self.engine.add(samples)
            with Progress(
                console=Console(stderr=True), transient=True, disable=not progress
            ) as bar:
                task = bar.add_task("generating", total=sum(p.n for p in params))
                while self.engine.has_work():
                    for output in self.engine.step():
                        by_id[output.request_id].outputs[output.index].add(output)
                        bar.advance(task, output.finished)
                        yield output
        finally:
            self._running = False
            for request_id in by_id:
                self.engine.abort(request_id)


def _as_list(prompts: object) -> list[Prompt]:
    """One prompt, or several; a sequence of integers is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        message = (
            f"prompts must be a text, token ids, or a list of either, got {type(prompts).__name__}"
        )
        raise InvalidRequestError(message, param="prompts")
    items = list(prompts)
    if items and all(isinstance(item, Integral) for item in items):
        return [cast(Prompt, items)]
    for item in items:
        if not isinstance(item, str) and not (
            isinstance(item, Iterable) and all(isinstance(t, Integral) for t in item)
        ):
            message = f"a prompt is a text or a list of token ids, got {type(item).__name__}"
            raise InvalidRequestError(message, param="prompts")
    return cast(list[Prompt], items)
