"""Requests as an engine gets them, for tests that queue none through an intake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.request import Request


def resolved(
    request_id: str, prompt: Sequence[int], max_total_tokens: int = 100, **fields: Any
) -> ResolvedRequest:
    return ResolvedRequest(
        **{
            "request_id": request_id,
            "parent_id": request_id,
            "prompt_token_ids": prompt,
            "max_total_tokens": max_total_tokens,
            **fields,
        }
    )


def respecify(request: Request, **changes: Any) -> None:
    """Change what a request asked for, in place."""
    request.spec = replace(request.spec, **changes)
