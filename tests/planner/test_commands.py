"""Protects: the commands of a plan are taken by the command line, and the values are YAML."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.planner.questions import engine, planned, search_for
from twostroke.cli.main import build_app
from twostroke.cli.serving.fleet_file import read_fleet
from twostroke.cli.serving.kuberay import kuberay_values
from twostroke.planner.commands import (
    caveat,
    caveats,
    serve_commands,
    serve_flags,
    simulate_command,
    vllm_flags,
)
from twostroke.planner.make_plans import Planned
from twostroke.planner.manifests import (
    fleet_values,
    kubernetes_values,
    ray_serve_values,
    write_manifests,
)


def parse(command: str) -> None:
    words = shlex.split(command.replace(" ...", ""))
    assert words[0] == "twostroke"
    build_app().parse_args(words[1:], exit_on_error=False, print_error=False)


def many() -> Planned:
    """A plan of several replicas, with drafts."""
    return planned(traffic={"rate": 300.0}, limits={"gpus": "h100", "acceptance": 0.7})


def test_commands_are_taken_by_the_command_line() -> None:
    for answer in (planned(traffic={"users": 4}), many()):
        assert answer.best is not None
        for _, command in serve_commands(answer.search, answer.best.plan):
            parse(command)
        parse(simulate_command(answer.search, answer.best.plan))


def apart(**limits: str) -> Planned:
    """A plan of prefill and decode replicas."""
    return planned(traffic={"rate": 60.0}, limits={"pools": "apart", "gpus": "h100", **limits})


def test_pools_are_workers_with_roles_where_each_has_one_device() -> None:
    answer = apart(tp="1")
    assert answer.best is not None
    plan = answer.best.plan
    commands = [command for _, command in serve_commands(answer.search, plan)]
    assert ["--role prefill" in c or "--role decode" in c for c in commands] == [True, True, False]
    for command in commands:
        parse(command)
    simulation = simulate_command(answer.search, plan)
    parse(simulation)
    assert "--prefill gpu=h100-sxm" in simulation and "--decode gpu=h100-sxm" in simulation


def test_what_our_engine_does_not_split_is_served_by_vllm() -> None:
    for answer in (apart(tp="2"), planned(limits={"gpus": "h100", "tp": "1", "pp": "2"})):
        assert answer.best is not None
        plan = answer.best.plan
        commands = [command for _, command in serve_commands(answer.search, plan)]
        assert all(command.startswith("vllm serve ") for command in commands)
        assert len(commands) == 1 + (plan.prompts is not None)
        assert any("vLLM" in text for text in caveats(answer.search, plan))
        assert fleet_values(answer.search, plan) is None
        parse(simulate_command(answer.search, plan))


def test_weights_that_a_device_rounds_to_have_their_flag() -> None:
    for weights in ("bf16", "int4", "fp8"):
        answer = planned(limits={"weight_dtype": weights})
        assert answer.best is not None
        assert caveats(answer.search, answer.best.plan) == []
        _, command = serve_commands(answer.search, answer.best.plan)[0]
        assert (f"--quantization {weights}" in command) == (weights != "bf16")
        parse(command)


@pytest.mark.parametrize(
    ("gpu", "weights", "runs"),
    [
        ("h100-sxm", "fp8", True),
        ("l4", "fp8", True),
        ("a100-80gb-sxm", "fp8", False),
        ("a100-80gb-sxm", "int8", True),
        ("mi300x", "int8", False),
        ("b200", "nvfp4", False),
    ],
)
def test_what_our_engine_cannot_run_is_said(gpu: str, weights: str, runs: bool) -> None:
    search, one = search_for(), engine(gpu=gpu, weights=weights)
    assert (caveat(search, one) is None) == runs
    assert ("--quantization" in serve_flags(search, one)) == runs


def test_experts_are_rounded_too_and_stored_integers_stay() -> None:
    search = search_for("qwen3-30b-a3b")
    assert "--quantization" in serve_flags(search, engine(weights="int8"))
    # What is stored in blocks of 8 bits is decoded while it loads.
    stored = search_for("deepseek-v3")
    assert stored.builder.spec.format == "fp8_block"
    assert "--quantization" in serve_flags(stored, engine(weights="fp8_block"))
    assert "--quantization" not in vllm_flags(stored, engine(weights="fp8_block"))


def test_vllm_rounds_to_fp8_and_wants_a_checkpoint_of_the_rest() -> None:
    split = {"gpus": "h100", "tp": "1", "pp": "2"}
    for weights, rounds in (("fp8", True), ("int4", False)):
        answer = planned(limits=split | {"weight_dtype": weights})
        assert answer.best is not None
        search, plan = answer.search, answer.best.plan
        ((_, command),) = serve_commands(search, plan)
        values = [kubernetes_values(search, plan), ray_serve_values(search, plan)]
        assert ("--quantization fp8" in command) == rounds
        assert all("quantization" in text for text in values) == rounds
        asked = "a checkpoint of int4 weights"
        assert any(asked in text for text in caveats(search, plan)) != rounds
        assert all(asked in text for text in values) != rounds
        assert len([*yaml.safe_load_all(values[0])]) == 2 and yaml.safe_load(values[1])


def test_values_name_devices_and_replicas(tmp_path: Path) -> None:
    answer = many()
    assert answer.best is not None
    plan = answer.best.plan
    workers, _, router, _ = yaml.safe_load_all(kubernetes_values(answer.search, plan))
    assert workers["spec"]["replicas"] == plan.replicas + plan.spare > 1
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": plan.engine.tp}
    assert container["args"][2:-4] == serve_flags(answer.search, plan.engine)
    parse(shlex.join(["twostroke", *container["args"]]))
    (container,) = router["spec"]["template"]["spec"]["containers"]
    parse(shlex.join(["twostroke", *container["args"]]))
    (config,) = yaml.safe_load(ray_serve_values(answer.search, plan))["applications"][0]["args"][
        "llm_configs"
    ]
    assert config["deployment_config"]["num_replicas"] == plan.replicas + plan.spare
    kwargs = config["engine_kwargs"]
    assert kwargs["max_num_seqs"] == plan.engine.seqs
    assert kwargs["quantization"] == plan.engine.weights == "fp8"
    drafts = {"method": "ngram", "num_speculative_tokens": plan.engine.drafts.tokens}
    assert kwargs["speculative_config"] == drafts and plan.engine.drafts.tokens
    assert len(write_manifests(answer.search, plan, tmp_path / "new")) == 3


def test_the_fleet_is_taken_by_up_and_its_values_by_kubernetes(tmp_path: Path) -> None:
    answer = many()
    assert answer.best is not None
    plan = answer.best.plan
    *_, path = write_manifests(answer.search, plan, tmp_path)
    fleet = read_fleet(path, by_ray=True)
    (pool,) = fleet.pools.values()
    assert pool.num_at_first == plan.replicas + plan.spare
    assert pool.config.scheduler.max_num_seqs == plan.engine.seqs
    assert pool.config.model.quantization == plan.engine.weights == "fp8"
    drafts = pool.config.speculation.resolve()
    assert drafts is not None and drafts.num_speculative_tokens == plan.engine.drafts.tokens
    _, cluster, _ = yaml.safe_load_all(kuberay_values(path, fleet, "image"))
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert group["replicas"] == plan.replicas + plan.spare


def test_values_of_pools_have_both_roles() -> None:
    answer = apart(tp="1")
    assert answer.best is not None
    plan = answer.best.plan
    assert plan.prompts is not None
    documents = list(yaml.safe_load_all(kubernetes_values(answer.search, plan)))
    sets = [each for each in documents if each["kind"] == "StatefulSet"]
    counts = [plan.prompts.replicas, plan.replicas]
    assert [each["spec"]["replicas"] for each in sets] == counts
    for each, role in zip(sets, ("prefill", "decode")):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert container["args"][container["args"].index("--role") + 1] == role
        parse(shlex.join(["twostroke", *container["args"]]))
    args = yaml.safe_load(ray_serve_values(answer.search, plan))["applications"][0]["args"]
    configs = args["prefill_config"], args["decode_config"]
    assert [each["deployment_config"]["num_replicas"] for each in configs] == counts
    assert all("kv_transfer_config" in each["engine_kwargs"] for each in configs)
