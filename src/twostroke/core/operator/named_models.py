"""Several models of one server: their names, and how they divide the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.operator.lora_config import is_adapter_name
from twostroke.core.speculation_config import SpeculationConfig

_HINT = "write several models as NAME=MODEL; names have letters, digits and . _ : / -"


def named_models(given: Sequence[str]) -> dict[str, str]:
    """Models by name, in order; one that is given without a name has the empty one.

    Raises:
        ConfigError: Several are given, and one has no name or that of another.
    """
    models: dict[str, str] = {}
    for each in given:
        name, equals, model = each.partition("=")
        if not (equals and is_adapter_name(name)) or Path(each).exists():
            name, model = "", each
        if not model or (not name and len(given) > 1):
            raise ConfigError(f"{each!r} is no model with a name", hint=_HINT)
        if name in models:
            raise ConfigError(f"two models are called {name}", hint="give each another name")
        models[name] = model
    return models


def parse_shares(given: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Which share of the memory each model's KV cache gets; together 1.

    Args:
        given: ``NAME=PART`` each; models that are not named have part 1.

    Raises:
        ConfigError: One is malformed, or names no model.
    """
    parts = dict.fromkeys(names, 1.0)
    for each in given:
        name, _, text = each.partition("=")
        try:
            part = float(text)
        except ValueError:
            part = 0.0
        if name not in parts or not 0 < part < 1e6:
            raise ConfigError(
                f"--kv-cache-share must be NAME=PART with a part above 0, got {each!r}",
                hint=f"the models are {', '.join(names) or 'not named'}: serve them as NAME=MODEL",
            )
        parts[name] = part
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def configs_by_name(
    config: EngineConfig, models: Mapping[str, str], shares: Mapping[str, float]
) -> dict[str, EngineConfig]:
    """The configuration of each model's engine.

    What is said of one model (adapters, speculation, chat template, revision, recording) is said of
    the first; tiers on disk are apart.

    Args:
        config: That of the first, with the memory of all.
    """
    return {
        name: with_share(_other(config, name, model) if number else config, shares[name])
        for number, (name, model) in enumerate(models.items())
    }


def _other(config: EngineConfig, name: str, model: str) -> EngineConfig:
    tiers, defaults = config.tiers, EngineConfig()
    if tiers.kv_disk is not None:
        tiers = replace(tiers, kv_disk=str(Path(tiers.kv_disk) / name.replace("/", "_")))
    return replace(
        config,
        model=replace(config.model, model=model, revision=None),
        adapters=replace(config.adapters, lora=()),
        speculation=SpeculationConfig(),
        chat=defaults.chat,
        observability=replace(config.observability, record=None),
        tiers=tiers,
    )


def with_share(config: EngineConfig, share: float) -> EngineConfig:
    """The configuration of an engine that gets a share of the memory for its KV cache."""
    cache = config.cache
    memory = None if cache.kv_cache_memory is None else max(1, int(cache.kv_cache_memory * share))
    divided = replace(cache, kv_cache_memory=memory, memory_share=cache.memory_share * share)
    return replace(config, cache=divided)
