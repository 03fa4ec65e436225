"""``LLM.embed`` and ``LLM.score``, in the form of vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from twostroke import LLM
from twostroke.core.errors import InvalidRequestError
from twostroke.core.pooling import Pooling, PoolingParams, cosine
from twostroke.runtime.reference import embed_naive, naive_logits
from twostroke.runtime.torch_executor import TorchExecutor

OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 128}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("pilot-draft", convert="embed", **OPTIONS) as llm:
        yield llm


def test_embeddings_are_those_of_a_whole_pass(llm: LLM) -> None:
    texts = ["What is prefill?", "Bread is baked."]
    prompts: list[str | Sequence[int]] = [*texts, [5, 6, 7]]
    results = llm.embed(prompts)
    assert isinstance(llm.engine.executor, TorchExecutor)
    model = llm.engine.executor.model
    pooling = Pooling(task="embed", kind="last", normalise=True, size=model.spec.hidden_size)
    for result, text in zip(results, texts):
        assert result.prompt_token_ids == llm.tokenizer.encode(text)
    for result in results:
        expected = embed_naive(model, result.prompt_token_ids, pooling)
        assert result.outputs.embedding == pytest.approx(expected, abs=1e-4)
        assert result.outputs.hidden_size == model.spec.hidden_size and result.finished
    short = llm.embed(texts[0], PoolingParams(dimensions=8), use_tqdm=False)
    assert len(short) == 1 and len(short[0].outputs.embedding) == 8


def test_scores_are_cosines_of_embeddings(llm: LLM) -> None:
    texts = ["What is prefill?", "Bread is baked."]
    first, second = (result.outputs.embedding for result in llm.embed(texts))
    scores = [result.outputs.score for result in llm.score(texts[0], texts)]
    assert scores == pytest.approx([1.0, cosine(first, second)], abs=1e-5)
    assert [result.outputs.score for result in llm.score(texts, texts)] == pytest.approx([1, 1])
    with pytest.raises(InvalidRequestError, match="cannot be paired"):
        llm.score(texts, [*texts, "x"])


def test_one_engine_embeds_and_answers(llm: LLM) -> None:
    assert llm.generate("Prefill is")[0].outputs[0].token_ids
    assert llm.embed("Prefill is")[0].outputs.embedding


def test_a_generation_model_says_how_it_could_embed() -> None:
    with LLM("pilot-draft", **OPTIONS) as llm:
        with pytest.raises(InvalidRequestError, match="not made for embeddings"):
            llm.embed("a")
        with pytest.raises(InvalidRequestError, match="not made for embeddings"):
            llm.score("a", "b")


def test_a_chat_model_scores_by_its_answer() -> None:
    """Yes or no to the question whether the document fits, from one pass without a cache."""
    documents = ["Prefill reads the whole prompt.", "Bread is baked."]
    with LLM("pilot-draft", convert="classify", **{**OPTIONS, "max_model_len": 512}) as llm:
        results = llm.score("What is prefill?", documents)
        assert isinstance(llm.engine.executor, TorchExecutor)
        model = llm.engine.executor.model
        no, yes = (llm.tokenizer.encode(word, False)[0] for word in ("no", "yes"))
        for result, document in zip(results, documents, strict=True):
            logits = naive_logits(model, result.prompt_token_ids)[-1]
            expected = float((logits[yes] - logits[no]).sigmoid())
            assert result.outputs.score == pytest.approx(expected, abs=1e-4)
            prompt = llm.tokenizer.decode(result.prompt_token_ids, skip_special_tokens=False)
            assert "<Query>: What is prefill?\n" in prompt and document in prompt
