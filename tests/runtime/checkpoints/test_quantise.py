"""Protects: the rounded copy of a checkpoint is what it says, and nothing else of it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.models.wide_families import WIDE_FAMILIES
from tests.steps import StepDriver
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.checkpoints.quantised.written import Quantised
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.kernels.library import load_library
from twostroke.runtime.checkpoints.quantise import quantise
from twostroke.runtime.checkpoints.rounding import round_matrix
from twostroke.runtime.checkpoints.tensor_files import TensorFiles

RAW = tiny_config(
    "llama", hidden_size=64, intermediate_size=96, vocab_size=331, torch_dtype="bfloat16"
)
TOKENS = torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(1)).tolist()
# What stays as it is by design: what chooses experts, weighs the shared ones, or gates a state.
EXACT = (".mlp.gate", ".router", "shared_expert_gate", ".in_proj_a", ".in_proj_b", ".in_proj_ba")


def write(folder: Path, raw: dict[str, Any], shards: int = 1) -> dict[str, torch.Tensor]:
    tensors = random_tensors(raw, dtype=torch.bfloat16, std=0.15)
    write_checkpoint(folder, raw, tensors, shards)
    return tensors


def run(folder: Path, out: Path, to: str = "int4", **options: Any) -> Quantised:
    return quantise(open_checkpoint(folder), to, out, lambda count: None, **options)


@pytest.mark.parametrize("to", ["int4", "int8"])
@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_the_rounded_ones_or_the_same(to: str, shards: int, tmp_path: Path) -> None:
    """Read back by the strict reader, whose layout is tested against others' packing."""
    tensors = write(tmp_path / "was", RAW, shards)
    written = run(tmp_path / "was", tmp_path / "now", to)
    files = TensorFiles(open_checkpoint(tmp_path / "now").tensors())
    assert set(written.errors) == {
        name.removesuffix(".weight") for name in tensors if name.endswith("proj.weight")
    }
    assert written.kept == ["lm_head"]
    for name, before in tensors.items():
        after = torch.empty(before.shape)
        files.copy(name, after)
        error = float((after - before.float()).norm() / before.float().norm())
        assert error == pytest.approx(written.errors.get(name.removesuffix(".weight"), 0), rel=1e-4)
        # A step of the grid is 2/15 or 2/254 of the range.
        assert error < (0.12 if to == "int4" else 0.02)
    size = sum(
        tensor.nbytes
        for file in (tmp_path / "now").glob("*.safetensors")
        for tensor in load_file(file).values()
    )
    assert written.bytes_before == sum(tensor.nbytes for tensor in tensors.values())
    assert abs(written.bytes_after - size) <= 16 * len(written.errors)  # weight_shape is no tensor
    assert (tmp_path / "now" / "model.safetensors.index.json").exists() == (shards > 1)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30, 0.1])
