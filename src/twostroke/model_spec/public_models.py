"""Models by name: public ones known here, and those that are on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.model_files import EMBEDDED_MODELS, resolve_model
from twostroke.model_spec.reader import parse_model, read_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.model_spec.written_names import WrittenName, read_written_name

# The fields of public config.json files that counts depend on, by short name and Hub id. ``also``:
# other Hub ids of the same shapes; ``like``: the model from which a config differs in its fields.
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
    public, written = _public(), read_written_name(name)
    if (short := _public_name(name, written, public)) is not None:
        return _as_written(_config(short, public), written)
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
    keys = {read_written_name(short).key: short for short in public}
    near = [keys[key] for key in get_close_matches(written.key, keys)]
    of_all = "known by name: " + ", ".join(public) + "."
    suggestion = f"did you mean {' or '.join(near)}?" if near else of_all
    raise ModelLoadError(
        f"unknown model {shown!r}",
        hint=f"{suggestion} A folder or file with a config.json works too",
    )


def public_names() -> list[str]:
    """Short names of the models that are known here."""
    return list(_public())


def hub_id(name: str) -> str:
    """The Hub's name of a public model; any other name, and a Hub id, as it is."""
    public, written = _public(), read_written_name(name)
    if "/" in name or written.quantization is not None:
        return name
    short = _public_name(name, written, public)
    return name if short is None else str(public[short]["hub_id"])


def format_by_name(name: str) -> str | None:
    """The weight format that the name of a public model says, if that is not its maker's."""
    public, written = _public(), read_written_name(name)
    short = _public_name(name, written, public) if _on_disk(name) is None else None
    if short is None or written.quantization is None:
        return None
    config = _config(short, public)
    asked, own = _as_written(config, written).format, parse_model(config).format
    return None if asked == own else asked


def _public_name(name: str, written: WrittenName, public: Mapping[str, Any]) -> str | None:
    """The short name of a model; who writes an id of its own means that before all like it."""
    for short, entry in public.items():
        if name.lower() in {short, *(each.lower() for each in _ids(entry))}:
            return short
    for short, entry in public.items():
        if written.key in {read_written_name(each).key for each in (short, *_ids(entry))}:
            return short
    return None


def _ids(entry: Mapping[str, Any]) -> list[str]:
    return [entry["hub_id"], *entry.get("also", ())]


def _config(short: str, public: Mapping[str, Any]) -> dict[str, Any]:
    entry = public[short]
    base = _config(entry["like"], public) if "like" in entry else {}
    return {**base, **entry["config"]}


def _as_written(config: Mapping[str, Any], written: WrittenName) -> ModelSpec:
    """The model with its weights in the format that its name says, if it says one."""
    own = parse_model(config)
    if written.quantization is None:
        return own
    asked = parse_model({**config, "quantization_config": written.quantization})
    return own if own.format.startswith(asked.format) else asked


def _on_disk(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such home
        return None


@cache
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
