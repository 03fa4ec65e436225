"""Flags to configuration."""

from __future__ import annotations

from typing import Any

from twostroke.cli.flags import SamplingOptions, engine_config
from twostroke.cli.main import build_app
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.sampling_params import SamplingParams


def serve_arguments(*arguments: str) -> dict[str, Any]:
    command, bound, _ = build_app().parse_args(
        ["serve", *arguments], exit_on_error=False, print_error=False
    )
    assert command.__name__ == "serve"
    return dict(bound.arguments)


def test_serve_flags() -> None:
    bound = serve_arguments(
        "folder", "--max-num-seqs", "8", "--kv-cache-memory", "512MiB",
        "--no-enable-prefix-caching", "--served-model-name", "a", "--served-model-name", "b",
        "--dtype", "bfloat16", "--shutdown-timeout", "3", "--policy", "priority",
        "--max-body-size", "1MiB",
    )  # fmt: skip
    config = engine_config(
        bound["models"][0], bound["model_options"], bound["cache"], bound["scheduler"]
    )
    assert (config.model.model, config.model.dtype) == ("folder", "bfloat16")
    assert (config.cache.kv_cache_memory, config.cache.enable_prefix_caching) == (2**29, False)
    assert (config.scheduler.max_num_seqs, config.scheduler.policy) == (8, "priority")
    server = bound["server"]
    assert (server.served_model_name, server.shutdown_timeout, server.max_body_size) == (
        ("a", "b"),
        3.0,
        2**20,
    )


def test_model_by_flag_or_position() -> None:
    assert engine_config(None, None) == EngineConfig()
    assert engine_config(None, ModelOptions(model="x")).model.model == "x"
    assert engine_config("x", ModelOptions(dtype="float32")).model == ModelOptions(
        model="x", dtype="float32"
    )


def test_sampling_options_are_sampling_params() -> None:
    options = SamplingOptions(temperature=0, stop=("a", "b"), ignore_eos=True, max_tokens=3)
    fields = options.as_fields()
    assert fields == {"temperature": 0, "stop": ["a", "b"], "ignore_eos": True, "max_tokens": 3}
    assert SamplingParams(**fields).greedy
    assert SamplingOptions().as_fields() == {}
    for name in SamplingOptions.__slots__:
        assert hasattr(SamplingParams(), name)
