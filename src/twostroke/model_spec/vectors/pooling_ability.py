"""Whether a model gives embeddings, and how: from its files and from ``--convert``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.core.config import ModelOptions
from twostroke.core.errors import ModelLoadError
from twostroke.core.pooling import PoolingAbility, PoolingKind
from twostroke.model_spec.vectors.pooling_files import (
    HINT,
    DenseModule,
    read_embedding_sizes,
    read_pooling_files,
    read_prompts,
)

_NOT_TRAINED = (
    "this model generates text and was not made for embeddings",
    "to embed with its last hidden state all the same, start with --convert embed",
)
_SWITCHED_OFF = ("embeddings are switched off by --convert none", "start with --convert embed")
_NO_RUNNER = ("embeddings are switched off by --runner generate", "start with --convert embed")


def read_pooling_ability(
    folder: Path,
    raw: Mapping[str, Any],
    size: int,
    options: ModelOptions,
    default_kind: PoolingKind = "last",
    *,
    generates: bool = True,
    whole_prompts: bool = False,
) -> PoolingAbility:
    """What embeddings the checkpoint in ``folder`` gives.

    Args:
        raw: Contents of its ``config.json``.
        size: Elements of a hidden state.
        default_kind: Where no file names one; vLLM's is ``last`` for decoders, normalised.
        generates: Whether this kind of model may generate text.
        whole_prompts: A prompt runs within one step.

    Raises:
        ModelLoadError: A file is unreadable.
    """
    files = read_pooling_files(folder)
    sizes = read_embedding_sizes(raw, size)
    if options.convert == "none":
        return PoolingAbility(reason=_SWITCHED_OFF)
    if options.convert in ("auto", "classify"):
        if options.runner == "generate":
            return PoolingAbility(reason=_NO_RUNNER)
        may_generate = generates and _has_language_head(raw.get("architectures"))
        if files is None and options.runner == "auto" and may_generate:
            return PoolingAbility(reason=_NOT_TRAINED)
    if files is not None and files.dense and not files.unsupported:
        size = _size_behind(files.dense, size, folder)
        sizes = tuple(part for part in sizes if part <= size)
    if files is not None and files.unsupported:
        return PoolingAbility(reason=(f"this model's embeddings: {files.unsupported}", ""))
    return PoolingAbility(
        kind=default_kind if files is None else files.kind,
        normalise=files is None or files.normalise,
        size=size,
        sizes=sizes,
        whole_prompts=whole_prompts,
        prompts=read_prompts(folder),
    )


def _size_behind(modules: Sequence[DenseModule], size: int, folder: Path) -> int:
    """Elements of an embedding, from those of a hidden state."""
    for module in modules:
        if module.inputs != size:
            raise ModelLoadError(
                f"{folder / module.place}: its Dense module takes {module.inputs} elements, and"
                f" gets {size}",
                hint=HINT,
            )
        size = module.outputs
    return size


def _has_language_head(architectures: object) -> bool:
    """Whether the file names a model with a language head; old files name nothing."""
    names = architectures if isinstance(architectures, list) else []
    return not names or any(str(name).endswith("ForCausalLM") for name in names)
