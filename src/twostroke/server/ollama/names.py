"""The names of the model in this API, where each has a tag."""

from __future__ import annotations

from twostroke.core.errors import ModelNotFoundError
from twostroke.server.state.served_model import ServedModel

LATEST = ":latest"


def tagged(name: str) -> str:
    """A name as Ollama's clients list and compare it: without a tag it is the latest."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def known_model(model: ServedModel, name: str | None) -> ServedModel:
    """The model with the adapter of that name, with a tag or without; itself for any other."""
    if not name or tagged(name) in map(tagged, model.names):
        return model
    for adapter in model.client.adapters:
        if tagged(adapter) == tagged(name):
            return model.named(adapter)
    return model


def known_name(model: ServedModel, name: str | None) -> str:
    """The name that the answer carries: the client's own, if the model has it.

    Raises:
        ModelNotFoundError: It has not, with a tag or without.
    """
    if not name:
        return tagged(model.name)
    if tagged(name) not in map(tagged, model.names):
        served = ", ".join(model.names)
        raise ModelNotFoundError(
            f"model {name[:200]!a} not found",
            param="model",
            hint=f"this server serves {served}, the model that it was started with",
        )
    return name
