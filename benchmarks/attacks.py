"""What one key can do to all others: the attacks of ``benchmarks.soak``, and of its quick test.

    TWOSTROKE_ATTACK_KEY=... python -m benchmarks.attacks fill_the_queue http://127.0.0.1:8000 60

Runs as a process of its own, so that what it costs to attack does not delay what is measured.
An attack is one round; rounds follow each other, some at a time, whatever the server answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import cyclopts
import httpx

from benchmarks.body_delay import LIMIT, thoughts, worst_bodies
from tests.constraints.hostile_forms import SCHEMAS, UNENDED, rules
from twostroke.http.body_size import TRIM_SECONDS

KEY_VARIABLE = "TWOSTROKE_ATTACK_KEY"
TEXT = "/v1/completions"
ROUND_SECONDS = 20.0
# A refusal comes quickly: this keeps the attacker from taking the processor that is measured.
PAUSE_SECONDS = 0.02
NUM_SLOW_BODIES = 20
FEED_SECONDS = 2.0
ENOUGH_FORMS, MAX_ROUNDS_OF_FORMS = 150, 20  # a hundred fill the cache, see `MAX_KEY_CHARS`


class Attacker:
    """The hostile key's client.

    Args:
        patience: Seconds after which it gives up on a request.

    Attributes:
        num_rounds: Of the attack that ended, whatever the server answered.
        num_sent: Requests.
        statuses: Of the answers that it waited for.
    """

    def __init__(self, url: str, key: str, patience: float = ROUND_SECONDS) -> None:
        self.url = url
        self.patience = patience
        self.headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self.num_rounds = self.num_sent = 0
        self.statuses: Counter[int] = Counter()
        self._http = httpx.AsyncClient(
            base_url=url, headers=self.headers, timeout=patience, trust_env=False
        )

    async def post(self, body: object, path: str = TEXT) -> None:
        """Send a body, as JSON or as the bytes that it is, and leave if no answer comes in time."""
        content: dict[str, Any] = {"content" if isinstance(body, bytes) else "json": body}
        self.num_sent += 1
        with suppress(httpx.HTTPError):
            response = await self._http.post(path, **content)
            self.statuses[response.status_code] += 1

    async def get(self, path: str) -> None:
        """The same without a body."""
        self.num_sent += 1
        with suppress(httpx.HTTPError):
            response = await self._http.get(path)
            self.statuses[response.status_code] += 1

    async def watch(self, path: str, seconds: float) -> None:
        """Open an event stream and take what comes, for a while."""
        self.num_sent += 1
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(seconds), self._http.stream("GET", path) as response:
                self.statuses[response.status_code] += 1
                async for _ in response.aiter_raw():
                    pass

    async def close(self) -> None:
        await self._http.aclose()


Attack = Callable[[Attacker], Awaitable[None]]


async def fill_the_queue(attacker: Attacker) -> None:
    """A hundred bytes that ask for a thousand endless samples."""
    await attacker.post({"prompt": ["a"] * 8, "n": 128, "max_tokens": 2000, "ignore_eos": True})


async def many_samples(attacker: Attacker) -> None:
    """Two small calls of so many long samples that any prediction made from them is long, too."""
    body = {"prompt": "a", "n": 128, "max_tokens": 2000, "ignore_eos": True}
    await asyncio.gather(attacker.post(body), attacker.post(body))


async def long_stop_strings(attacker: Attacker) -> None:
    """1,024 samples that each look for 16 strings of 1,024 characters."""
    stop = [("ab" * 512)[:1022] + f"{i:02}" for i in range(16)]
    await attacker.post({"prompt": ["a"] * 8, "n": 128, "max_tokens": 500, "stop": stop})


async def utf_16_bodies(attacker: Attacker) -> None:
    """Deep nesting in encodings in which a search for brackets in bytes does not see it."""
    nested = '{"prompt": ' + "[" * 400_000 + "]" * 400_000 + "}"
    for encoding in ("utf-16", "utf-32-le"):
        await attacker.post(nested.encode(encoding))


async def slow_to_read(attacker: Attacker) -> None:
    """Bodies within the limit on bytes that take long to read, or to answer; in any order."""
    bodies = worst_bodies()
    for body in random.sample(bodies, len(bodies)):
        await attacker.post(body.content, body.path)


async def many_logprobs(attacker: Attacker) -> None:
    """Calls that keep as many log-probabilities as they may, and more."""
    body = {"prompt": ["a"], "n": 8, "max_tokens": 500, "ignore_eos": True, "logprobs": 20}
    larger = {**body, "n": 128, "max_tokens": 700}
    await asyncio.gather(*(attacker.post(body) for _ in range(4)), attacker.post(larger))


async def hostile_forms(attacker: Attacker) -> None:
    """Schemas and grammars that have ended the process, by recursion through their references."""
    await attacker.post({"prompt": "a", "structured_outputs": {"json": SCHEMAS["items"]}})
    await attacker.post({"prompt": "a", "structured_outputs": {"grammar": rules("{}", 3_200)}})


async def unended_forms(attacker: Attacker) -> None:
    """Grammars whose texts, expressions and tokens have no end."""
    for grammar in UNENDED.values():
        await attacker.post({"prompt": "a", "structured_outputs": {"grammar": grammar}})


async def slow_forms(attacker: Attacker) -> None:
    """Under a hundred bytes each: forms whose every token takes a millisecond to look up."""
    for regex in ("a{8000}", "a{30000}"):
        form = {"regex": regex}
        await attacker.post({"prompt": "a", "n": 64, "max_tokens": 64, "structured_outputs": form})


async def late_forms(attacker: Attacker) -> None:
    """The same behind a few free characters, where no look at the beginning finds them."""
    late = {"const": "x" * 30_000}
    schema = {"properties": {"a": {"type": "string"}, "b": late}, "required": ["a", "b"]}
    for form in (
        {"regex": "[ab]{8}a{8000}"},
        {"regex": "[ab]{8}" + "xyz" * 10_000},
        {"json": {"type": "object", "additionalProperties": False, **schema}},
        {"grammar": f'start: /[ab]{{8}}/ "{"x" * 30_000}"'},
    ):
        await attacker.post({"prompt": "a", "n": 64, "max_tokens": 64, "structured_outputs": form})


async def full_forms(attacker: Attacker) -> None:
    """Long answers that fill what a grammar remembers, by a schema that others may use, too."""
    schema = {"type": "string", "minLength": 2000, "maxLength": 8000}
    body = {"prompt": "a", "n": 8, "max_tokens": 600, "temperature": 1.5}
    await attacker.post({**body, "structured_outputs": {"json": schema}})


async def new_forms(attacker: Attacker) -> None:
    """Forty forms at once that nobody has used before."""
    values = [f"value {number}" for number in range(1_500)]
    bodies = [
        {"prompt": "a", "max_tokens": 1, "guided_json": {"enum": [*values, str(random.random())]}}
        for _ in range(40)
    ]
    await asyncio.gather(*map(attacker.post, bodies))


async def many_thoughts(attacker: Attacker) -> None:
    """Eight thousand thoughts of one turn."""
    for body in thoughts():
        await attacker.post(body.content, body.path)


async def many_reads(attacker: Attacker) -> None:
    """All that the server remembers, by sixteen connections at once."""
    everything = f"/v1/inspect/steps?from=0&to={2**40}"
    paths = (everything, "/v1/inspect/state?blocks=true", "/v1/cache", "/metrics")
    await asyncio.gather(*(attacker.get(path) for path in paths for _ in range(4)))


async def many_feeds(attacker: Attacker) -> None:
    """More open feeds of the inspector than a key may have, each from the beginning."""
    feed = "/v1/inspect/events?since=0"
    await asyncio.gather(*(attacker.watch(feed, FEED_SECONDS) for _ in range(12)))


async def oversized_bodies(attacker: Attacker) -> None:
    """Eight bodies at once, each four times as large as allowed, on connections that then end."""
    await asyncio.gather(*(_send_all(attacker, b" " * (4 * LIMIT)) for _ in range(8)))


async def half_sent_bodies(attacker: Attacker) -> None:
    """Connections that each send most of a large body, and then drip."""
    await asyncio.gather(*(_drip(attacker) for _ in range(NUM_SLOW_BODIES)))


ATTACKS: Mapping[str, Attack] = {
    attack.__name__: attack
    for attack in (
        fill_the_queue,
        many_samples,
        long_stop_strings,
        utf_16_bodies,
        slow_to_read,
        many_logprobs,
        hostile_forms,
        unended_forms,
        slow_forms,
        late_forms,
        full_forms,
        new_forms,
        many_thoughts,
        many_reads,
        many_feeds,
        oversized_bodies,
        half_sent_bodies,
    )
}


async def send_each_body_once(url: str, key: str) -> None:
    """What any body, or a full cache of grammars, makes grow is grown then, in a short run, too."""
    attacker = Attacker(url, key)
    await slow_to_read(attacker)
    await many_thoughts(attacker)
    for _ in range(MAX_ROUNDS_OF_FORMS):
        if attacker.statuses[200] >= ENOUGH_FORMS:
            break
        await new_forms(attacker)
    await attacker.close()


async def have_memory_returned(url: str, key: str) -> None:
    """Send so much that the server gives the system what it has freed, whatever came last.

    What stays resident then is in use: holes in the heaps come and go with each attack.
    """
    attacker = Attacker(url, key)
    for _ in range(8):  # one after the other: the last is freed, too, when that happens
        await _send_all(attacker, b" " * (4 * LIMIT))
    await attacker.close()
    await asyncio.sleep(2 * TRIM_SECONDS)


def main(
    name: str,
    url: str,
    seconds: float,
    *,
    concurrency: int = 2,
    patience: float = ROUND_SECONDS,
) -> int:
    """Attack for a while. To stdout go an empty line when it begins, and at the end, as JSON, what
    was sent and answered.

    Args:
        name: One of ``ATTACKS``.
        concurrency: Rounds at a time.
        patience: Seconds after which a request is given up.
    """
    key = os.environ[KEY_VARIABLE]
    print(flush=True)
    attacker = asyncio.run(attack(ATTACKS[name], url, key, seconds, concurrency, patience))
    numbers = {"rounds": attacker.num_rounds, "sent": attacker.num_sent}
    print(json.dumps({**numbers, "statuses": attacker.statuses}))
    return 0


async def attack(
    kind: Attack, url: str, key: str, seconds: float, concurrency: int, patience: float
) -> Attacker:
    """Rounds of one attack for ``seconds``."""
    attacker = Attacker(url, key, patience)

    async def again_and_again() -> None:
        while True:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(ROUND_SECONDS):
                    await kind(attacker)
            attacker.num_rounds += 1
            await asyncio.sleep(PAUSE_SECONDS)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(again_and_again() for _ in range(concurrency)))
    await attacker.close()
    return attacker


async def _drip(attacker: Attacker) -> None:
    async with _begun(attacker, LIMIT) as (_, writer):
        writer.write(b" " * (LIMIT * 3 // 4))
        while True:
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.write(b" ")


async def _send_all(attacker: Attacker, body: bytes) -> None:
    """Send a body to its end, as urllib does, and only then read the answer."""
    async with _begun(attacker, len(body), "connection: close") as (reader, writer):
        writer.write(body)
        await writer.drain()
        if status := (await reader.readline()).split()[1:2]:
            attacker.statuses[int(status[0])] += 1


@asynccontextmanager
async def _begun(
    attacker: Attacker, length: int, *more: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which a request's head has been sent."""
    address = urlsplit(attacker.url)
    lines = [f"{name}: {value}" for name, value in attacker.headers.items()]
    lines = [f"POST {TEXT} HTTP/1.1", "host: localhost", *lines, f"content-length: {length}", *more]
    attacker.num_sent += 1
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        yield reader, writer
    finally:
        writer.transport.abort()


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
