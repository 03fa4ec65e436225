"""All routes of this dialect, and all that they answer with."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter

from twostroke.inspector.model.facts import FindFacts
from twostroke.server.ollama.embed_routes import (
    OllamaEmbedding,
    OllamaEmbeddings,
    ollama_embed_router,
)
from twostroke.server.ollama.generation_answer import ChatLine, GenerateLine
from twostroke.server.ollama.generation_routes import ollama_generation_router
from twostroke.server.ollama.library_routes import PullStatus, ollama_library_router
from twostroke.server.ollama.model_answers import ListedModels, RunningModels, ShownModel
from twostroke.server.ollama.model_routes import OllamaModelRoutes, OllamaVersion
from twostroke.server.plain_shapes import OllamaError
from twostroke.server.state.server_state import ServerState

OLLAMA_ANSWERS: tuple[type[msgspec.Struct], ...] = (
    ChatLine,
    GenerateLine,
    OllamaEmbeddings,
    OllamaEmbedding,
    ListedModels,
    RunningModels,
    ShownModel,
    OllamaVersion,
    PullStatus,
    OllamaError,
)


def ollama_router(state: ServerState, find_facts: FindFacts) -> APIRouter:
    """The routes; ``find_facts`` tells of the loaded model."""
    router = APIRouter(tags=["ollama"])
    router.include_router(ollama_generation_router(state))
    router.include_router(ollama_embed_router(state))
    router.include_router(OllamaModelRoutes(state, find_facts).router())
    router.include_router(ollama_library_router(state))
    return router
