"""Protects: the commands of a plan are taken by the command line, and the values are YAML."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.planner.questions import planned
from twostroke.cli.main import build_app
from twostroke.planner.commands import (
    caveat,
    serve_commands,
    simulate_command,
)
from twostroke.planner.make_plans import Planned
from twostroke.planner.manifests import kubernetes_values, ray_serve_values, write_manifests


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


def test_what_our_engine_cannot_run_is_said() -> None:
    answer = planned(limits={"weight_dtype": "fp8"})
    assert answer.best is not None
    assert "fp8" in (caveat(answer.search, answer.best.plan.engine) or "")
    for weights in ("bf16", "int4"):
        plain = planned(limits={"weight_dtype": weights})
        assert plain.best is not None
        assert caveat(plain.search, plain.best.plan.engine) is None
        _, command = serve_commands(plain.search, plain.best.plan)[0]
        assert ("--quantization int4" in command) == (weights == "int4")


def test_values_name_devices_and_replicas(tmp_path: Path) -> None:
    answer = many()
    assert answer.best is not None
    plan = answer.best.plan
    workers, _, router, _ = yaml.safe_load_all(kubernetes_values(answer.search, plan))
    assert workers["spec"]["replicas"] == plan.replicas + plan.spare > 1
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": plan.engine.tp}
    parse(shlex.join(["twostroke", *container["args"]]))
    (container,) = router["spec"]["template"]["spec"]["containers"]
    parse(shlex.join(["twostroke", *container["args"]]))
    (config,) = yaml.safe_load(ray_serve_values(answer.search, plan))["applications"][0]["args"][
        "llm_configs"
    ]
    assert config["deployment_config"]["num_replicas"] == plan.replicas + plan.spare
    assert config["engine_kwargs"]["max_num_seqs"] == plan.engine.seqs
    assert len(write_manifests(answer.search, plan, tmp_path / "new")) == 2
