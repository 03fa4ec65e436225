"""What ``twostroke models`` lists is what runs, by the path that it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.family_table import PAGE, written_page
from tests.checkpoints import random_tensors, write_checkpoint
from tests.models.tiny_families import FAMILIES
from tests.models.wide_families import widened
from tests.steps import StepDriver
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.model_spec.config.families import SAME
from twostroke.model_spec.recurrent_forms import DeltaForm, Mamba2Form
from twostroke.model_spec.vectors.encoder_spec import ENCODER_TYPES
from twostroke.models.catalogue import list_families, path_of
from twostroke.models.registry import MODEL_TYPES
from twostroke.models.support import parse_runnable
from twostroke.runtime.checkpoints.survey import read_survey


def runs_compiled(driver: StepDriver, length: int = 5) -> bool:
    """Whether a pass of it is the compiled one."""
    model, calls = driver.executor.model, list[int]()
    compiled = model.compiled_pass
    if compiled is None:
        return False

    def counted(x: Any, *arguments: Any) -> Any:
        calls.append(1)
        return compiled(x, *arguments)

    model.compiled_pass = counted  # type: ignore[assignment]
    driver.chunked_logits([1] * length, [length])
    return bool(calls)


def test_every_model_type_of_the_registry_is_listed_once() -> None:
    names = [row.model_type for row in list_families()]
    assert sorted(names) == sorted([*MODEL_TYPES, *ENCODER_TYPES])
    tried = {raw["model_type"] for raw in FAMILIES.values()}
    assert {SAME.get(name, name) for name in MODEL_TYPES} <= tried


@pytest.mark.parametrize("family", FAMILIES)
def test_the_path_is_the_one_that_is_taken(family: str, tmp_path: Path) -> None:
    raw = widened(FAMILIES[family])
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(raw).items()}
    driver = StepDriver.load(write_checkpoint(tmp_path, raw, tensors))
    path = "compiled" if runs_compiled(driver) else "layer by layer"
    survey = read_survey(open_checkpoint(tmp_path))
    assert survey.path == path and survey.dtype == "bfloat16"
    shapes = driver.executor.model.state_shapes
    assert survey.state_bytes == sum(each.nbytes for layer in shapes for each in layer)
    assert survey.kv_bytes_per_token == driver.executor.info.kv_bytes_per_token


@pytest.mark.parametrize("row", list_families(), ids=lambda row: row.model_type)
def test_a_family_is_listed_with_its_fastest_path(row: Any) -> None:
    raws = [raw for raw in FAMILIES.values() if raw["model_type"] == row.model_type]
    paths = set()
    for raw in raws:
        paths.add(path_of(parse_runnable(widened(raw)), "bfloat16", kernels=True))
    assert not raws or (row.path == "compiled") == ("compiled" in paths)


def test_a_family_is_listed_with_the_layers_that_its_checkpoints_have() -> None:
    rows = {row.model_type: set(row.layers) for row in list_families()}
    parts: dict[str, set[str]] = {}
    for raw in FAMILIES.values():
        spec = parse_runnable(raw)
        kinds = parts.setdefault(spec.model_type, set())
        for layer in spec.layers:
            if layer.attention is not None:
                kinds.add("latent attention" if layer.attention.latent else "attention")
            names = {DeltaForm: "gated delta rule", Mamba2Form: "Mamba-2"}
            if layer.recurrent is not None:
                kinds.add(names.get(type(layer.recurrent.form), "short convolution"))
            kinds |= {"MLP"} if layer.mlp is not None else set()
            kinds |= {"experts"} if layer.experts is not None else set()
    for name, found in parts.items():
        # Where there are experts, some layers may have an MLP; ``row.layers`` names the experts.
        shown = {part.replace("gated attention", "attention") for part in rows[name]}
        shown |= {"attention", "MLP"} if "attention beside MLP" in shown else set()
        shown -= {"attention beside MLP"}
        assert found - {"MLP"} == shown - {"MLP"}, name
        assert "MLP" in shown or "experts" in shown or shown == {"Mamba-2"}, name


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written_page(page), "run python -m benchmarks.family_table"
