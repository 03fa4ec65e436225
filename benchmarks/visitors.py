"""Clients as a server meets them: polite ones, those that leave, those that send nonsense."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import jsonschema

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUESTIONS = (
    "What is the KV cache?",
    "Why is decode slower than prefill?",
    "What is chunked prefill?",
    "Say hello \N{WAVING HAND SIGN} in three languages: 你好, été, straße.",
)
GOOD_SECONDS = 120.0  # after which a good request hangs


@dataclass(slots=True)
class Tally:
    """What became of the visits, by kind; ``errors`` keeps the first few of each kind in words."""

    visits: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)

    def fail(self, kind: str, error: str) -> None:
        self.failed[kind] += 1
        if self.failed[kind] <= 5:
            self.errors.append(f"{kind}: {error}")


class UnexpectedAnswerError(Exception):
    """The server answered, but not what this visitor is owed."""


class Visitor:
    """One client after another from the same place.

    Args:
        max_model_len: The model's context, in tokens.
        max_body_size: The server's limit, in bytes.
        key: The API key that it sends.
    """

    def __init__(
        self,
        url: str,
        seed: str,
        tally: Tally,
        *,
        max_model_len: int,
        max_body_size: int,
        key: str,
    ) -> None:
        self._url = url
        self._random = Random(seed)
        self._tally = tally
        self._context = max_model_len
        self._max_body = max_body_size
        self._authorization = f"Bearer {key}"
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=GOOD_SECONDS,
            trust_env=False,
            headers={"authorization": self._authorization},
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def visit(self) -> None:
        """One visit of a random kind; whatever is wrong with the answer is counted."""
        kinds: dict[Callable[[], Awaitable[None]], int] = {
            self.ask: 30,
            self.ask_streaming: 30,
            self.fill_a_form: 15,
            self.call_a_tool: 15,
            self.abort: 15,
            self.vanish: 10,
            self.send_nonsense: 10,
            self.send_too_much: 5,
        }
        (act,) = self._random.choices(list(kinds), list(kinds.values()))
        kind = act.__name__
        try:
            await act()
        except UnexpectedAnswerError as error:
            self._tally.fail(kind, str(error))
        except (
            httpx.HTTPError,
            OSError,
            ValueError,
            KeyError,
            IndexError,
            jsonschema.ValidationError,
        ) as error:
            self._tally.fail(kind, f"{type(error).__name__}: {error}")
        self._tally.visits[kind] += 1

    # ---- those who behave ------------------------------------------------------------------------

    async def ask(self) -> None:
        """A whole answer."""
        path, body = self._question()
        response = await self._http.post(path, json=body)
        _expect(response, 200)
        answer = response.json()
        if len(answer["choices"]) != body["n"] or any(
            c["finish_reason"] not in FINISHED for c in answer["choices"]
        ):
            raise UnexpectedAnswerError(response.text[:200])
        self._tally.tokens += answer["usage"]["completion_tokens"]

    async def ask_streaming(self) -> None:
        """A streamed answer, to its end."""
        path, body = self._question()
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        finished, usage, last = 0, 0, ""
        async with self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
            _expect(response, 200)
            async for line in response.aiter_lines():
                if not line:
                    continue
                last = line.removeprefix("data: ")
                if last != "[DONE]":
                    event = json.loads(last)
                    if "error" in event:
                        raise UnexpectedAnswerError(last[:200])
                    finished += sum(
                        choice["finish_reason"] in FINISHED for choice in event["choices"]
                    )
                    usage = (event["usage"] or {}).get("completion_tokens", 0)
        if (last, finished) != ("[DONE]", body["n"]) or not usage:
            raise UnexpectedAnswerError(
                f"{finished} of {body['n']} finished, {usage} tokens, and last {last[:100]!r}"
            )
        self._tally.tokens += usage

    def _question(self) -> tuple[str, dict[str, Any]]:
        random = self._random
        body: dict[str, Any] = {
            "n": random.choice((1, 1, 1, 3)),
            "max_tokens": random.randint(1, 96),
            "temperature": random.choice((0, 0.7, 1.3)),
        }
        if random.random() < 0.2:
            body["stop"] = random.choice((["."], ["the", "\n\n"], "e"))
        if random.random() < 0.2:
            body["cache_salt"] = str(random.randrange(4))
        if random.random() < 0.5:
            body["messages"] = [{"role": "user", "content": random.choice(QUESTIONS)}]
            if random.random() < 0.2:
                body |= {"logprobs": True, "top_logprobs": random.randint(0, 5)}
            return CHAT, body
        body["prompt"] = [random.randrange(10, 256) for _ in range(random.randint(1, 400))]
        return TEXT, body

    async def fill_a_form(self) -> None:
        """JSON by a schema: what ends by itself fits it. Some leave in the middle."""
        name, schema = self._random.choice(list(FORMS.items()))
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": self._random.choice(QUESTIONS)}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": name, "schema": schema},
            },
            "max_tokens": self._random.randint(1, 96),
            "temperature": self._random.choice((0, 1)),
        }
        if self._random.random() < 0.3:
            await self._leave_a_stream(CHAT, body)
            return
        response = await self._http.post(CHAT, json=body)
        _expect(response, 200)
        answer = response.json()
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)
        self._tally.tokens += answer["usage"]["completion_tokens"]

    async def call_a_tool(self) -> None:
        """A loop: a call that fits its tool, then an answer to the result. Some leave before."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": "What fits on a GPU?"}]
        body = {
            "messages": messages,
            "tools": [TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_tokens": 120,
        }
        if self._random.random() < 0.3:
            await self._leave_a_stream(CHAT, body)
            return
        response = await self._http.post(CHAT, json=body)
        _expect(response, 200)
        choice = response.json()["choices"][0]
        if choice["finish_reason"] != "tool_calls":
            raise UnexpectedAnswerError(response.text[:200])
        (call,) = choice["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, TOOL["function"]["parameters"])
        messages += [choice["message"]]
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "yes"}]
        answer = await self._http.post(CHAT, json=body | {"tool_choice": "auto", "max_tokens": 32})
        _expect(answer, 200)
        self._tally.tokens += answer.json()["usage"]["completion_tokens"]

    # ---- those who leave -------------------------------------------------------------------------

    async def abort(self) -> None:
        """Closes a stream after a few events."""
        path, body = self._question()
        await self._leave_a_stream(path, body | {"max_tokens": 400, "ignore_eos": True})

    async def _leave_a_stream(self, path: str, body: dict[str, Any]) -> None:
        body = body | {"stream": True}
        events = self._random.randint(0, 10)
        async with self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
            _expect(response, 200)
            async for line in response.aiter_lines():
                events -= bool(line)
                if events < 0:
                    return

    async def vanish(self) -> None:
        """Drops the connection: amid the request, or while its answer is computed."""
        path, body = self._question()
        data = json.dumps(
            body | {"max_tokens": 400, "ignore_eos": True, "stream": self._random.random() < 0.5}
        ).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization:"
            f" {self._authorization}\r\ncontent-type:"
            f" application/json\r\ncontent-length: {len(data)}\r\n"
        )
        request = f"{head}\r\n".encode() + data
        sent = len(request) if self._random.random() < 0.7 else self._random.randrange(len(request))
        address = urlsplit(self._url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(request[:sent])
            await writer.drain()
            await asyncio.sleep(self._random.random() * 0.3)
            if self._random.random() < 0.5:
                writer.transport.abort()  # a reset rather than an orderly end
        finally:
            writer.close()

    # ---- those that send nonsense ----------------------------------------------------------------

    async def send_nonsense(self) -> None:
        """What is wrong in itself; the answer is a 4xx in OpenAI's shape."""
        path = self._random.choice((CHAT, TEXT, "/tokenize", "/detokenize"))
        content = self._random.choice(NONSENSE)
        response = await self._http.post(
            path, content=content, headers={"content-type": "application/json"}
        )
        _expect(response, 400, 404)
        if not response.json()["error"]["message"]:
            raise UnexpectedAnswerError("an error without a message")

    async def send_too_much(self) -> None:
        """A prompt beyond the context, as tokens or as text, or a body beyond the limit."""
        body: dict[str, Any] = {"prompt": [11] * (self._context + self._random.randrange(1000))}
        what = self._random.randrange(3)
        if what == 1:
            body = {"prompt": "word " * self._context * 20}
        if what == 2:
            response = await self._http.post(TEXT, content=b" " * (self._max_body + 1))
            _expect(response, 413)
            return
        response = await self._http.post(TEXT, json=body)
        _expect(response, 400)
        if response.json()["error"]["code"] != "context_length_exceeded":
            raise UnexpectedAnswerError(response.text[:200])


FINISHED = ("stop", "length", "tool_calls")
FORMS: dict[str, dict[str, Any]] = {
    "size": {
        "type": "object",
        "properties": {
            "gpu": {"enum": ["A100", "H100"]},
            "gigabytes": {"type": "integer", "minimum": 1, "maximum": 999},
            "fits": {"type": "boolean"},
        },
        "required": ["gpu", "fits"],
        "additionalProperties": False,
    },
    "tree": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 9},
            "below": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "texts": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "minItems": 1},
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "fits", "parameters": FORMS["size"], "strict": True},
}
NONSENSE: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 3000,
    b'{"prompt": "x", "messages": "x", "tokens": "x"}',
    b'{"prompt": "x", "model": "another"}',
    b'{"prompt": "x", "temperature": 1e999}',
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "x", "n": 100000}',
    b'{"prompt": "x", "no_such_field": 1}',
    b'{"prompt": "\\ud800"}',
    b'{"messages": [{"role": "king", "content": "x"}]}',
    (
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url":'
        b' "http://x"}}]}]}'
    ),
    b'{"messages": [], "prompt": [], "tokens": [1e9]}',
    b'{"prompt": "x", "guided_json": {"not": {}}}',
    b'{"prompt": "x", "guided_json": {"$ref": "#"}}',
    (
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{}], "tokens": [-1], "prompt":'
        b" [-1]}"
    ),
)


def _expect(response: httpx.Response, *statuses: int) -> None:
    if response.status_code not in statuses:
        raise UnexpectedAnswerError(f"HTTP {response.status_code}: {response.text[:200]}")
