"""What ``generation_config.json`` says: end tokens, and how the model's makers sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostroke.core.errors import InvalidRequestError, ModelLoadError
from twostroke.core.operator.sampling_defaults import SAMPLING_DEFAULTS
from twostroke.core.sampling_params import SamplingParams
from twostroke.model_spec.config_fields import CHECK, short
from twostroke.model_spec.json_files import read_object


def read_generation(folder: Path) -> dict[str, Any]:
    """The contents of ``generation_config.json``, empty without one. Raises ModelLoadError."""
    path = folder / "generation_config.json"
    return read_object(path) if path.is_file() else {}


def read_sampling_defaults(raw: Mapping[str, Any], path: Path) -> dict[str, float]:
    """What ``generation_config.json`` recommends, as fields of ``SamplingParams``.

    Args:
        path: The checkpoint's path, for the error.

    Raises:
        ModelLoadError: A value is out of range.
    """
    defaults = {name: raw[name] for name in SAMPLING_DEFAULTS if raw.get(name) is not None}
    try:
        SamplingParams(**defaults)
    except InvalidRequestError as error:
        hint = "mend the file, or start with --generation-config vllm"
        raise ModelLoadError(
            f"{path}: generation_config.json: {error.message}", hint=hint
        ) from error
    return defaults


def parse_end_tokens(*sources: Mapping[str, Any]) -> tuple[int, ...]:
    """The end tokens of several files, each once, in order. Raises ModelLoadError."""
    tokens: dict[int, None] = {}
    for source in sources:
        value = source.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and not isinstance(token, bool):
                tokens[token] = None
            elif token is not None:
                raise ModelLoadError(
                    f"config.json: eos_token_id must be token ids, got {short(value)}", hint=CHECK
                )
    return tuple(tokens)
