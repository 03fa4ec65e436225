"""The Python API for offline use: prompts in, answers out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import TracebackType
from typing import Any, TypeVar, cast

from rich.console import Console
from rich.progress import Progress

from twostroke.core.config import EngineConfig
from twostroke.core.errors import InvalidRequestError, TwostrokeError
from twostroke.core.flags.vllm_flags import without_vllm_options
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.core.pooling import NOTHING_DRAWN, PoolingParams, cosine
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import CollectedAnswer
from twostroke.engine.pooled_answer import (
    EmbeddingOutput,
    EmbeddingResult,
    ScoringOutput,
    ScoringResult,
    vector_or_raise,
)
from twostroke.startup import load_engine
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.judgements import encode_judgement, score_token_ids

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Mapping[str, Any]
T = TypeVar("T")


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
        """Log-probabilities of the prompt's tokens but the first, where asked for; else empty."""
        return self.outputs[0].prompt_logprobs or []

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return self.outputs[0].num_cached_tokens


class LLM:
    """A model, loaded, and an engine to run it.

    >>> llm = LLM("pilot")                                                      # doctest: +SKIP
    >>> llm.generate("Prefill is", SamplingParams(temperature=0))[0].text       # doctest: +SKIP

    Scripts for vLLM's class of this name run with the import changed.

    Args:
        model: ``pilot``, a local folder or GGUF file, or a Hugging Face Hub id.
        options: Any field of the configuration by name (``max_num_seqs=8``, ``dtype="float32"``).
            vLLM's that change nothing here (``enforce_eager=True``) are logged.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: With a hint that says what to change.
    """

    def __init__(self, model: str = "pilot", **options: Any) -> None:
        known = without_vllm_options(options, logging.getLogger(__name__).info)
        self.engine = load_engine(EngineConfig.from_flat({"model": model, **known}))
        assert self.engine.tokenizer is not None
        self.tokenizer = self.engine.tokenizer
        template = ChatTemplate.from_tokenizer(self.tokenizer)
        self._encoder = ChatEncoder(template, self.tokenizer)
        self._num_calls = 0
        self._running = False

    def default_params(self, **fields: Any) -> SamplingParams:
        """The sampling parameters that the checkpoint recommends, changed by ``fields``."""
        return SamplingParams(**{**self.engine.info.sampling_defaults, **fields})

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str = "",
        use_tqdm: bool = False,
    ) -> list[GenerationResult]:
        """Complete prompts, all in one batch.

        A prompt is a text, a list of token ids, or as in vLLM ``{"prompt": text}`` or
        ``{"prompt_token_ids": ids}``.

        Args:
            sampling_params: For all prompts, or one for each; by default ``default_params()``.
            adapter: Name of the LoRA adapter, one of ``LLM(model, lora=["NAME=FOLDER"])``.
            use_tqdm: Show a progress bar on stderr.

        Raises:
            InvalidRequestError: A prompt or its parameters are unusable; nothing has run then.

        A request that fails while it runs ends alone: its result carries the ``error``.
        """
        prompt_list = _as_list(prompts)
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params_list = [sampling_params or self.default_params()] * len(prompt_list)
        else:
            params_list = list(sampling_params)
            if not all(isinstance(item, SamplingParams) for item in params_list):
                raise InvalidRequestError(
                    "sampling_params must be SamplingParams, or one for each prompt",
                    param="sampling_params",
                )
        if len(params_list) != len(prompt_list):
            raise InvalidRequestError(
                f"{len(prompt_list)} prompts but {len(params_list)} sampling parameters",
                param="sampling_params",
            )
        results = [
            self._empty_result(prompt, prompt_params)
            for prompt, prompt_params in zip(prompt_list, params_list, strict=True)
        ]
        for _ in self._run(results, params_list, use_tqdm, adapter=adapter):
            pass
        return results

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str = "",
        use_tqdm: bool = False,
    ) -> list[GenerationResult]:
        """Answer one conversation, or several; a message is ``{"role": ..., "content": ...}``.

        Without ``sampling_params`` an answer may be as long as the model's context allows.
        """
        if not messages:
            raise InvalidRequestError("messages is empty", param="messages")
        is_single = isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Sequence[Message]], [messages] if is_single else messages)
        params = sampling_params or self.default_params(max_tokens=None)
        prompts = [self.chat_prompt(c) for c in conversations]
        return self.generate(prompts, params, adapter=adapter, use_tqdm=use_tqdm)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation in the model's chat template, ready for its answer.

        Special tokens that the messages spell out are plain text.
        """
        return self._encoder.encode(messages, add_generation_prompt=True)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, adapter: str = ""
    ) -> Iterator[RequestOutput]:
        """Complete one prompt and yield each step's output as it comes."""
        params = sampling_params or self.default_params()
        (prompt,) = _as_list(prompt)
        results = [self._empty_result(prompt, params)]
        yield from self._run(results, [params], use_tqdm=False, adapter=adapter)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[EmbeddingResult]:
        """The embeddings of prompts, as text or as token ids, all in one batch.

        Args:
            pooling_params: For all prompts: ``PoolingParams(dimensions=256)`` cuts the embeddings.
            use_tqdm: Show a progress bar on stderr.

        Raises:
            InvalidRequestError: The model gives no embeddings, or a prompt is unusable.
        """
        results = [self._empty_result(prompt, NOTHING_DRAWN) for prompt in _as_list(prompts)]
        params = [pooling_params or PoolingParams()] * len(results)
        return [
            EmbeddingResult(
                result.request_id,
                result.prompt_token_ids,
                EmbeddingOutput(vector),
                result.num_cached_tokens,
            )
            for result, vector in zip(results, self._pool(results, params, use_tqdm), strict=True)
        ]

    def score(
        self, data_1: str | Sequence[str], data_2: str | Sequence[str], *, use_tqdm: bool = False
    ) -> list[ScoringResult]:
        """How well texts fit together: a ranking model's score, or the cosine of embeddings.

        Args:
            data_1: One text, or as many as ``data_2``.

        Raises:
            InvalidRequestError: The model gives neither, or the texts do not pair.
        """
        first = [data_1] if isinstance(data_1, str) else list(data_1)
        second = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(first) not in (1, len(second)):
            message = f"{len(first)} texts cannot be paired with {len(second)}"
            raise InvalidRequestError(message, param="data_1", hint="give one, or as many")
        if self.engine.info.pooling.score_kind is None:
            made = self.embed([*first, *second], use_tqdm=use_tqdm)
            queries, others = made[: len(first)], made[len(first) :]
            return [
                ScoringResult(
                    other.request_id,
                    query.prompt_token_ids + other.prompt_token_ids,
                    ScoringOutput(cosine(query.outputs.embedding, other.outputs.embedding)),
                )
                for query, other in zip(_repeated(queries, len(others)), others, strict=True)
            ]
        results, params = [], []
        for query_text, text in zip(_repeated(first, len(second)), second, strict=True):
            tokens, pooling = self._pair(query_text, text)
            results.append(self._empty_result(tokens, NOTHING_DRAWN))
            params.append(pooling)
        return [
            ScoringResult(result.request_id, result.prompt_token_ids, ScoringOutput(vector[0]))
            for result, vector in zip(results, self._pool(results, params, use_tqdm), strict=True)
        ]

    def _pair(self, query: str, text: str) -> tuple[list[int], PoolingParams]:
        """A pair's prompt for a ranking model, and what is to be made of it."""
        words = self.engine.info.pooling.score_tokens
        if words is None:
            tokens, start = self.tokenizer.encode_pair(query, text)
            return tokens, PoolingParams(task="score", second_text_start=start)
        ids = score_token_ids(self.tokenizer, words)
        tokens = encode_judgement(self._encoder, query, text)
        return tokens, PoolingParams(task="score", score_token_ids=ids)

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

    def _empty_result(
        self, prompt: str | Sequence[int], params: SamplingParams
    ) -> GenerationResult:
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

    def _pool(
        self, results: list[GenerationResult], pooling: Sequence[PoolingParams], progress: bool
    ) -> list[list[float]]:
        params = [NOTHING_DRAWN] * len(results)
        for _ in self._run(results, params, progress, pooling):
            pass
        return [vector_or_raise(result.outputs[0]) for result in results]

    def _run(
        self,
        results: list[GenerationResult],
        params: Sequence[SamplingParams],
        use_tqdm: bool,
        pooling: Sequence[PoolingParams] | None = None,
        *,
        adapter: str = "",
    ) -> Iterator[RequestOutput]:
        """Validate all, queue all, step until all have ended; leave nothing running."""
        if self._running:
            hint = (
                "read that stream to its end or close it first; for several at once, use"
                " start_async_engine"
            )
            raise InvalidRequestError("this LLM is in the middle of another call", hint=hint)
        by_id = {result.request_id: result for result in results}
        wanted: Sequence[PoolingParams | None] = pooling or [None] * len(results)
        calls = [
            self.engine.prepare(
                GenerationRequest(
                    request_id=r.request_id,
                    prompt_token_ids=r.prompt_token_ids,
                    params=prompt_params,
                    pooling=prompt_pooling,
                    adapter=adapter,
                )
            )
            for r, prompt_params, prompt_pooling in zip(results, params, wanted, strict=True)
        ]
        self._running = True
        try:
            for samples in calls:
                self.engine.add(samples)
            with Progress(
                console=Console(stderr=True), transient=True, disable=not use_tqdm
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


def _repeated(items: list[T], count: int) -> list[T]:
    """A single item as many times as its counterparts."""
    return items * count if len(items) == 1 else items


def _as_list(prompts: object) -> list[str | Sequence[int]]:
    """One prompt, or several; a sequence of integers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [_as_prompt(prompts)]
    if not isinstance(prompts, Iterable):
        message = (
            f"prompts must be a text, token ids, or a list of either, got {type(prompts).__name__}"
        )
        raise InvalidRequestError(message, param="prompts")
    items = list(prompts)
    if items and all(isinstance(item, Integral) for item in items):
        return [cast(Sequence[int], items)]
    return [_as_prompt(item) for item in items]


def _as_prompt(item: object) -> str | Sequence[int]:
    if isinstance(item, Mapping):
        # Both may be there: the ids are then those of the text.
        unknown = item.keys() - {"prompt", "prompt_token_ids"}
        if unknown or not item:
            names = ", ".join(map(repr, sorted(unknown))) or "nothing"
            raise InvalidRequestError(
                f"a prompt has {names}", param="prompts", hint="give prompt or prompt_token_ids"
            )
        item = item["prompt_token_ids"] if "prompt_token_ids" in item else item["prompt"]
    if isinstance(item, str):
        return item
    if not isinstance(item, Iterable):
        message = f"a prompt is a text or a list of token ids, got {type(item).__name__}"
        raise InvalidRequestError(message, param="prompts")
    tokens = list(item)
    if not all(isinstance(token, Integral) for token in tokens):
        message = f"a prompt is a text or a list of token ids, got {type(item).__name__}"
        raise InvalidRequestError(message, param="prompts")
    return tokens
