"""Protects: a quantised folder gives the numbers of the model with its weights in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.quantised.packers import (
    RAW,
    Pack,
    Packed,
    awq,
    compressed,
    fp8,
    gptq,
    in_words,
    integers,
    nvfp4,
    write_both,
)
from tests.text.tiny_tokenizers import byte_level
from twostroke import LLM, SamplingParams
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.kernels.library import load_library
from twostroke.layers.linear import JoinedLinear, PackedLinear
from twostroke.layers.packing import unpack
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.checkpoints.survey import read_survey
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model

IDS = [1, 5, 9, 77, 42, 3, 8, 100, 60, 61, 62, 63]
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}
OF_BLOCKS = {"strategy": "block", "block_structure": [16, 32]}
ROUNDS = {"input_activations": {"num_bits": 8, "type": "int", "dynamic": True}}
Case = tuple[dict[str, Any], Pack]


def words(pack: Pack, **changes: Any) -> Case:
    return compressed("pack-quantized", {**INT4, **changes}), pack


# What the kernels hold as it is, by what they call it.
KEPT: dict[str, tuple[str, Case]] = {
    "w4a16": ("int4", words(in_words())),
    "w4a16-wide-groups": ("int4", words(in_words(group=64), group_size=64)),
    "w4a16-channel": ("int4", words(in_words(group=0), strategy="channel", group_size=None)),
    "w8a16": ("int8", (compressed("pack-quantized", INT8), in_words(8, 0))),
    "w8a8": ("int8", (compressed("int-quantized", INT8, **ROUNDS), integers(static=True))),
    "w8a8-tensor": (
        "int8",
        (compressed("int-quantized", {**INT8, "strategy": "tensor"}), integers("tensor")),
    ),
    "gptq": ("int4", (GPTQ, gptq())),
    "gptq-8": ("int8", ({**GPTQ, "bits": 8, "group_size": -1}, gptq(8, -1))),
    "gptq-v2": ("int4", ({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(less=0))),
    "awq-symmetric": ("int4", (AWQ, awq(symmetric=True))),
    "awq": ("uint4", (AWQ, awq())),
    "awq-channel": ("uint4", ({**AWQ, "group_size": -1}, awq(-1))),
    "gptq-zeros": ("uint4", ({**GPTQ, "sym": False}, gptq(symmetric=False))),
    "gptq-v2-zeros": (
        "uint4",
        ({**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"}, gptq(symmetric=False, less=0)),
    ),
    "w4a16-zeros": ("uint4", words(in_words(symmetric=False), symmetric=False)),
    "w4a16-channel-zeros": (
        "uint4",
        words(
            in_words(group=0, symmetric=False), symmetric=False, strategy="channel", group_size=None
        ),
    ),
}
DECODED: dict[str, Case] = {
    "w4a16-ordered": words(in_words(ordered=True), actorder="group"),
    "w4a16-ordered-zeros": words(
        in_words(symmetric=False, ordered=True), symmetric=False, actorder="group"
    ),
    "w4a16-narrow-groups": words(in_words(group=16), group_size=16),
    "w8a16-groups": words(in_words(8, 32), num_bits=8),
    "w8a16-zeros": words(in_words(8, 32, symmetric=False), num_bits=8, symmetric=False),
    "w8-zeros": (
        compressed("int-quantized", {**INT8, "symmetric": False}),
        integers(symmetric=False),
    ),
    "w8-groups": (
        compressed("int-quantized", {**INT8, "strategy": "group", "group_size": 32}),
        integers("group"),
    ),
    "w8-tensor-zeros": (
        compressed("int-quantized", {**INT8, "strategy": "tensor", "symmetric": False}),
        integers("tensor", symmetric=False),
    ),
    "w8-blocks": (
        compressed("int-quantized", {**INT8, **OF_BLOCKS}),
        integers("block"),
    ),
    "w8-blocks-zeros": (
        compressed("int-quantized", {**INT8, **OF_BLOCKS, "symmetric": False}),
        integers("block", symmetric=False),
    ),
    "float-channel": (compressed("float-quantized", FP8), fp8("channel")),
    "float-tensor": (
        compressed("naive-quantized", {**FP8, "strategy": "tensor"}),
        fp8("tensor", static=True),
    ),
    "float-block": (
        compressed("float-quantized", {**FP8, **OF_BLOCKS}),
        fp8("block"),
    ),
    "nvfp4": (compressed("nvfp4-pack-quantized", FP4), nvfp4(divides=True)),
    "gptq-ordered": ({**GPTQ, "desc_act": True}, gptq(ordered=True)),
    "gptq-2": ({**GPTQ, "bits": 2}, gptq(2)),
    "gptq-8-groups": ({**GPTQ, "bits": 8}, gptq(8)),
    "fp8-block": (BLOCKS, fp8("block", "weight_scale_inv")),
    "fp8-exponents": (
        {**BLOCKS, "scale_fmt": "ue8m0"},
        fp8("block", "weight_scale_inv", exponent=True),
    ),
    "fp8-tensor": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        fp8("tensor", static=True),
    ),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(static=True)),
    "modelopt-nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
        nvfp4(divides=False),
    ),
}


def load(path: Path, dtype: str = "auto", quantization: str | None = None) -> Decoder:
    checkpoint = open_checkpoint(path)
    spec, device = read_runnable(checkpoint), torch.device("cpu")
    return load_model(checkpoint, spec, dtype, device, 64, quantization)


@pytest.mark.parametrize("name", DECODED)
def test_what_is_decoded_gives_the_same_bits(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stated, pack = DECODED[name]
    quantised, exact, _ = write_both(tmp_path, stated, pack)
    for dtype in ("bfloat16", "float32"):
        assert torch.equal(
            naive_logits(load(quantised, dtype), IDS), naive_logits(load(exact, dtype), IDS)
        )
        assert f"decoded to {dtype} while it loads" in caplog.text


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_decodes_to_the_same_bits_elsewhere(name: str, tmp_path: Path) -> None:
    _, (stated, pack) = KEPT[name]
    quantised, exact, _ = write_both(tmp_path, stated, pack)
    ours, expected = load(quantised, "float32"), load(exact, "float32")
    assert torch.equal(naive_logits(ours, IDS), naive_logits(expected, IDS))


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_is_not_rounded(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernels' weights are the folder's, to the bit; they round activations to int8."""
    format_, (stated, pack) = KEPT[name]
    quantised, exact, weights = write_both(tmp_path, stated, pack)
    for quantization in (None, format_.removeprefix("u")):
        caplog.clear()
        model = load(quantised, quantization=quantization)
        assert "decoded" not in caplog.text
        attention, mlp = model._layers[1]
        parts = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"]]
        parts += [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]
        for linear, names in zip((*attention.linears, *mlp.linears), parts, strict=True):
            assert isinstance(linear, PackedLinear) and linear.packed.format == format_
            expected = torch.cat([weights[f"model.layers.1.{each}.weight"] for each in names])
            every = torch.arange(len(expected))
            own = linear.weight_rows(every) if format_ == "uint4" else unpack(linear.packed)
            assert torch.equal(own, expected.to(own.dtype))
    reference = naive_logits(load(exact, "float32"), IDS)
    distance = (naive_logits(load(quantised), IDS) - reference).abs().mean()
    assert 0 < float(distance) < 0.05 * float(reference.std())


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
def test_some_parts_of_a_layer_have_zero_points_and_others_none(tmp_path: Path) -> None:
    def pack(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        return awq(symmetric=outputs == 64)(generator, outputs, inputs)

    quantised, exact, _ = write_both(tmp_path, AWQ, pack)
    model = load(quantised)
    assert isinstance(model._layers[1][0].linears[0], JoinedLinear), "query differs from key"
    reference = naive_logits(load(exact, "float32"), IDS)
    distance = (naive_logits(model, IDS) - reference).abs().mean()
    assert 0 < float(distance) < 0.05 * float(reference.std())


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
def test_a_folder_of_float16_runs_in_bfloat16_where_its_weights_are_kept(tmp_path: Path) -> None:
    quantised, _, _ = write_both(tmp_path, *KEPT["awq"][1], {**RAW, "torch_dtype": "float16"})
    assert load(quantised).dtype == torch.bfloat16
    assert read_survey(open_checkpoint(quantised)).dtype == "bfloat16"
    assert load(quantised, "float16").dtype == torch.float16
    raw = {**RAW, "torch_dtype": "float16"}
    decoded, exact, _ = write_both(tmp_path / "decoded", *DECODED["float-channel"], raw)
    assert load(decoded).dtype == load(exact).dtype == torch.float16


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
def test_another_width_is_rounded_from_the_decoded_weights(tmp_path: Path) -> None:
    quantised, exact, _ = write_both(tmp_path, GPTQ, gptq())
    ours, expected = (load(path, "bfloat16", "int8") for path in (quantised, exact))
    assert torch.equal(naive_logits(ours, IDS), naive_logits(expected, IDS))


@pytest.mark.parametrize("name", ["w4a16", "awq", "gptq-ordered", "float-block"])
def test_served(name: str, tmp_path: Path) -> None:
    """Answers are those of the model alone, token by token."""
    stated, pack = DECODED[name] if name in DECODED else KEPT[name][1]
    quantised, _, _ = write_both(tmp_path, stated, pack)
    (quantised / "tokenizer.json").write_text(byte_level().to_str())
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    (quantised / "tokenizer_config.json").write_text(json.dumps(settings))
    parameters = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    options: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "max_num_seqs": 2}
    with LLM(str(quantised), kv_cache_memory="1MiB", **options) as llm:
        answers = llm.generate(["the dog", "a cat"], parameters)
    model = load(quantised)
    for answer in answers:
        tokens = list(answer.prompt_token_ids)
        for token in answer.outputs[0].token_ids:
            assert int(naive_logits(model, tokens)[-1].argmax()) == token
            tokens.append(token)


