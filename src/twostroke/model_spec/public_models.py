"""Models by name: public ones known here, and those that are on this machine."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.model_files import EMBEDDED_MODELS, resolve_model
from twostroke.model_spec.reader import parse_model, read_model
from twostroke.model_spec.spec import ModelSpec

_TUNING = re.compile(r"(-instruct|-chat|-hf|-it|-pt)+(?=-v[\d.]+$|$)")
# The fields of public config.json files that counts depend on, by short name and Hub id.
PUBLIC = Path(__file__).parent / "public_models.json"


def find_model(name: str) -> ModelSpec:
    """The description of a model by its name.

    It is embedded, a file or folder, public by short name or Hub id, or was downloaded before.

    Raises:
        ModelLoadError: There is no such model on this machine.
    """
    if name in EMBEDDED_MODELS:
        return read_model(resolve_model(name))
    if (path := _on_disk(name)) is not None:
        return read_model(path)
    public = _public()
    for short, entry in public.items():
        if name.lower() == short or _untuned(name) == _untuned(entry["hub_id"]):
            return parse_model(entry["config"])
    if (cached := _downloaded(name)) is not None:
        return read_model(cached)
    shown = name if len(name) <= 80 else name[:77] + "..."
    if name.startswith((".", "/", "~", "\\")) or name.endswith(
        ".json"
    ):  # neither a name nor a Hub id
        raise ModelLoadError(
            f"no file or folder {shown!r}",
            hint="give a config.json of a Hugging Face checkpoint, or its folder",
        )
    near = get_close_matches(name.lower(), public, n=1)
    names = ", ".join(public)
    suggestion = f"did you mean {near[0]}?" if near else f"known by name: {names}."
    raise ModelLoadError(
        f"unknown model {shown!r}",
        hint=f"{suggestion} A folder or file with a config.json works too",
    )


def public_names() -> list[str]:
    """Short names of the models that are known here."""
    return list(_public())


def hub_id(name: str) -> str:
    """The Hub's name of a public model; any other name as it is."""
    entry = _public().get(name.lower())
    return str(entry["hub_id"]) if entry else name


def _untuned(hub_id: str) -> str:
    """A Hub id without what says how a model was tuned: that changes no shape."""
    return _TUNING.sub("", hub_id.lower().replace("/meta-llama", "/llama"))


def _on_disk(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such home
        return None


def _public() -> dict[str, Any]:
    models: dict[str, Any] = json.loads(PUBLIC.read_text(encoding="utf-8"))
    return models


def _downloaded(name: str) -> Path | None:
    """The ``config.json`` in the Hub's local cache; the network is not asked."""
    # Imported here: a public model needs none of it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None
