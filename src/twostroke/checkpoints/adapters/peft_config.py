"""``adapter_config.json`` of a LoRA adapter (Hu et al. 2021), as PEFT writes it.

What would change the adapter's numbers is read, or refused by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.json_files import read_object

MAX_RANK = 256
_MAX_CONFIG_BYTES = 2**20
_MAX_PATTERN = 1000  # characters of a regular expression
ALL_LINEAR = "all-linear"
# What says nothing of the numbers, or only of training.
_HARMLESS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "task_type",
    }
)
_READ = frozenset(
    {
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    }
)
# Those that leave the base model's weights as they are.
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
_RETRAIN = "save the adapter again without it, or merge it into the model's weights"


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What an adapter's configuration says of its numbers.

    Modules have the names that they have in a checkpoint, such as
    ``model.layers.0.self_attn.q_proj``.

    Attributes:
        targets: Ends of modules' names, or one expression for whole names; empty: any.
        layers: Indices of the layers that have it; empty: all.
        scales_by_root: Products are scaled by ``alpha / sqrt(rank)`` (rsLoRA, Kalajdzievski 2023)
            in place of ``alpha / rank``.
        rank_pattern, alpha_pattern: Those of modules whose name ends with the key, an expression.
    """

    rank: int
    alpha: float
    scales_by_root: bool
    targets: tuple[str, ...] | re.Pattern[str]
    excluded: tuple[str, ...] | re.Pattern[str]
    layers: tuple[int, ...]
    layers_pattern: tuple[str, ...]
    rank_pattern: Mapping[re.Pattern[str], int]
    alpha_pattern: Mapping[re.Pattern[str], float]

    def rank_of(self, module: str) -> int:
        return next((r for key, r in self.rank_pattern.items() if key.match(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of the module's two matrices is multiplied with."""
        patterns = self.alpha_pattern.items()
        alpha = next((own for key, own in patterns if key.match(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.scales_by_root else rank)

    def has(self, module: str) -> bool:
        """Whether the module is one that was adapted."""
        if _is_named(module, self.excluded):
            return False
        if self.targets and not _is_named(module, self.targets):
            return False
        return not self.layers or self._layer_of(module) in self.layers

    def _layer_of(self, module: str) -> int | None:
        """The index after the first list of layers in a name, by PEFT's rule."""
        for pattern in map(re.escape, self.layers_pattern) if self.layers_pattern else (r"[^.]*",):
            if match := re.match(rf".*?\.{pattern}\.(\d+)\.", f".{module}"):
                return int(match[1])
        return None


def read_peft_config(folder: Path, max_rank: int = MAX_RANK) -> PeftConfig:
    """Read and check a folder's ``adapter_config.json``.

    Raises:
        ModelLoadError: It is missing or broken, of another kind than LoRA, or says something that
            is not supported, with the name of that.
    """
    path = folder / "adapter_config.json"
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{folder} holds no adapter: it has no adapter_config.json",
            hint="name a folder that PEFT's save_pretrained has written",
        ) from error
    if size > _MAX_CONFIG_BYTES:
        raise _wrong(path, f"it has {size} bytes, and at most {_MAX_CONFIG_BYTES} are read")
    raw = read_object(path, "save the adapter again with PEFT")
    _refuse_unsupported(path, raw)
    rank = _rank(path, "r", raw.get("r", 8), max_rank)
    ranks, alphas = _object(path, raw, "rank_pattern"), _object(path, raw, "alpha_pattern")
    return PeftConfig(
        rank=rank,
        alpha=_alpha(path, "lora_alpha", raw.get("lora_alpha", 8)),
        scales_by_root=_flag(path, raw, "use_rslora"),
        targets=_modules(path, raw, "target_modules"),
        excluded=_modules(path, raw, "exclude_modules"),
        layers=_indices(path, raw.get("layers_to_transform")),
        layers_pattern=_texts(path, raw, "layers_pattern"),
        rank_pattern={
            _ending(path, "rank_pattern", key): _rank(path, f"rank_pattern {key!r}", own, max_rank)
            for key, own in ranks.items()
        },
        alpha_pattern={
            _ending(path, "alpha_pattern", key): _alpha(path, f"alpha_pattern {key!r}", own)
            for key, own in alphas.items()
        },
    )


def _refuse_unsupported(path: Path, raw: Mapping[str, Any]) -> None:
    if (kind := raw.get("peft_type")) != "LORA":
        raise _wrong(path, f"peft_type is {kind!r}, and only 'LORA' runs here")
    if raw.get("use_dora"):
        raise _wrong(path, "use_dora: DoRA (weights by magnitude and direction) is not supported")
    if (bias := raw.get("bias", "none")) != "none":
        raise _wrong(path, f"bias is {bias!r}: adapted biases are not supported")
    if saved := raw.get("modules_to_save"):
        raise _wrong(path, f"modules_to_save {saved!r}: whole layers of its own are not supported")
    start = raw.get("init_lora_weights", True)
    if not any(start is known or start == known for known in _STARTS):
        raise _wrong(
            path,
            f"init_lora_weights is {start!r}: it may belong to a base model with other weights",
            "save it with path_initial_model_for_weight_conversion, as PEFT's documentation says",
        )
    if raw.get("loftq_config"):
        raise _wrong(path, "loftq_config: LoftQ changes the base model's weights")
    for name, value in raw.items():
        if value and name not in _READ and name not in _HARMLESS:
            raise _wrong(path, f"{name} is {_short(value)}, which is not supported")


def _rank(path: Path, name: str, value: object, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise _wrong(
            path,
            f"{name} is {_short(value)}, and ranks from 1 to {most} run here",
            f"--max-lora-rank sets this bound, of at most {MAX_RANK}",
        )
    return value


def _alpha(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < abs(value) < 1e6:
        raise _wrong(path, f"{name} is {_short(value)}, and must be a number other than 0")
    return float(value)


def _flag(path: Path, raw: Mapping[str, Any], name: str) -> bool:
    value = raw.get(name) or False
    if value not in (True, False):
        raise _wrong(path, f"{name} is {_short(value)}, and must be true or false")
    return bool(value)


def _object(path: Path, raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name) or {}
    if not isinstance(value, dict):
        raise _wrong(path, f"{name} is {_short(value)}, and must be an object")
    return value


def _texts(path: Path, raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = raw.get(name) or ()
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not all(isinstance(one, str) for one in values):
        raise _wrong(path, f"{name} is {_short(value)}, and must be a list of names")
    for one in values:
        _expression(path, name, one)
    return tuple(values)


def _modules(path: Path, raw: Mapping[str, Any], name: str) -> tuple[str, ...] | re.Pattern[str]:
    """A list of names' ends, or a string: an expression for whole names."""
    value = raw.get(name)
    if isinstance(value, str):
        return () if value == ALL_LINEAR else _expression(path, name, value)
    return _texts(path, raw, name)


def _indices(path: Path, value: object) -> tuple[int, ...]:
    values = [value] if type(value) is int else value or []
    if not isinstance(values, list) or not all(type(one) is int for one in values):
        raise _wrong(path, f"layers_to_transform is {_short(value)}, and must be a list of indices")
    return tuple(values)


def _ending(path: Path, name: str, key: str) -> re.Pattern[str]:
    """A key of a pattern as PEFT compares it with modules' names."""
    return _expression(path, name, key, rf"(.*\.)?({key})$")


def _expression(path: Path, name: str, text: str, whole: str = "") -> re.Pattern[str]:
    refusal = _wrong(path, f"{name} {_short(text)} is no regular expression that can be read")
    if len(text) > _MAX_PATTERN:
        raise refusal
    try:
        return re.compile(whole or text)
    except (re.error, OverflowError, RecursionError) as error:
        raise refusal from error


def _is_named(module: str, names: tuple[str, ...] | re.Pattern[str]) -> bool:
    if isinstance(names, re.Pattern):
        return names.fullmatch(module) is not None
    return any(module == name or module.endswith("." + name) for name in names)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _wrong(path: Path, message: str, hint: str = _RETRAIN) -> ModelLoadError:
    return ModelLoadError(f"{path}: {message}", hint=hint)
