"""Protects: the parts of a model add up to it, in parameters and bytes."""

from __future__ import annotations

import pytest

from twostroke.model_spec.public_models import find_model, public_names


@pytest.mark.parametrize("name", [*public_names(), "pilot"])
def test_parts_add_up_to_the_model(name: str) -> None:
    model = find_model(name)
    parts = list(model.weight_parts())
    assert sum(part.layers * part.parameters for part in parts) == model.num_parameters
    assert round(sum(part.all_bits for part in parts) / 8) == model.weight_bytes()


def test_only_what_a_checkpoint_quantises_takes_fewer_bits() -> None:
    model = find_model("llama-3.1-8b")
    plain = {(part.run, part.name): part.bits for part in model.weight_parts()}
    few = {(part.run, part.name): part.bits for part in model.weight_parts("int8")}
    shares = {name: few[name] / plain[name] for name in plain}
    assert shares[(None, "embedding")] == 1
    assert shares[(0, "qkv")] == 0.5
    assert model.weight_bytes("int8") < 0.6 * model.weight_bytes()


def test_a_rank_holds_its_part_of_each_matrix() -> None:
    model = find_model("llama-3.1-8b")
    whole = {part.name: part for part in model.weight_parts()}
    half = {part.name: part for part in model.weight_parts(ranks=2)}
    assert half["qkv"].outputs == whole["qkv"].outputs // 2
    assert half["mlp_down"].inputs == whole["mlp_down"].inputs // 2
    assert half["norms"].bits == whole["norms"].bits
