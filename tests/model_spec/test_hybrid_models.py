"""Models whose layers keep states: what a request needs, where, and what a step of theirs costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.model_spec import configs
from twostroke.core.config import CacheConfig, SchedulerConfig, SchedulerOptions
from twostroke.core.errors import ConfigError, InsufficientMemoryError, ModelLoadError
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.reader import parse_model
from twostroke.model_spec.unquantised import Unquantised
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.fields import run_fields
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions
from twostroke.timing.step_shape import StepShape


@pytest.mark.parametrize(
    ("config", "active", "cached", "state"),
    [
        # 4 layers of 8 heads; 28 states of 8192 channels, 16 elements each and 3 tokens of the
        # convolution.
        (configs.JAMBA, 12.0e9, 4 * 2 * 8 * 128 * 2, 28 * 8192 * (16 + 3) * 2),
        (
            configs.NEMOTRON_H_8B,
            7.6e9,
            4 * 2 * 8 * 128 * 2,
            24 * (8192 * 128 * 4 + (8192 + 2 * 8 * 128) * 3 * 2),
        ),
        (
            configs.NEMOTRON_3_NANO,
            3.2e9,
            6 * 2 * 2 * 128 * 2,
            23 * (4096 * 128 * 4 + (4096 + 2 * 8 * 128) * 3 * 2),
        ),
        (
            configs.GRANITE_4_H_SMALL,
            9.0e9,
            4 * 2 * 8 * 128 * 2,
            36 * (8192 * 128 + (8192 + 2 * 128) * 3) * 2,
        ),
        # Every layer has both.
        (
            configs.FALCON_H1_7B,
            7.2e9,
            44 * 2 * 2 * 128 * 2,
            44 * (3072 * 256 + (3072 + 2 * 256) * 3) * 2,
        ),
        (
            configs.BAMBA_9B,
            9.3e9,
            3 * 2 * 8 * 128 * 2,
            29 * (8192 * 128 + (8192 + 2 * 128) * 3) * 2,
        ),
        (configs.CODESTRAL_MAMBA, 7.2e9, 0, 64 * (8192 * 128 + (8192 + 2 * 8 * 128) * 3) * 2),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_what_a_token_and_a_request_need(
    config: dict[str, Any], active: float, cached: int, state: int
) -> None:
    """Shapes counted by hand from the models' papers; active parameters as published."""
    sheet = parse_model(config)
    assert sheet.active_parameters == pytest.approx(active, rel=0.03)
    assert sheet.kv_bytes_per_token() == cached
    assert sheet.state_bytes() == state
    assert sheet.kv_bytes(1000) == 1000 * cached + state


def test_a_stated_precision_of_states_counts() -> None:
    """States of Nemotron-H are float32 unless it says otherwise, all others' bfloat16.

    The convolution's stay as they are.
    """
    for config, layers, stated in (
        (configs.NEMOTRON_H_8B, 24, "bfloat16"),
        (configs.BAMBA_9B, 29, "float32"),
    ):
        more = (
            parse_model({**config, "mamba_ssm_cache_dtype": stated}).state_bytes()
            - parse_model(config).state_bytes()
        )
        assert more == layers * 8192 * 128 * (2 if stated == "float32" else -2)


def test_flops_of_states_are_written_and_read_once_a_token() -> None:
    """Two for each weight; then decay, write and read of each element; and the convolution."""
    sheet = parse_model(configs.CODESTRAL_MAMBA)
    weights = 64 * (4096 * (2 * 8192 + 2 * 1024 + 128) + 8192 * 4096)
    recurrence = 64 * (6 * 8192 * 128 + 2 * 4 * (8192 + 2 * 1024))
    assert sheet.linear_flops() == 2 * weights + recurrence
    assert sheet.attention_flops(1000) == 0


def test_layers_are_of_the_kinds_that_the_file_says() -> None:
    jamba = [
        (bool(e.attention), bool(e.experts))
        for e in parse_model(configs.JAMBA).layers
        for _ in range(e.count)
    ]
    assert [index for index, (attends, _) in enumerate(jamba) if attends] == [4, 12, 20, 28]
    assert [index for index, (_, sparse) in enumerate(jamba) if sparse] == list(range(1, 32, 2))
    nemotron = parse_model(configs.NEMOTRON_H_8B)
    kinds = [
        "*" if e.attention else "M" if e.recurrent else "-"
        for e in nemotron.layers
        for _ in range(e.count)
    ]
    assert "".join(kinds) == configs.NEMOTRON_H_8B["hybrid_override_pattern"]
    assert {layer.branches for layer in nemotron.layers} == {1}
    falcon = parse_model(configs.FALCON_H1_7B).layers
    assert len(falcon) == 1 and falcon[0].attention and falcon[0].recurrent
    with pytest.raises(ModelLoadError, match="says 'X' of layer 1"):
        parse_model({**configs.NEMOTRON_H_8B, "hybrid_override_pattern": "MX*-"})


def test_layers_without_experts_have_the_shared_mlp_only() -> None:
    """granite-4.0-h-micro: no experts, a dense model."""
    dense = parse_model({**configs.GRANITE_4_H_SMALL, "num_local_experts": 0})
    assert all(layer.experts is None for layer in dense.layers)
    experts = 40 * 72 * 3 * 4096 * 768 + 40 * 72 * 4096
    assert parse_model(configs.GRANITE_4_H_SMALL).num_parameters - dense.num_parameters == experts


