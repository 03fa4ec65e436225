"""A small simulated run that a page asks for, and its answer: values, checked while decoded."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from twostroke.core.errors import InvalidRequestError

IDLE_SECONDS = 60.0  # an answering process that gets no question for this long ends by itself
ANSWERED, REFUSED = b"answered ", b"refused "  # how each of its lines begins
MAX_PROMPT_TOKENS = 2**18  # of all requests together
MAX_OUTPUT_TOKENS = 2**13  # of all requests together: most steps of a run decode

Arrival = Annotated[float, Meta(ge=0, le=120)]
PromptTokens = Annotated[int, Meta(ge=1, le=2**16)]
OutputTokens = Annotated[int, Meta(ge=1, le=2**10)]
Replicas = Annotated[int, Meta(ge=1, le=2)]
Devices = Annotated[int, Meta(ge=1, le=8)]
Places = Annotated[int, Meta(ge=1, le=256)]
Budget = Annotated[int, Meta(ge=64, le=2**16)]
BlockSize = Annotated[int, Meta(ge=1, le=1024)]
KVTokens = Annotated[int, Meta(ge=1024, le=2**20)]
Drafts = Annotated[int, Meta(ge=0, le=8)]
Probability = Annotated[float, Meta(ge=0, le=1)]

# By name alone: a path would let a caller read the server's files.
ModelName = Literal["llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-30b-a3b"]
GPUName = Literal["l4", "rtx-4090", "a100-80gb-sxm", "h100-sxm", "h200", "b200"]


class AskedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One request of the run.

    Attributes:
        arrival: Seconds after the start.
        prompt: Tokens of its prompt.
        output: How many tokens it is given.
        prefix: Tokens of the prompt's begin that are equal in all requests of the same ``group``.
    """

    arrival: Arrival = 0.0
    prompt: PromptTokens = 128
    output: OutputTokens = 64
    prefix: Annotated[int, Meta(ge=0, le=2**16)] = 0
    group: Annotated[int, Meta(ge=0, le=255)] = 0


class AskedRun(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/inspect/simulate``.

    Attributes:
        tp: Devices that share the model.
        kv_tokens: Tokens that the KV cache holds; by default what the device has room for.
        speculative_tokens: Drafted for each request and step; 0: no speculation.
        acceptance: Probability that a draft is accepted, given that those before it were.
    """

    requests: Annotated[list[AskedRequest], Meta(min_length=1, max_length=64)]
    model: ModelName = "llama-3.1-8b"
    gpu: GPUName = "h100-sxm"
    tp: Devices = 1
    replicas: Replicas = 1
    batching: Literal["continuous", "static"] = "continuous"
    max_num_seqs: Places = 64
    max_num_batched_tokens: Budget = 8192
    enable_prefix_caching: bool = True
    block_size: BlockSize = 16
    kv_tokens: KVTokens | None = None
    speculative_tokens: Drafts = 0
    acceptance: Probability = 0.7


class RequestRun(msgspec.Struct):
    """What became of one request, in seconds since the start.

    Attributes:
        number: Its place in the question.
        tpot: Mean time per output token after the first; 0 if there is no second.
        worst_gap: Longest time between two of its tokens.
    """

    number: int
    replica: int
    arrival: float
    scheduled: float
    first_token: float
    finish: float
    ttft: float
    tpot: float
    worst_gap: float
    cached: int
    preemptions: int


class RunSteps(msgspec.Struct):
    """The steps of all replicas in order of their begin: one entry a step in each column.

    Attributes:
        prompt: Prompt tokens that the step computed.
        new: Output tokens that it gave.
        waste: Share of the allocated KV slots that hold no token.
    """

    replica: list[int] = []
    begin: list[float] = []
    end: list[float] = []
    tokens: list[int] = []
    prompt: list[int] = []
    new: list[int] = []
    running: list[int] = []
    waiting: list[int] = []
    free: list[int] = []
    waste: list[float] = []


class RunShares(msgspec.Struct):
    """What each request got of each step: ``step`` is a row of ``RunSteps``."""

    step: list[int] = []
    request: list[int] = []
    prompt: list[int] = []
    new: list[int] = []
    drafts: list[int] = []
    accepted: list[int] = []


class Device(msgspec.Struct):
    """What the times depend on; ``flops`` are dense ones in the weights' format, per device.

    Attributes:
        memory_bytes: What one device has.
        weight_bytes: Those on one device.
        price_per_hour: US dollars for one device by its sheet; 0: not stated.
    """

    title: str
    memory_bytes: float
    memory_bandwidth: float
    flops: float
    weight_bytes: int
    kv_bytes_per_token: float
    num_blocks: int
    block_size: int
    price_per_hour: float = 0.0


class SimulatedRun(msgspec.Struct):
    """Answer of ``POST /v1/inspect/simulate``; ``refused`` are requests that do not fit."""

    seconds: float
    device: Device
    requests: list[RequestRun]
    steps: RunSteps
    shares: RunShares
    refused: list[int] = []


def read_question(body: bytes) -> AskedRun:
    """The run that a body asks for.

    Raises:
        InvalidRequestError: A field is missing, unknown or out of range, by its name.
    """
    try:
        asked = msgspec.json.decode(body, type=AskedRun)
    except UnicodeDecodeError as error:  # a string in it is no UTF-8
        raise InvalidRequestError(f"the body is no JSON: {error}") from error
    except msgspec.DecodeError as error:
        text, _, path = str(error).partition(" - at `")
        param = path.rstrip("`").removeprefix("$").removeprefix(".") or None
        if unknown := re.search(r"unknown field `(.+)`", text):
            param = f"{param}.{unknown[1]}" if param else unknown[1]
        elif missing := re.search(r"missing required field `(.+)`", text):
            param = f"{param}.{missing[1]}" if param else missing[1]
        message = f"{param}: {text}" if param else text
        raise InvalidRequestError(message, param=param) from error
    for name, most in (("prompt", MAX_PROMPT_TOKENS), ("output", MAX_OUTPUT_TOKENS)):
        total = sum(getattr(request, name) for request in asked.requests)
        if total > most:
            raise InvalidRequestError(
                f"requests: {total} {name} tokens in all, and at most {most} are simulated",
                param="requests",
                hint="ask for fewer or shorter requests",
            )
    for place, request in enumerate(asked.requests):
        if request.prefix > request.prompt:
            raise InvalidRequestError(
                f"requests[{place}].prefix: {request.prefix}, but the prompt has"
                f" {request.prompt} tokens",
                param=f"requests[{place}].prefix",
            )
    return asked