def test_experts_are_layers_like_others(tmp_path: Path) -> None:
    raw = {
        **RAW,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
        "mlp_only_layers": [],
    }
    quantised, exact, _ = write_both(tmp_path, *KEPT["awq"][1], raw)
    ours, expected = load(quantised, "float32"), load(exact, "float32")
    reference = naive_logits(expected, IDS)
    assert torch.equal(naive_logits(ours, IDS), reference)
    distance = (naive_logits(load(quantised), IDS) - reference).abs().mean()
    assert float(distance) < 0.05 * float(reference.std()), "experts are decoded, the rest is kept"


def test_biases_that_are_zero_are_no_biases(tmp_path: Path) -> None:
    """GPTQ's tools write them for layers that have none."""
    quantised, exact, _ = write_both(tmp_path, GPTQ, gptq(biased=True))
    ours, expected = load(quantised, "float32"), load(exact, "float32")
    assert torch.equal(naive_logits(ours, IDS), naive_logits(expected, IDS))


@pytest.mark.parametrize("name", ["modelopt-fp8", "modelopt-nvfp4"])
def test_modelopt_in_a_file_of_its_own(name: str, tmp_path: Path) -> None:
    stated, pack = DECODED[name]
    quantised, exact, _ = write_both(tmp_path, None, pack)
    inner = {key: value for key, value in stated.items() if key != "quant_method"}
    inner |= {"kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    file = quantised / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": inner}))
    assert file in open_checkpoint(quantised).files
    assert torch.equal(naive_logits(load(quantised), IDS), naive_logits(load(exact), IDS))
