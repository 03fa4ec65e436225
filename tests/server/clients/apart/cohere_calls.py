"""Cohere's own client, for embeddings."""

import asyncio
import sys

import cohere

URL = sys.argv[3]
TEXTS = ["the dog", "a fox"]
FIELDS = {"model": "tiny", "texts": TEXTS, "input_type": "search_document"}


def embeddings() -> None:
    with cohere.ClientV2(api_key="none", base_url=URL) as client:
        types = ["float", "base64", "binary", "ubinary"]
        answer = client.embed(embedding_types=types, **FIELDS)
        vectors = answer.embeddings.float_
        assert len(vectors) == 2 and len(vectors[0]) == 32, answer
        assert len(answer.embeddings.binary[0]) == len(answer.embeddings.ubinary[0]) == 4
        assert answer.texts == TEXTS and len(answer.embeddings.base64) == 2
        cut = client.embed(embedding_types=["float"], output_dimension=8, **FIELDS)
        assert len(cut.embeddings.float_[0]) == 8


def an_error() -> None:
    with cohere.ClientV2(api_key="none", base_url=URL) as client:
        try:
            client.embed(**{**FIELDS, "model": "other"}, embedding_types=["float"])
            raise AssertionError("there is such a model")
        except cohere.errors.NotFoundError as error:
            assert "does not exist" in str(error), error


async def asynchronous() -> None:
    async with cohere.AsyncClientV2(api_key="none", base_url=URL) as client:
        answer = await client.embed(embedding_types=["float"], **FIELDS)
        assert len(answer.embeddings.float_) == 2


embeddings()
an_error()
asyncio.run(asynchronous())
