"""Prepares a model for adapters, and loads those that the operator named."""

from __future__ import annotations

from twostroke.core.errors import ConfigError
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.engine.adapters.registry import Adapters
from twostroke.models.decoder import Decoder
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.adapters.places import AdapterPlaces
from twostroke.runtime.adapters.store import AdapterStore


def adapter_places(options: LoraConfig, *, is_foreign: bool) -> AdapterPlaces | None:
    """What a model that may get adapters is built with, or ``None``: it gets none.

    Raises:
        ConfigError: Another library's code runs the model.
    """
    if not options.wanted:
        return None
    if is_foreign:
        raise ConfigError(
            "LoRA adapters need a model that runs on twostroke's own code, this one runs on"
            " transformers'",
            hint="leave out --lora and --enable-lora, or merge the adapter into the model",
        )
    return AdapterPlaces()


def open_store(
    options: LoraConfig,
    model: LanguageModel,
    places: AdapterPlaces | None,
    adapters: Adapters | None,
) -> AdapterStore | None:
    """The store of the model's adapters, with those that were named in it.

    Args:
        adapters: Looks after them; by default one that only has what was named.

    Raises:
        ModelLoadError, InsufficientMemoryError: One cannot be loaded.
    """
    if places is None or not isinstance(model, Decoder):
        return None
    store = AdapterStore(model, places)
    (adapters or Adapters(options)).attach(store)
    return store
