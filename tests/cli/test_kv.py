"""``twostroke kv`` against numbers computed by hand from the models' config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twostroke.cli.main import run
from twostroke.model_spec.kv_arithmetic import kv_arithmetic
from twostroke.model_spec.public_models import find_model


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["kv", *arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_gqa_llama_3_8b(capsys: pytest.CaptureFixture[str]) -> None:
    """32 layers x 2 x 8 KV heads x 128 x 2 bytes = 131,072 bytes a token."""
    made = answer(capsys, "llama-3.1-8b", "--len", "8192", "--users", "50", "--gpu", "h100")
    assert made["bytes_per_token"] == 131_072
    (layers,) = made["layers"]
    assert (layers["count"], layers["kind"], layers["elements"]) == (32, "GQA", 2048)
    assert layers["source"] == "2 x 8 KV heads x 128" and layers["bytes_per_token"] == 4096
    assert made["bytes_per_conversation"] == 8192 * 131_072 == 2**30
    assert made["bytes_of_users"] == 50 * 2**30
    shares = {each["name"]: each["share"] for each in made["alternatives"]}
    assert shares["a KV head for each query head (MHA)"] == 4
    assert shares["a window of 4,096 tokens in all layers"] == 0.5
    # 128 elements and a scale of 2 bytes; 64 bytes and four scales.
    assert shares["--kv-cache-dtype int8"] == 130 / 256
    assert shares["--kv-cache-dtype int4"] == 72 / 256
    (device,) = made["devices"]
    # 0.9 x (80 GiB - 0.5 GB of the driver), less 16.06 GB of weights, 1 GB of runtime and 0.8 GB of
    # activations: 59.0 GB.
    assert device["devices"] == 1 and device["conversations"] == 54


def test_int8_counts_its_scales(capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "llama-3.1-8b", "--gpu", "h100", "--kv-cache-dtype", "int8")
    assert made["kv_cache_dtype"] == "int8"
    assert made["bytes_per_token"] == 32 * 2 * 8 * (128 + 2)
    shares = {each["name"]: each["share"] for each in made["alternatives"]}
    assert shares["--kv-cache-dtype bfloat16"] == 256 / 130
    assert "--kv-cache-dtype int8" not in shares


def test_mha_llama_2_7b(capsys: pytest.CaptureFixture[str]) -> None:
    """32 layers x 2 x 32 KV heads x 128 x 2 bytes = 512 KiB; 8 KV heads would be a quarter."""
    made = answer(capsys, "llama-2-7b", "--len", "4096", "--gpu", "h100")
    assert made["bytes_per_token"] == 524_288
    assert made["layers"][0]["kind"] == "MHA"
    shares = {each["name"]: each["share"] for each in made["alternatives"]}
    assert shares["8 KV heads (GQA)"] == 0.25
    assert not any("MHA" in name for name in shares)


def test_mla_deepseek_v3() -> None:
    """61 layers x (512 compressed + 64 rotary) x 2 bytes; as MHA 128 heads x (192 + 128)."""
    made = kv_arithmetic(find_model("deepseek-v3"), 1000)
    assert made.bytes_per_token == 61 * 576 * 2
    (layers,) = made.layers
    assert (layers.count, layers.kind, layers.elements) == (61, "MLA", 576)
    shares = {each.name: each.share for each in made.alternatives}
    assert shares["a KV head for each query head (MHA)"] == 128 * 320 / 576


def test_windows_of_gpt_oss() -> None:
    """24 layers, every other one sees 128 tokens; 2 x 8 KV heads x 64 x 2 bytes each."""
    made = kv_arithmetic(find_model("gpt-oss-20b"), 8192)
    by_window = {layers.window: layers for layers in made.layers}
    assert {window: layers.count for window, layers in by_window.items()} == {128: 12, None: 12}
    per_layer = 2 * 8 * 64 * 2
    assert made.bytes_per_token == 24 * per_layer
    assert made.conversation_bytes == (12 * 128 + 12 * 8192) * per_layer
    shares = {each.name: each.share for each in made.alternatives}
    assert shares["no window"] == 24 * 8192 / (12 * 128 + 12 * 8192)


def test_tables_name_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kv", "llama-3.1-70b", "--users", "3", "--kv-cache-dtype", "int4"]) == 0
    printed = capsys.readouterr().out
    assert "GQA" in printed and "2 x 8 KV heads x 128" in printed
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if line.split()}
    assert rows["h100-sxm"][1] == "2"  # 141 GB of weights need two
    assert rows["l4"][-1] == "yes" or rows["l4"][1] in ("-", "8")


@pytest.mark.parametrize(
    ("name", "layers", "bytes_per_token"),
    [("llama-3-8b", 32, 131_072), ("llama-3-70b", 80, 327_680)],
)
def test_llama_3_by_its_own_name(
    name: str, layers: int, bytes_per_token: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """As 3.1, whose context is longer."""
    made = answer(capsys, name, "--gpu", "h100")
    assert (made["layers"][0]["count"], made["bytes_per_token"]) == (layers, bytes_per_token)
    assert find_model(name).context_length == 8192


def test_how_many_devices_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no machine holds the model, and where it holds too few conversations."""
    # 405 billion parameters in 2 bytes are 812 GB, 73 GB of each device are free: two machines.
    (h100,) = answer(capsys, "llama-3.1-405b", "--gpu", "h100")["devices"]
    assert (h100["devices"], h100["conversations"], h100["needed"]) == (0, 0, 16)
    # Copies of one device that holds 54.
    (h100,) = answer(capsys, "llama-3.1-8b", "--users", "300", "--gpu", "h100")["devices"]
    assert (h100["devices"], h100["conversations"], h100["needed"]) == (1, 54, 6)
    assert run(["kv", "llama-3.1-405b", "--gpu", "h100"]) == 0
    assert "no: 16 would do" in capsys.readouterr().out
    (cpu,) = answer(capsys, "llama-3.1-405b", "--gpu", "cpu")["devices"]
    assert cpu["needed"] == 0


def test_several_devices_keep_buffers_of_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    """1.3 GB of each H100: 77 conversations of 4.2 GB would do on 16 without them."""
    asked = ["llama-3.1-405b", "--gpu", "h100", "--users"]
    (fewer,) = answer(capsys, *asked, "76")["devices"]
    (more,) = answer(capsys, *asked, "77")["devices"]
    assert (fewer["needed"], more["needed"]) == (16, 24)


def test_no_more_than_the_models_context(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor by default: Llama 2 has 4,096 tokens."""
    assert answer(capsys, "llama-2-7b", "--gpu", "h100")["tokens"] == 4096
    assert answer(capsys, "llama-3.1-8b", "--gpu", "h100")["tokens"] == 8192
    assert run(["kv", "llama-3.1-8b", "--len", "131073"]) != 0
    said = capsys.readouterr().err
    assert "--len 131,073 is more than the model's context of 131,072 tokens" in said
    assert "hint: give --len 131072 or less" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "unknown model 'no-such-model'"),
        (["llama-3.1-8b", "--len", "0"], "--len"),
        (["llama-3.1-8b", "--users", "0"], "--users"),
        (["llama-3.1-8b", "--kv-cache-dtype", "int3"], "unknown KV cache format 'int3'"),
        (["llama-3.1-8b", "--gpu", "abacus"], "abacus"),
        ([], "model"),
    ],
)
def test_what_is_wrong_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kv", *arguments]) != 0
    assert message.lower() in capsys.readouterr().err.lower()
