"""How a checkpoint makes embeddings, as the files of sentence-transformers say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.core.pooling import PoolingKind
from twostroke.model_spec.config_fields import MAX_INTEGER, short
from twostroke.model_spec.json_files import read_object, read_values

# The older files have a flag for each way, those of sentence-transformers 5 a name.
_FLAGS: Mapping[str, PoolingKind] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_NAMES: Mapping[str, PoolingKind] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")
_MAX_MODULES = 16
_MAX_SIZES = 64
_MAX_PROMPTS = 256
_MAX_PROMPT_CHARS = 10_000
_MAX_DENSE = 65_536  # elements of a state, before or after a Dense module
HINT = "download the checkpoint again, or remove modules.json to embed with the default pooling"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseModule:
    """A linear layer after the pooling.

    Attributes:
        place: Its folder within the checkpoint's.
        activation: One of ``ACTIVATIONS``, as torch names them.
    """

    place: str
    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingFiles:
    """What ``modules.json`` and ``1_Pooling/config.json`` say.

    Attributes:
        kind: Which states become the vector.
        normalise: Whether a module brings it to length 1.
        dense: Linear layers between pooling and normalising.
        unsupported: What of them this server does not compute; empty if it computes all.
    """

    kind: PoolingKind
    normalise: bool
    dense: tuple[DenseModule, ...] = ()
    unsupported: str = ""


def read_pooling_files(folder: Path) -> PoolingFiles | None:
    """The pooling that a checkpoint's makers chose; ``None`` if it is no embedding model's.

    Raises:
        ModelLoadError: A file is unreadable, or is missing.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modules = read_values(path, HINT)
    if not 1 <= len(modules) <= _MAX_MODULES or not all(isinstance(m, dict) for m in modules):
        raise ModelLoadError(f"{path}: it must be a list of modules", hint=HINT)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in _MODULES]
    if unknown:
        text = f"its module {short(unknown[0])} is not supported"
        return PoolingFiles(kind="last", normalise=False, unsupported=text)
    if kinds.count("Pooling") != 1:
        raise ModelLoadError(f"{path}: it must name one Pooling module", hint=HINT)
    behind = kinds[kinds.index("Pooling") + 1 :]
    if behind != sorted(behind) or "Dense" in kinds[: kinds.index("Pooling")]:
        text = "a Dense module must stand between Pooling and Normalize"
        return PoolingFiles(kind="last", normalise=False, unsupported=text)
    place = _place(modules[kinds.index("Pooling")], path)
    config = read_object(folder / place / "config.json", HINT)
    chosen = _kinds(config)
    if len(chosen) != 1 or chosen[0] is None:
        text = f"the pooling of {place}/config.json is not supported (cls, mean or lasttoken are)"
        return PoolingFiles(kind="last", normalise=False, unsupported=text)
    dense = tuple(
        _dense_module(folder, _place(module, path))
        for module, kind in zip(modules, kinds, strict=True)
        if kind == "Dense"
    )
    unknown = [module.activation for module in dense if module.activation not in ACTIVATIONS]
    if unknown:
        text = f"the activation {short(unknown[0])} of its Dense module is not supported"
        return PoolingFiles(kind="last", normalise=False, unsupported=text)
    return PoolingFiles(kind=chosen[0], normalise="Normalize" in kinds, dense=dense)


def _place(module: Mapping[str, Any], path: Path) -> str:
    """A module's folder; never a path that leaves the checkpoint's."""
    place = module.get("path")
    if not isinstance(place, str) or "/" in place or "\\" in place or place in ("", ".", ".."):
        raise ModelLoadError(f"{path}: the path of a module is {short(place)}", hint=HINT)
    return place


def _dense_module(folder: Path, place: str) -> DenseModule:
    path = folder / place / "config.json"
    config = read_object(path, HINT)
    inputs, outputs = config.get("in_features"), config.get("out_features")
    bias, activation = config.get("bias", True), config.get("activation_function", "Tanh")
    if (
        not (type(inputs) is int and 1 <= inputs <= _MAX_DENSE)
        or not (type(outputs) is int and 1 <= outputs <= _MAX_DENSE)
        or not isinstance(bias, bool)
        or not isinstance(activation, str)
    ):
        raise ModelLoadError(f"{path} describes no linear layer", hint=HINT)
    name = activation.rpartition(".")[2]
    return DenseModule(place=place, inputs=inputs, outputs=outputs, bias=bias, activation=name)


def read_text_length(folder: Path) -> int | None:
    """``max_seq_length`` of ``sentence_bert_config.json``: the tokens that texts were cut to.

    Encoders were trained on no more, whatever positions they have; ``None`` where nothing is said.

    Raises:
        ModelLoadError: The file is unreadable, or the length is none.
    """
    path = folder / "sentence_bert_config.json"
    if not path.is_file():
        return None
    length = read_object(path, HINT).get("max_seq_length")
    if length is None:
        return None
    if type(length) is not int or not 1 <= length <= MAX_INTEGER:
        raise ModelLoadError(f"{path}: max_seq_length is {short(length)}", hint=HINT)
    return length


def read_prompts(folder: Path) -> tuple[tuple[str, str], ...]:
    """``prompts`` of ``config_sentence_transformers.json``, by name; empty where there are none.

    Raises:
        ModelLoadError: The file is unreadable, or they are no texts.
    """
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return ()
    prompts = read_object(path, HINT).get("prompts")
    if prompts is None:
        return ()
    if not isinstance(prompts, dict) or len(prompts) > _MAX_PROMPTS:
        raise ModelLoadError(f"{path}: prompts must be texts by name", hint=HINT)
    if not all(_is_short_text(text) for pair in prompts.items() for text in pair):
        raise ModelLoadError(f"{path}: one of its prompts is no text, or too long", hint=HINT)
    return tuple(prompts.items())


def _is_short_text(value: object) -> bool:
    if not isinstance(value, str) or len(value) > _MAX_PROMPT_CHARS:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)  # half of a character


def read_embedding_sizes(config: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """``matryoshka_dimensions`` of a ``config.json``: the sizes that the model was trained for.

    Raises:
        ModelLoadError: They are no list of sizes up to ``size``.
    """
    stated = config.get("matryoshka_dimensions")
    if stated is None:
        return ()
    if (
        not isinstance(stated, list)
        or len(stated) > _MAX_SIZES
        or not all(type(item) is int and 1 <= item <= min(size, MAX_INTEGER) for item in stated)
    ):
        raise ModelLoadError(
            f"config.json: matryoshka_dimensions must be sizes up to {size}, got {short(stated)}",
            hint="check the file",
        )
    return tuple(stated)


def _kinds(config: Mapping[str, Any]) -> list[PoolingKind | None]:
    """The ways that the file switches on; ``None`` stands for one that is not known here."""
    named = config.get("pooling_mode")
    if isinstance(named, str):
        return [_NAMES.get(named)]
    switched_on = [
        name for name, value in config.items() if name.startswith("pooling_mode_") and value is True
    ]
    return [_FLAGS.get(name) for name in switched_on]
