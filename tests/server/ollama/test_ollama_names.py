"""Protects: a model's own name stays its own, whatever adapters are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twostroke.server.ollama.names import known_model


def test_an_adapter_does_not_take_the_models_name() -> None:
    client = SimpleNamespace(adapters={"foo:latest": 1, "sql": 2})
    model: Any = SimpleNamespace(names=("foo",), client=client, named=lambda name: name)
    for name in ("foo", "foo:latest", None, "", "other"):
        assert known_model(model, name) is model
    for name in ("sql", "sql:latest"):
        found: Any = known_model(model, name)
        assert found == "sql"