@pytest.mark.parametrize("to", ["int4", "int8"])
def test_each_value_is_the_nearest_that_its_scale_allows(to: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = (scale * torch.randn(16, 96, generator=generator)).bfloat16()
    own = round_matrix(weight, to)
    scales = own.tensors["weight_scale"].float()
    assert scales.isfinite().all()
    if to == "int8":
        codes = own.tensors["weight"].float()
    else:
        words = own.tensors["weight_packed"].long()
        codes = torch.stack([words >> 4 * place & 15 for place in range(8)], 2).flatten(1) - 8.0
    assert own.tensors["weight_scale"].dtype == torch.bfloat16
    wide, step = weight.float(), scales.repeat_interleave(96 // scales.shape[1], 1)
    ends = (codes == codes.max()) | (codes == codes.min())  # cut off at the end of the grid
    off = (codes * step - wide).abs()
    assert ((off <= step.abs() * 0.5001) | ends).all()
    assert own.error < 0.12


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
@pytest.mark.parametrize("family", WIDE_FAMILIES)
def test_every_family_runs_with_what_was_rounded(family: str, tmp_path: Path) -> None:
    """Logits are those of the folder whose weights are the rounded ones in full."""
    sizes = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
    raw = WIDE_FAMILIES[family]
    raw = {**raw, **{name: 96 for name in sizes if name in raw}}
    tensors = write(tmp_path / "was", raw)
    written = run(tmp_path / "was", tmp_path / "now", "int8")
    files = TensorFiles(open_checkpoint(tmp_path / "now").tensors())
    whole = {name: tensor.float() for name, tensor in tensors.items()}
    for name, tensor in whole.items():
        files.copy(name, tensor)
    write_checkpoint(tmp_path / "full", raw, whole)
    now, full = (
        StepDriver.load(tmp_path / name, dtype="float32").chunked_logits(TOKENS, [30, 10])
        for name in ("now", "full")
    )
    assert now.isfinite().all()
    torch.testing.assert_close(now, full, rtol=0, atol=2e-3 * float(full.abs().max()))
    heads = ("lm_head", "embed_tokens", "embeddings")
    weights = {name: tensors.get(f"{name}.weight") for name in written.kept}
    matrices = [name for name, own in weights.items() if own is not None and own.dim() == 2]
    others = [name for name in matrices if not name.endswith((*EXACT, *heads))]
    assert not [name for name in others if _inputs(tensors, name) % 32 == 0], others
    stacks = {name.rpartition(".")[0] for name in tensors if name.endswith("gate_up_proj")}
    assert stacks <= {*written.kept}  # or others would take them for rounded


def _inputs(tensors: dict[str, torch.Tensor], module: str) -> int:
    return tensors[f"{module}.weight"].shape[1]


def test_the_head_is_rounded_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "was", RAW)
    assert "lm_head" in run(tmp_path / "was", tmp_path / "now", head=True).errors
    write(tmp_path / "tied", RAW | {"tie_word_embeddings": True})
    own = run(tmp_path / "tied", tmp_path / "tied-now", head=True)
    assert "lm_head" not in own.errors and "model.embed_tokens" not in own.errors


def test_what_others_read_is_stated(tmp_path: Path) -> None:
    write(tmp_path / "was", RAW)
    (tmp_path / "was" / "chat_template.jinja").write_text("{{ messages }}")
    run(tmp_path / "was", tmp_path / "now")
    stated = json.loads((tmp_path / "now" / "config.json").read_text())
    own = stated.pop("quantization_config")
    assert stated == json.loads((tmp_path / "was" / "config.json").read_text())
    assert own["format"] == "pack-quantized"
    assert own["ignore"] == ["lm_head", "model.embed_tokens"]
    assert (tmp_path / "now" / "chat_template.jinja").read_text() == "{{ messages }}"


def test_what_cannot_be_rounded_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "was", RAW)
    run(tmp_path / "was", tmp_path / "now")
    with pytest.raises(ConfigError, match="quantised already"):
        run(tmp_path / "now", tmp_path / "again")
    with pytest.raises(ConfigError, match="not empty"):
        run(tmp_path / "was", tmp_path / "now")
    odd = tiny_config("llama", hidden_size=40, intermediate_size=56, torch_dtype="bfloat16")
    write(tmp_path / "odd", odd)
    with pytest.raises(ModelLoadError, match="no linear layer"):
        run(tmp_path / "odd", tmp_path / "odd-now")
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"was", "now", "odd"}  # nothing half-made is left


def test_a_broken_number_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(RAW, dtype=torch.bfloat16)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    write_checkpoint(tmp_path / "was", RAW, tensors)
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj\.weight has numbers"):
        run(tmp_path / "was", tmp_path / "now")
    assert not (tmp_path / "now").exists()


def test_folders_and_permissions_are_those_of_a_copy(tmp_path: Path) -> None:
    write(tmp_path / "was", RAW)
    (tmp_path / "was" / "1_Pooling").mkdir()
    (tmp_path / "was" / "1_Pooling" / "config.json").write_text("{}")
    layers = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    (tmp_path / "was" / "modules.json").write_text(json.dumps(layers))
    (tmp_path / "now").mkdir()  # an empty one is taken, a mount point too
    run(tmp_path / "was", tmp_path / "now")
    assert (tmp_path / "now" / "1_Pooling" / "config.json").read_text() == "{}"
    assert not (tmp_path / "now" / ".partial").exists()
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "now").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "was", RAW)

    def fail(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise(open_checkpoint(tmp_path / "was"), "int4", tmp_path / "now", fail)
    assert [each.name for each in tmp_path.iterdir()] == ["was"]
