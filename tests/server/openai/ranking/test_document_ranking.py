"""Documents of chats, ranked by a model before the prompt is put together; BM25 where it fails."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.models.encoders import write_encoder
from tests.server.openai.ranking.test_ranking import pair_tokenizer
from tests.server.running import running_process, running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, ErrorMessage, NonFiniteLogitsError
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.vectors.encoder_executor import EncoderExecutor
from twostroke.server.application import create_app
from twostroke.server.options import ServerOptions
from twostroke.start_serving import RANKED_AT_ONCE, RANKED_TOKENS, start_ranker

DOCUMENTS = ["a fox is a dog", "bread is baked", "what is bread", "the fox is baked", "the bread"]
QUESTION = "what is the dog"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A ranking model with random weights, and what transformers' copy says of the documents."""
    folder = tmp_path_factory.mktemp("ranker")
    model = write_encoder(folder, "BertForSequenceClassification")
    scores = []
    for text in DOCUMENTS:
        encoding = pair_tokenizer().backend.encode(QUESTION, f"\n{text}")
        types = torch.tensor([encoding.type_ids])
        with torch.inference_mode():
            logits = model(torch.tensor([encoding.ids]), token_type_ids=types).logits
        scores.append(float(torch.sigmoid(logits[0, 0])))
    assert len({round(score, 4) for score in scores}) == len(scores)
    return folder, scores


class FailingExecutor(EncoderExecutor):
    """Each of its requests fails as long as ``fails`` says so."""

    fails = False

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        if self.fails:
            error = ErrorMessage.of(NonFiniteLogitsError("the scores are not finite"))
            result.vectors.clear()
            result.errors.update(dict.fromkeys(plan.scheduled, error))
        return result


def load(folder: Path) -> tuple[AsyncEngine, FailingExecutor]:
    config = EngineConfig.from_flat({"model": str(folder), "device": "cpu", "max_num_seqs": 4})
    executor = FailingExecutor.load(config)
    assert isinstance(executor, FailingExecutor)
    return AsyncEngine(LLMEngine(executor, pair_tokenizer(), config)), executor


@pytest.fixture(scope="module")
def served(
    checkpoint: tuple[Path, list[float]],
) -> Iterator[tuple[str, FailingExecutor, AsyncEngine]]:
    ranker, executor = load(checkpoint[0])
    try:
        with (
            tiny_engine() as engine,
            running_server(engine, ranker=ranker, context_ranker="some/ranker") as url,
        ):
            yield url, executor, ranker
    finally:
        ranker.close()


