"""Scores and rankings over HTTP: by embeddings of a decoder, and by a ranking model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from tests.models.encoders import write_encoder
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.core.config import EngineConfig
from twostroke.core.pooling import cosine
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.vectors.encoder_executor import EncoderExecutor
from twostroke.text.tokenizer import Tokenizer

WORDS = [
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    *["the", "dog", "a", "fox", "bread", "is", "baked", "what"],
]
DOCUMENTS = ["a fox", "the dog", "bread is baked", "the dog is a fox"]


def pair_tokenizer() -> Tokenizer:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return Tokenizer(backend)


@contextmanager
def encoder_server(folder: Path) -> Iterator[tuple[str, AsyncEngine]]:
    config = EngineConfig.from_flat({"model": str(folder), "device": "cpu", "max_num_seqs": 4})
    executor = EncoderExecutor.load(config)
    engine = AsyncEngine(LLMEngine(executor, pair_tokenizer(), config))
    try:
        with running_server(engine, served_model_name=("ranker",)) as url:
            yield url, engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with (
        tiny_engine(max_model_len=64, max_num_seqs=8) as engine,
        running_server(engine, served_model_name=("tiny",)) as url,
    ):
        yield url


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=30)


def test_embeddings_are_compared_by_their_cosine(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    made = client.embeddings.create(model="tiny", input=["the dog", *DOCUMENTS])
    query, *others = [item.embedding for item in made.data]
    expected = [cosine(query, vector) for vector in others]
    for path in ("/v1/score", "/score"):
        answer = post(url, path, model="tiny", text_1="the dog", text_2=DOCUMENTS).json()
        assert [item["score"] for item in answer["data"]] == pytest.approx(expected, abs=1e-5)
        assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == made.usage.prompt_tokens
    assert expected[1] == pytest.approx(1, abs=1e-5)
    order = sorted(range(4), key=lambda index: -expected[index])
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        ranking = post(url, path, query="the dog", documents=DOCUMENTS).json()
        assert [item["index"] for item in ranking["results"]] == order
        assert ranking["results"][0]["document"] == {"text": "the dog"}
        assert ranking["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-5)


def test_forms_of_a_ranking(url: str) -> None:
    objects = [{"text": text} for text in DOCUMENTS]
    body: dict[str, Any] = {"query": "the dog", "documents": objects}
    best = post(url, "/v1/rerank", **body, top_n=2, return_documents=False).json()
    assert len(best["results"]) == 2 and best["results"][0]["index"] == 1
    assert "document" not in best["results"][0]
    assert len(post(url, "/v1/rerank", **body, top_n=0).json()["results"]) == 4
    assert len(post(url, "/v1/rerank", **body, top_n=9).json()["results"]) == 4


def test_forms_of_a_score(url: str) -> None:
    pairs = post(url, "/score", text_1=DOCUMENTS, text_2=DOCUMENTS).json()["data"]
    assert [pair["score"] for pair in pairs] == pytest.approx([1] * 4, abs=1e-5)
    expected = post(url, "/score", text_1="a fox", text_2=["the dog"]).json()["data"]
    for first, second in (("queries", "documents"), ("data_1", "data_2"), ("queries", "items")):
        data = post(url, "/score", **{first: "a fox", second: "the dog"}).json()["data"]
        assert data[0]["score"] == pytest.approx(expected[0]["score"], abs=1e-5)


def test_a_ranking_model_scores_pairs_of_texts(tmp_path: Path) -> None:
    """The pair goes through the model's own template, its second text marked as such."""
    import torch

    reference = write_encoder(tmp_path, "BertForSequenceClassification")
    expected = []
    for text in DOCUMENTS:
        encoding = pair_tokenizer().backend.encode("the dog", text)
        assert 1 in encoding.type_ids
        with torch.inference_mode():
            logits = reference(
                torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids])
            ).logits
        expected.append(float(torch.sigmoid(logits[0, 0])))
    with encoder_server(tmp_path) as (url, _):
        answer = post(url, "/v1/score", text_1="the dog", text_2=DOCUMENTS).json()
        assert [item["score"] for item in answer["data"]] == pytest.approx(expected, abs=1e-5)
        ranking = post(url, "/v1/rerank", query="the dog", documents=DOCUMENTS, top_n=1).json()
        assert ranking["results"][0]["index"] == expected.index(max(expected))
        long = "dog " * 100
        refused = post(url, "/v1/score", text_1="a fox", text_2=long)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        cut = post(url, "/v1/score", text_1="a fox", text_2=long, truncate_prompt_tokens=-1)
        assert cut.json()["usage"]["prompt_tokens"] == 48
        for path, body in (
            ("/v1/embeddings", {"input": "the dog"}),
            ("/v1/completions", {"prompt": "the dog"}),
        ):
            answer = post(url, path, **body)
            assert answer.status_code == 400, answer.text
            assert "/v1/rerank" in answer.json()["error"]["message"]


def test_an_encoder_embeds_over_http(tmp_path: Path) -> None:
    reference = write_encoder(tmp_path, "BertModel")
    import torch

    with encoder_server(tmp_path) as (url, engine):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        texts = [text + " dog" * i for i in range(9) for text in DOCUMENTS]
        answer = client.embeddings.create(model="ranker", input=texts)
        for text, item in zip(texts, answer.data, strict=True):
            with torch.inference_mode():
                tokens = torch.tensor([engine.tokenizer.encode(text)])
                state = reference(tokens).last_hidden_state[0, 0]
            assert item.embedding == pytest.approx((state / state.norm()).tolist(), abs=1e-5)
        chat = [{"role": "user", "content": "x"}]
        assert post(url, "/v1/chat/completions", messages=chat).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [5]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": [{"image": "x"}]}, "documents[0].text"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 5}, None),
        ("/v1/rerank", {"query": "", "documents": ["b"]}, "query"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/v1/score", {"text_1": [], "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(
    url: str, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = post(url, path, **body)
    assert answer.status_code == 400, answer.text
    assert param is None or answer.json()["error"]["param"] == param, answer.text