def test_heads_are_dealt_out_and_groups_kept_whole() -> None:
    """Two devices each have half of a state; its one group's part of the convolution both have."""
    sheet = parse_model(configs.GRANITE_4_H_SMALL)
    assert sheet.state_bytes(ranks=2) == 36 * (4096 * 128 + (4096 + 2 * 128) * 3) * 2
    with pytest.raises(ConfigError, match="does not divide the model's 24 recurrent heads"):
        parse_model({**configs.FALCON_H1_7B, "num_attention_heads": 16}).check_ranks(16)


@pytest.mark.parametrize(
    "config",
    [configs.JAMBA, configs.NEMOTRON_H_8B, configs.FALCON_H1_7B, configs.CODESTRAL_MAMBA],
    ids=str,
)
def test_context_costs_less_than_where_every_layer_attends(config: dict[str, Any]) -> None:
    def growth(raw: dict[str, Any]) -> float:
        args = (Parallel(tensor=4), Dtypes(), load_efficiencies("h200"))
        cost = RooflineCostModel(load_hardware("h200"), parse_model(raw), *args)
        short, long = (
            cost.step(StepShape(32, 32 * context, (), 32)).seconds for context in (1000, 32000)
        )
        return long / short

    assert 1.0 <= growth(config) < 0.75 * growth(configs.LLAMA_8B)


def test_one_branch_reduces_once() -> None:
    """Nemotron-H's 52 blocks talk as often over links as 26 layers of attention and MLP."""
    args = (Dtypes(), load_efficiencies("h200"))
    sheet = parse_model(configs.NEMOTRON_H_8B)
    cost = RooflineCostModel(load_hardware("h200"), sheet, Parallel(tensor=2), *args)
    once = cost._all_reduce(64)
    assert cost._tokens(64).communication == pytest.approx((52 + 1) * once)


def test_exceptions_of_quantised_hybrids_are_found() -> None:
    unquantised = Unquantised(
        {
            "quantization_config": {
                "exclude_modules": ["backbone.layers.0.mixer.in_proj", "*.q_proj"]
            }
        }
    )
    kept = {
        (name, index)
        for name in ("state_input", "state_output", "qkv")
        for index in (0, 1)
        if unquantised.has(name, index)
    }
    assert kept == {("state_input", 0), ("qkv", 0), ("qkv", 1)}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("jamba-v0.1", configs.JAMBA),
        ("nemotron-h-8b", configs.NEMOTRON_H_8B),
        ("nemotron-3-nano-30b-a3b", configs.NEMOTRON_3_NANO),
        ("granite-4.0-h-small", configs.GRANITE_4_H_SMALL),
        ("falcon-h1-7b", configs.FALCON_H1_7B),
        ("bamba-9b", configs.BAMBA_9B),
        ("mamba-codestral-7b", configs.CODESTRAL_MAMBA),
    ],
)
def test_they_are_known_by_name(name: str, config: dict[str, Any]) -> None:
    """As tested above and in ``test_counts``, where their published sizes stand."""
    assert find_model(name) == parse_model({"torch_dtype": "bfloat16", **config})


def test_a_model_without_attention_is_served() -> None:
    """Nothing grows with the context, so any number of tokens fits; states take the memory."""
    run = simulate(
        Scenario(
            deployment=DeploymentOptions(model="mamba-codestral-7b", gpu="h100"),
            workload=SimulatedWorkloadOptions(
                workload="random", input_len=300_000, num_requests=6, output_len=20
            ),
        )
    )
    assert run.summary.completed == 6 and run.summary.use.kv_peak == 0
    of_one = run.deployment.model.state_bytes()
    assert run.deployment.kv_bytes == 0
    slots, rest = divmod(run.deployment.state_bytes, of_one)
    assert slots >= 256 and rest == 0  # the rest of the memory keeps checkpoints
    assert run_fields(run)["deployment"]["state_bytes_per_device"] == run.deployment.state_bytes
    assert "60.0 GB of recurrent states, no KV cache" in run_fields(run)["description"]


def test_where_256_states_do_not_fit_the_defaults_are_smaller() -> None:
    """The largest half of a half that fits. Explicit numbers stay, and then nothing fits."""
    scenario = Scenario(
        deployment=DeploymentOptions(model="mamba-codestral-7b", gpu="l40s"),
        workload=SimulatedWorkloadOptions(workload="random", num_requests=3, output_len=5),
    )
    run = simulate(scenario)
    seqs = run.deployment.scheduler.max_num_seqs
    assert run.deployment.scheduler == SchedulerOptions(max_num_seqs=seqs).for_device(gpu=True)
    assert any(f"--max-num-seqs does not fit: it is {seqs}" in note for note in run.notes)
    assert seqs < 256
    for more in (2 * seqs, 256):
        with pytest.raises(InsufficientMemoryError):
            simulate(replace(scenario, scheduler=SchedulerOptions(max_num_seqs=more)))


def test_states_are_taken_from_the_memory_of_the_cache() -> None:
    """Those of all requests at least; blocks and checkpoints share what is left."""
    sheet = find_model("granite-4.0-h-small")
    options = DeploymentOptions(model="granite-4.0-h-small", gpu="h200")
    deployments = {
        requests: deploy(options, CacheConfig(), SchedulerConfig(max_num_seqs=requests))
        for requests in (64, 128)
    }
    for requests, deployment in deployments.items():
        assert deployment.state_bytes >= requests * sheet.state_bytes()
    few, many = deployments[64], deployments[128]
    assert many.info.num_blocks < few.info.num_blocks
    logits = 4 * 3 * sheet.vocab_size
    unit = sheet.state_bytes() + 16 * sheet.kv_bytes_per_token()  # of slots, and of blocks
    assert few.kv_bytes + few.state_bytes - many.kv_bytes - many.state_bytes == pytest.approx(
        64 * logits, abs=2 * unit
    )
