"""Adapters are read strictly: all of one is used, or it is refused in words that say what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.mutated_files import mutated, num_examples, read_or_refuse
from tests.runtime.adapters.peft_files import (
    Tensors,
    adapter_config,
    adapter_tensors,
    merged,
    write_adapter,
)
from twostroke.checkpoints.adapters.peft_folder import read_adapter
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import ConfigError, InsufficientMemoryError, ModelLoadError
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.models.support import read_runnable
from twostroke.runtime.adapters.open_store import adapter_places
from twostroke.runtime.adapters.places import AdapterPlaces
from twostroke.runtime.adapters.store import AdapterStore
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model

RAW = tiny_config("llama")
BASE = random_tensors(RAW)
LAYER = "base_model.model.model.layers.0."
EXAMPLES = num_examples(600)
TOKENS = list(range(3, 20))


def open_base(folder: Path) -> AdapterStore:
    checkpoint = open_checkpoint(write_checkpoint(folder / "base", RAW, BASE))
    places, device = AdapterPlaces(), torch.device("cpu")
    spec = read_runnable(checkpoint)
    model = load_model(checkpoint, spec, "float32", device, 64, places=places)
    return AdapterStore(model, places)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> AdapterStore:
    return open_base(tmp_path_factory.mktemp("model"))


def load(store: AdapterStore, folder: Path, max_rank: int = 256, most: int = 2**20) -> str:
    return store.load(str(folder), max_rank, most).digest


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
        ({"loftq_config": {"loftq_bits": 4}}, "loftq_config"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"some_new_kind": 1}, "some_new_kind is 1"),
        ({"r": 0}, "r is 0"),
        ({"r": 257}, "r is 257, and ranks from 1 to 256"),
        ({"r": True}, "r is True"),
        ({"r": "8"}, "r is '8'"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"lora_alpha": 0}, "lora_alpha is 0"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"layers_to_transform": [0], "layers_pattern": "(layers)"}, "layers_to_transform leave"),
        ({"layers_to_transform": [0], "layers_pattern": "a|("}, "layers_pattern 'a|('"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ({"rank_pattern": {"q_proj": 300}}, "rank_pattern 'q_proj' is 300"),
        ({"rank_pattern": {"(": 2}}, "rank_pattern '('"),
        ({"rank_pattern": [1]}, "rank_pattern is [1]"),
        ({"target_modules": "("}, "target_modules '('"),
        ({"target_modules": [1]}, "target_modules is [1]"),
        ({"layers_to_transform": "0"}, "layers_to_transform is '0'"),
        ({"target_modules": ["q_proj"]}, "target_modules or layers_to_transform leave"),
        ({"layers_to_transform": [0]}, "layers.1."),
        ({"exclude_modules": ["q_proj"]}, "self_attn.q_proj"),
        ({"r": 5}, "its rank should be 5"),
        ({"rank_pattern": {"layers.1.mlp.up_proj": 3}}, "layers.1.mlp.up_proj.lora_A"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused(
    store: AdapterStore, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    folder = write_adapter(tmp_path, adapter_config(**config), adapter_tensors(BASE))
    with pytest.raises(ModelLoadError) as caught:
        load(store, folder)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): own for name, own in tensors.items()}


def replaced(name: str, own: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: own}


Q = LAYER + "self_attn.q_proj."
EMBEDDING = "base_model.model.model.embed_tokens."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda own: own | {LAYER + "x.weight": torch.ones(2)}, "none of LoRA's tensors"),
        (lambda own: own | {Q + "lora_magnitude_vector": torch.ones(2)}, "DoRA"),
        (lambda own: own | {Q + "lora_B.bias": torch.ones(2)}, "biases"),
        (
            lambda own: own | {"base_model.model.lm_head.modules_to_save.weight": torch.ones(2)},
            "modules_to_save",
        ),
        (
            lambda own: own | {EMBEDDING + "lora_embedding_A": torch.ones(2)},
            "embeddings",
        ),
        (renamed("layers.1.", "layers.7."), "module model.layers.7."),
        (renamed("model.layers.", "model.vision_tower.layers."), "vision_tower"),
        (renamed("mlp.up_proj", "mlp.experts.0.up_proj"), "adapters on experts"),
        (lambda own: {n: t for n, t in own.items() if n != Q + "lora_B.weight"}, "it is missing"),
        (lambda own: {n: t for n, t in own.items() if not n.startswith(Q)}, "no tensors for"),
        (replaced(Q + "lora_A.weight", torch.ones(4, 31)), "takes 31 to 32 values"),
        (replaced(Q + "lora_B.weight", torch.ones(64, 4)), "takes 32 to 64 values"),
        (replaced(Q + "lora_A.weight", torch.ones(32, 4)), "its rank should be 4"),
        (replaced(Q + "lora_A.weight", torch.ones(128)), "its rank should be 4"),
        (replaced(Q + "lora_A.weight", torch.ones(4, 32, dtype=torch.int8)), "stored as I8"),
        (replaced(Q + "lora_A.weight", torch.full((4, 32), torch.nan)), "not finite"),
        (lambda own: {n: t * ("lora_A" in n) for n, t in own.items()}, "changes nothing"),
        (lambda own: {}, "holds no tensors"),
    ],
)
def test_a_tensor_that_is_not_used_is_refused_by_its_name(
    store: AdapterStore, tmp_path: Path, change: Callable[[Tensors], Tensors], words: str
) -> None:
    folder = write_adapter(tmp_path, adapter_config(), change(adapter_tensors(BASE)))
    with pytest.raises(ModelLoadError) as caught:
        # What the configuration says of names is tested above.
        config = json.loads((folder / "adapter_config.json").read_text())
        if "no tensors for" not in words:
            config["target_modules"] = "all-linear"
        (folder / "adapter_config.json").write_text(json.dumps(config))
        load(store, folder)
    assert words in caught.value.message


def test_folders_that_are_none(store: AdapterStore, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no adapter_config\.json"):
        load(store, tmp_path / "missing")
    folder = write_adapter(tmp_path, adapter_config(), adapter_tensors(BASE))
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match="a pickle, which is not read"):
        load(store, folder)


def test_ranks_and_bytes_have_bounds(store: AdapterStore, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, adapter_config(), adapter_tensors(BASE))
    with pytest.raises(ModelLoadError, match="ranks from 1 to 3 run here"):
        load(store, folder, max_rank=3)
    with pytest.raises(InsufficientMemoryError, match=r"--max-lora-memory is 1\.0 KiB"):
        load(store, folder, most=1024)


def test_one_that_was_dropped_returns_without_another_self_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any request may make it return; only the same contents skip the check."""
    own = open_base(tmp_path)
    folder = write_adapter(tmp_path / "one", adapter_config(), adapter_tensors(BASE))
    digest = load(own, folder)
    own.drop(digest)
    checked = list[str]()
    monkeypatch.setattr(
        "twostroke.runtime.adapters.store.check_changes", lambda *_: checked.append("again")
    )
    assert load(own, folder) == digest and not checked
    write_adapter(folder, adapter_config(), adapter_tensors(BASE, seed=2))
    assert load(own, folder) != digest and checked


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|v)_proj"},
        {"target_modules": ["self_attn.q_proj", "v_proj"]},
        {"layers_to_transform": 1, "layers_pattern": "layers"},
        {"layers_to_transform": [0]},
        {"exclude_modules": r".*mlp.*"},
        {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 7}},
        {"alpha_pattern": {"v_proj": 1.5}, "use_rslora": True},
    ],
)
def test_what_the_configuration_says_of_modules_is_followed(
    store: AdapterStore, tmp_path: Path, config: dict[str, Any]
) -> None:
    """The expected weights are merged by rules written out here, module by module."""
    ranks, alphas = {"q_proj": 2, "layers.1.mlp.up_proj": 7}, {"v_proj": 1.5}
    tensors: Tensors = {}
    expected = dict(BASE)
    for module, own in pairs(config).items():
        rank = 4
        if "rank_pattern" in config:
            rank = next((r for end, r in ranks.items() if module.endswith(end)), 4)
        alpha = alphas.get(module.rpartition(".")[2], 6) if "alpha_pattern" in config else 6
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        part = adapter_tensors({f"{module}.weight": BASE[f"{module}.weight"]}, own, rank)
        tensors |= part
        expected = merged(expected, part, scale)
    folder = write_adapter(tmp_path / "lora", adapter_config(**config), tensors)
    digest = load(store, folder)
    both = open_checkpoint(write_checkpoint(tmp_path / "merged", RAW, expected))
    model = load_model(both, read_runnable(both), "float32", torch.device("cpu"), 64)
    adapted = store.adapted(store.model, [digest], [len(TOKENS)])
    difference = naive_logits(adapted, TOKENS) - naive_logits(model, TOKENS)
    assert float(difference.abs().max()) < 1e-3