def ask(url: str, documents: list[Any] = DOCUMENTS, **fields: Any) -> httpx.Response:
    """A chat that has no room for all documents, unless ``context`` says otherwise."""
    context = {"max_tokens": 70, "strategy": "drop_documents", **fields.pop("context", {})}
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "documents": documents,
        "context": context,
        "max_tokens": 2,
        **fields,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def report(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    context: dict[str, Any] = answer.json()["usage"]["context"]
    return context


def test_the_model_decides_which_documents_stay(
    served: tuple[str, FailingExecutor, AsyncEngine], checkpoint: tuple[Path, list[float]]
) -> None:
    """Its scores are those of transformers, and the best document is the last to go."""
    context = report(ask(served[0]))
    assert context["ranker"] == "ranker"
    scores = [document["score"] for document in context["documents"]]
    assert scores == pytest.approx(checkpoint[1], abs=1e-5)
    kept = [d["score"] for d in context["documents"] if d["kept_tokens"]]
    assert max(scores) in kept and len(kept) < len(scores)
    best_first = report(ask(served[0], context={"document_order": "score", "max_tokens": 250}))
    assert best_first["ranker"] == "ranker" and not best_first["dropped"]["documents"]


def test_nothing_is_ranked_that_fits_or_has_scores(
    served: tuple[str, FailingExecutor, AsyncEngine],
) -> None:
    num_steps = len(served[2].events())
    assert report(ask(served[0], context={"max_tokens": 250}))["ranker"] is None
    scored = [{"text": text, "score": i + 1.0} for i, text in enumerate(DOCUMENTS)]
    assert report(ask(served[0], scored))["ranker"] == "given"
    assert len(served[2].events()) == num_steps


def test_a_request_chooses_bm25(served: tuple[str, FailingExecutor, AsyncEngine]) -> None:
    context = report(ask(served[0], context={"ranker": "bm25"}))
    assert context["ranker"] == "bm25"
    assert [d["score"] > 0 for d in context["documents"]] == [True, False, False, False, False]


def test_documents_below_a_score_go_first(
    served: tuple[str, FailingExecutor, AsyncEngine], checkpoint: tuple[Path, list[float]]
) -> None:
    """History stays while documents of no relevance go, on the scale of any model."""
    turns = [{"role": r, "content": "a fox"} for r in ("user", "assistant")] * 2
    messages = [*turns, {"role": "user", "content": QUESTION}]
    lowest = sorted(checkpoint[1])[3]
    limit = {"max_tokens": 110, "strategy": "drop_oldest"}
    without = report(ask(served[0], messages=messages, context=limit))
    assert without["turns"]["dropped"] > 0
    context = report(ask(served[0], messages=messages, context={**limit, "min_score": lowest}))
    assert context["turns"]["dropped"] == 0
    kept = [d["score"] for d in context["documents"] if d["kept_tokens"]]
    assert kept and min(kept) >= lowest - 1e-6


def test_where_the_model_fails_bm25_ranks(
    served: tuple[str, FailingExecutor, AsyncEngine], caplog: pytest.LogCaptureFixture
) -> None:
    """A line in the log says so; a request that names the model gets the error instead."""
    url, executor, _ = served
    executor.fails = True
    try:
        with caplog.at_level(logging.WARNING):
            context = report(ask(url))
        named = ask(url, context={"ranker": "model"})
    finally:
        executor.fails = False
    assert context["ranker"] == "bm25"
    assert any("ranked by BM25" in record.message for record in caplog.records)
    assert named.status_code == 500, named.text
    assert report(ask(url, context={"ranker": "model"}))["ranker"] == "ranker"


def test_long_questions_and_documents_are_cut(
    served: tuple[str, FailingExecutor, AsyncEngine],
) -> None:
    """Neither fits into the ranker's 48 positions."""
    messages = [{"role": "user", "content": "dog " * 40 + QUESTION}]
    documents = ["bread " * 60, *DOCUMENTS]
    context = report(ask(served[0], documents, messages=messages, context={"max_tokens": 240}))
    assert context["ranker"] == "ranker"


def test_the_served_model_ranks_by_its_embeddings() -> None:
    """The same engine, the same steps; nothing is left of the ranking."""
    with tiny_engine() as engine, running_server(engine, context_ranker="served") as url:
        context = report(ask(url))
        assert context["ranker"] == "scripted"
        scores = httpx.post(
            f"{url}/v1/score",
            json={"text_1": QUESTION, "text_2": [f"\n{text}" for text in DOCUMENTS]},
            timeout=60,
        ).json()["data"]
        expected = [item["score"] for item in scores]
        assert [d["score"] for d in context["documents"]] == pytest.approx(expected, abs=1e-5)
        assert engine.status.stats.num_running == engine.status.stats.num_waiting == 0


def test_a_ranking_that_takes_too_long_ends(checkpoint: tuple[Path, list[float]]) -> None:
    ranker, _ = load(checkpoint[0])
    try:
        with (
            tiny_engine() as engine,
            running_server(
                engine, ranker=ranker, context_ranker="x", context_ranker_timeout=1e-6
            ) as url,
        ):
            assert report(ask(url))["ranker"] == "bm25"
            named = ask(url, context={"ranker": "model"})
            assert named.status_code == 500
            assert "--context-ranker-timeout" in named.json()["error"]["message"]
    finally:
        ranker.close()


def test_a_model_that_is_not_there_is_a_400_that_names_the_field() -> None:
    with tiny_engine() as engine, running_server(engine) as url:
        answer = ask(url, context={"ranker": "model"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "context.ranker"
        assert ask(url, context={"ranker": "other"}).status_code == 400


def test_a_model_that_ranks_nothing_does_not_start() -> None:
    from tests.server.scripted import ScriptedEngine

    with pytest.raises(ConfigError, match="--context-ranker"):
        create_app(ScriptedEngine().loaded_model(), ServerOptions(context_ranker="served"))


def test_the_command_loads_the_model_beside_the_served_one(
    checkpoint: tuple[Path, list[float]],
) -> None:
    """From the flag to the answer, and to the end of the process."""
    folder = checkpoint[0]
    pair_tokenizer().backend.save(str(folder / "tokenizer.json"))
    flags = ("--port", "0", "--context-ranker", str(folder))
    with running_process("-m", "twostroke", "serve", "pilot-draft", *flags) as server:
        wait_until(lambda: "curl" in server.stderr, 120)
        found = re.search(r"http://127.0.0.1:\d+", server.stderr)
        assert found is not None and f"by {folder.name}\n" in server.stderr
        context = report(ask(found[0], context={"max_tokens": 60}))
        assert context["ranker"] == folder.name
        scores = [document["score"] for document in context["documents"]]
        assert scores == pytest.approx(checkpoint[1], abs=1e-5)
        server.process.terminate()
        assert server.end(60) == 0


def test_a_decoder_that_ranks_has_a_small_cache() -> None:
    """Room for two pairs, whatever the context of the model and the memory of the machine."""
    ranker = start_ranker(EngineConfig.from_flat({"device": "cpu"}), model="pilot-draft").client
    try:
        info = ranker.info
        assert info.max_model_len <= RANKED_TOKENS and not info.generates
        assert info.num_blocks * info.block_size <= RANKED_AT_ONCE * (RANKED_TOKENS + 16)
    finally:
        ranker.close()
