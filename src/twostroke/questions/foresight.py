"""What the pages Plan and Doctor ask: values, checked while they are decoded."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from twostroke.core.errors import InvalidRequestError
from twostroke.observability.frames.columns import StepFrame
from twostroke.questions.small_run import ModelName

Seconds = Annotated[float, Meta(gt=0, le=3600)]
MAX_TARGETS = 16
Asked = TypeVar("Asked")


class AskedPlan(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/inspect/plan``: a load and its targets at the 95th percentile.

    Attributes:
        users: Who wait for an answer and ask again at once.
        prompt: Tokens of a prompt, on average.
        output: Tokens of an answer, on average.
    """

    model: ModelName = "llama-3.1-8b"
    users: Annotated[int, Meta(ge=1, le=100_000)] = 100
    prompt: Annotated[int, Meta(ge=1, le=2**15)] = 1024
    output: Annotated[int, Meta(ge=1, le=4096)] = 256
    ttft: Seconds | None = None
    tpot: Seconds | None = None


class AskedTargets(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/inspect/doctor``; targets as ``twostroke serve --target`` has them."""

    targets: Annotated[
        list[Annotated[str, Meta(max_length=200)]], Meta(max_length=MAX_TARGETS)
    ] = []


class AskedDiagnosis(msgspec.Struct):
    """Steps to look at, none of them merged, and how their engine is set."""

    name: str
    frame: StepFrame
    num_blocks: int
    configuration: dict[str, object]
    targets: list[str]


def read_asked(body: bytes, kind: type[Asked]) -> Asked:
    """A body as a question. Raises ``InvalidRequestError`` that says what is wrong."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(
            f"the body is no question: {error}", hint="leave out what is not to be changed"
        ) from error