def pairs(config: dict[str, Any]) -> dict[str, list[str]]:
    """The base's linear modules that a configuration means, each with its last name."""
    modules = [name.removesuffix(".weight") for name in BASE if "_proj" in name]
    targets = config.get("target_modules")
    if targets not in (None, "all-linear"):
        modules = [name for name in modules if name.endswith(("q_proj", "v_proj"))]
    if "layers_to_transform" in config:
        layer = "layers.1." if config["layers_to_transform"] == 1 else "layers.0."
        modules = [name for name in modules if layer in name]
    if "exclude_modules" in config:
        modules = [name for name in modules if "mlp" not in name]
    return {name: [name.rpartition(".")[2]] for name in modules}


def test_models_of_other_code_take_none() -> None:
    with pytest.raises(ConfigError, match="own code"):
        adapter_places(LoraConfig(enable_lora=True), is_foreign=True)
    assert adapter_places(LoraConfig(), is_foreign=True) is None


def test_mutated_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    originals = {
        "adapter_config.json": json.dumps(adapter_config()).encode(),
        "adapter_model.safetensors": save(adapter_tensors(BASE)),
    }
    read = 0
    for seed in range(EXAMPLES):
        chosen = sorted(originals)[seed % 2]
        for name, data in originals.items():
            (tmp_path / name).write_bytes(mutated(data, seed) if name == chosen else data)
        read += read_or_refuse(lambda: read_adapter(tmp_path))
    assert 0 < read < EXAMPLES
