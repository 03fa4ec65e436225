"""Protects: a GGUF file gives the model and the answers of the folder that it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.gguf.make_gguf import convert, read_metadata, read_tensors
from benchmarks.gguf.writer import Value, WrittenTensor, encode, write_gguf
from tests.checkpoints import LLAMA3_ROPE, random_tensors, tiny_config, write_checkpoint
from tests.models.tiny_families import EXPERTS, FAMILIES
from tests.text.tiny_tokenizers import byte_level
from twostroke import LLM, SamplingParams
from twostroke.checkpoints.gguf.architecture import ENDS
from twostroke.checkpoints.gguf.architectures import ARCHITECTURES
from twostroke.checkpoints.gguf.block_formats import SIZES
from twostroke.checkpoints.gguf.dequantise import dequantise
from twostroke.checkpoints.gguf.metadata import Metadata
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.kernels.library import load_library
from twostroke.layers.linear import JoinedLinear, PackedLinear, TorchLinear
from twostroke.layers.packing import unpack
from twostroke.model_spec.config.recurrent_layers import MAMBA2
from twostroke.models.catalogue import GGUF_TYPES, list_families
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model

VOCAB = 331
IDS = [1, 5, 9, 77, 42, 3, 8, 100, 60, 61, 62, 63]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# What files of llama.cpp cannot say differently: see ``Architecture``.
GEMMA = {"query_pre_attn_scalar": 12, "rope_theta": 1e6}
MULTIPLIED: dict[str, Any] = {
    "lm_head_multiplier": 0.7,
    "embedding_multiplier": 1.5,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.7,
    "mlp_multipliers": [0.9, 0.6],
    "ssm_multipliers": [0.9, 0.8, 1.2, 1.1, 0.7],
    "mamba_n_groups": 2,
    "mamba_d_ssm": 64,
}
FURTHER: dict[str, dict[str, Any]] = {
    "bamba": {**FAMILIES["bamba"], "partial_rotary_factor": 0.5},
    "falcon-h1": {**FAMILIES["falcon-h1-gate-first"], **MULTIPLIED},
    "falcon-h1-no-norm": {**FAMILIES["falcon-h1-no-norm"], **MULTIPLIED},
    "mamba2": {**FAMILIES["mamba2"], "layer_norm_epsilon": 1e-5},
    "nemotron-h": {**FAMILIES["nemotron-h"], "layer_norm_epsilon": 1e-5},
    "nemotron-h-experts": {**FAMILIES["nemotron-h-experts"], "layer_norm_epsilon": 1e-5},
    "glm4-moe": {
        **FAMILIES["glm4-moe"],
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "partial_rotary_factor": 0.5,
    },
    "gemma4": {**FAMILIES["gemma4"], "vocab_size_per_layer_input": VOCAB},
    "gemma4-shared": {**FAMILIES["gemma4-shared"], "vocab_size_per_layer_input": VOCAB},
    "gemma4-moe": FAMILIES["gemma4-moe"],
    "llama4": {**FAMILIES["llama4"], "attention_chunk_size": 8192, "floor_scale": 8192},
}
OWN: dict[str, dict[str, Any]] = {
    "llama": tiny_config("llama"),
    "llama-biases": FAMILIES["llama-linear-rope-biases"],
    "mistral": FAMILIES["mistral-no-window"],
    "mixtral": tiny_config("mixtral", num_local_experts=12, sliding_window=None, rope_theta=1e6),
    "qwen2": tiny_config("qwen2", rope_scaling=YARN, tie_word_embeddings=True),
    "qwen3": FAMILIES["qwen3"],
    "qwen3-moe": tiny_config("qwen3_moe", **EXPERTS, norm_topk_prob=True, head_dim=16),
    "qwen2-moe": tiny_config("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=20),
    "gemma2": {**FAMILIES["gemma2"], **GEMMA, "rope_theta": 1e4},
    "gemma3": {**FAMILIES["gemma3"], **GEMMA},
    "phi3": FAMILIES["phi3"],
    "olmo2": FAMILIES["olmo2"],
    "olmo3": {**FAMILIES["olmo3"], "rope_theta": 5e5},
    "granite": FAMILIES["granite"],
    "smollm3": {**FAMILIES["smollm3"], "rope_theta": 2e6},
    "cohere2": FAMILIES["cohere2"],
    "lfm2": {**FAMILIES["lfm2"], "block_auto_adjust_ff_dim": False},
    **FURTHER,
}


def write_folder(folder: Path, raw: dict[str, Any], dtype: torch.dtype = torch.float32) -> Path:
    raw = {"rope_theta": 10_000.0, **raw, "vocab_size": VOCAB, "eos_token_id": 1}
    raw["torch_dtype"] = str(dtype).removeprefix("torch.")
    write_checkpoint(folder, raw, random_tensors(raw, dtype=dtype))
    (folder / "tokenizer.json").write_text(byte_level().to_str())
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": "{{ 1 }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def load(path: Path, dtype: str = "auto") -> Decoder:
    checkpoint = open_checkpoint(path)
    return load_model(checkpoint, read_runnable(checkpoint), dtype, torch.device("cpu"), 64)


@pytest.mark.parametrize("name", OWN)
def test_the_same_logits(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", OWN[name])
    file = convert(folder, tmp_path / "model.gguf", "F32")
    ours, expected = load(file), load(folder)
    assert ours.dtype == torch.float32
    # What Gemma's norms add, what Falcon multiplies, and rates as files have them round last bits.
    is_rounded = OWN[name]["model_type"] in (*MAMBA2, "gemma2", "gemma3_text")
    tolerance = 1e-4 if is_rounded else 0.0
    distance = (naive_logits(ours, IDS) - naive_logits(expected, IDS)).abs().max()
    assert float(distance) <= tolerance


def test_angles_of_llama_3(tmp_path: Path) -> None:
    """Files keep what each frequency is divided by, not the rule."""
    raw = tiny_config("llama", rope_scaling=LLAMA3_ROPE, head_dim=16, tie_word_embeddings=True)
    folder = write_folder(tmp_path / "folder", raw)
    frequencies = 10_000.0 ** -(np.arange(0, 16, 2) / 16)
    share = np.clip((64 * frequencies / (2 * np.pi) - 1) / 3, 0, 1)
    factors = encode((1 / ((1 - share) / 4 + share)).astype(np.float32), "F32")
    tensors = {**dict(read_tensors(folder, "F32")), "rope_freqs.weight": factors}
    metadata = read_metadata(folder)
    file = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    assert torch.equal(naive_logits(load(file), IDS), naive_logits(load(folder), IDS))
    wrong = encode(np.linspace(1, 4, 8, dtype=np.float32), "F32")
    write_gguf(file, metadata, {**tensors, "rope_freqs.weight": wrong})
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight holds other factors"):
        load(file)


@pytest.mark.parametrize(("format", "dtype"), [("F32", "float32"), ("BF16", "bfloat16")])
def test_the_same_answers(format: str, dtype: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", tiny_config("llama"), getattr(torch, dtype))
    file = convert(folder, tmp_path / "model.gguf", format)
    parameters = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers = []
    for model in (folder, file):
        options: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "max_num_seqs": 2}
        with LLM(str(model), kv_cache_memory="1MiB", **options) as llm:
            answers.append([each.text for each in llm.generate(["the dog", "café"], parameters)])
            assert llm.tokenizer.chat_templates == {"default": "{{ 1 }}"}
    assert answers[0] == answers[1]


def test_a_file_of_blocks_is_decoded_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = tiny_config("llama", intermediate_size=64)
    folder = write_folder(tmp_path / "folder", raw)
    file = convert(folder, tmp_path / "model.gguf", "Q8_0")
    ours = load(file, "float32")
    assert "Q8_0: decoded to float32 while it loads" in caplog.text
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            blocks = encode(tensor.numpy(), "Q8_0").data
            values = dequantise("Q8_0", np.frombuffer(blocks, np.uint8))
            rounded = torch.from_numpy(values).view(tensor.shape)
            assert 0 < float((rounded - tensor).abs().max()) < 0.01
            tensors[name] = rounded
    config = json.loads((folder / "config.json").read_text())
    expected = load(write_checkpoint(tmp_path / "rounded", config, tensors))
    assert torch.equal(naive_logits(ours, IDS), naive_logits(expected, IDS))


def test_half_of_a_head_rotates(tmp_path: Path) -> None:
    raw = {**FAMILIES["glm4"], "partial_rotary_factor": 0.5}
    folder = write_folder(tmp_path / "folder", raw)
    changes: dict[str, Value] = {"glm4.rope.dimension_count": 8}
    file = convert(folder, tmp_path / "model.gguf", "F32", **changes)
    assert torch.equal(naive_logits(load(file), IDS), naive_logits(load(folder), IDS))


def gpt_oss_tensors(folder: Path) -> dict[str, WrittenTensor]:
    """Gates, ups and downs of all experts in a tensor each, outputs first."""
    names = {target: name for name, target in ARCHITECTURES["gpt-oss"].layer.items()}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.startswith("model.layers."):
            base, _, part = name.rpartition(".")
            ends = {target: own for own, target in ENDS.items()}
            tensors[f"{ends[base]}.{part}"] = tensor
            continue
        _, _, layer, own = name.split(".", 3)
        if own == "self_attn.sinks":
            tensors[f"blk.{layer}.attn_sinks.weight"] = tensor
        elif not own.startswith("mlp.experts."):
            base, _, part = own.rpartition(".")
            tensors[f"blk.{layer}.{names[base]}.{part}"] = tensor
        else:
            part = "bias" if own.endswith("_bias") else "weight"
            rows = tensor if part == "bias" else tensor.transpose(1, 2)
            kinds = {"down": rows}
            if "gate_up" in own:
                kinds = {"gate": rows[:, ::2], "up": rows[:, 1::2]}
            for kind, values in kinds.items():
                tensors[f"blk.{layer}.ffn_{kind}_exps.{part}"] = values
    return {name: encode(tensor.contiguous().numpy(), "F32") for name, tensor in tensors.items()}


def test_experts_with_biases(tmp_path: Path) -> None:
    own = {**FAMILIES["gpt-oss"], "rope_scaling": {**YARN, "truncate": False}}
    raw = {name: value for name, value in own.items() if name != "rope_parameters"}
    folder = write_folder(tmp_path / "folder", raw)
    file = tmp_path / "model.gguf"
    write_gguf(file, read_metadata(folder), gpt_oss_tensors(folder))
    distance = (naive_logits(load(file), IDS) - naive_logits(load(folder), IDS)).abs().max()
    assert float(distance) < 1e-5


def test_what_is_tried_is_what_is_listed() -> None:
    tried = {raw["model_type"] for raw in OWN.values()} | {"glm4", "gpt_oss"}
    tried |= {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"}  # in test_delta_models
    tried |= {"granitemoehybrid"}  # in test_mamba_models
    tried |= {"deepseek_v2", "deepseek_v3", "kimi_k2"}  # in test_latent_models
    assert tried == GGUF_TYPES
    rows = {row.model_type: row for row in list_families()}
    assert all(("GGUF" in row.formats) == (name in tried) for name, row in rows.items())


def written(folder: Path, **changes: Value) -> Path:
    write_folder(folder, tiny_config("llama"))
    return convert(folder, folder / "model.gguf", "F32", **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "mamba"}, "general.architecture is 'mamba'"),
        ({"llama.block_count": "2"}, "llama.block_count must be a whole number"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"llama.attention.value_length": 4}, "value_length is another"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'"),
        ({"llama.some.switch": True}, "llama.some.switch is not supported"),
        ({"llama.block_count": 3}, "lacks model.layers.2"),
        ({"llama.block_count": 1}, "does not have: model.layers.1"),
        ({"llama.feed_forward_length": 57}, "has shape"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Value], said: str, tmp_path: Path) -> None:
    file = written(tmp_path, **changes)
    with pytest.raises(ModelLoadError) as failure:
        load(file)
    assert said in failure.value.message and failure.value.hint


def test_a_tensor_without_a_use_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_config("llama"))
    tensors = dict(read_tensors(folder, "F32"))
    tensors["blk.0.attn_rot_embd.weight"] = encode(np.ones(8, np.float32), "F32")
    file = write_gguf(tmp_path / "model.gguf", read_metadata(folder), tensors)
    with pytest.raises(ModelLoadError, match=r"does not have: blk\.0\.attn_rot_embd\.weight"):
        load(file)


def test_a_format_that_is_not_decoded_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_config("llama", hidden_size=256))
    tensors = dict(read_tensors(folder, "F32"))
    name = "blk.0.attn_v.weight"
    rows = tensors[name].shape[0]
    tensors[name] = tensors[name]._replace(format="IQ2_XXS", data=bytes(rows * 66))
    file = write_gguf(tmp_path / "model.gguf", read_metadata(folder), tensors)
    with pytest.raises(ModelLoadError, match="is stored as IQ2_XXS, which is not supported"):
        load(file)


def random_q4_0(folder: Path) -> dict[str, WrittenTensor]:
    """The tensors of a folder, its matrices within layers random blocks of Q4_0."""
    generator = np.random.Generator(np.random.PCG64(3))
    tensors = dict(read_tensors(folder, "BF16"))
    for name, tensor in tensors.items():
        if name.startswith("blk.") and len(tensor.shape) > 1:
            rows, inputs = tensor.shape
            blocks = generator.integers(0, 256, (rows * inputs // 32, 18), dtype=np.uint8)
            scales = generator.uniform(0.001, 0.01, len(blocks)).astype("<f2")
            blocks[:, :2] = scales[:, None].view(np.uint8)
            tensors[name] = WrittenTensor("Q4_0", tensor.shape, blocks.tobytes())
    return tensors


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
def test_four_bits_stay_four_bits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The kernels' weights are the file's, to the bit; and a third of the memory."""
    raw = tiny_config("llama", hidden_size=64, intermediate_size=96, vocab_size=VOCAB)
    folder = write_folder(tmp_path / "folder", raw, torch.bfloat16)
    metadata, tensors = read_metadata(folder), random_q4_0(folder)
    model = load(write_gguf(tmp_path / "model.gguf", metadata, tensors))
    assert not caplog.text  # nothing is decoded
    qkv, output = model._layers[1][0].linears
    stored = {
        own: dequantise("Q4_0", np.frombuffer(tensors[f"blk.1.{own}.weight"].data, np.uint8))
        for own in ("attn_q", "attn_k", "attn_v", "attn_output")
    }
    rows = [torch.from_numpy(values).view(-1, 64) for values in stored.values()]
    for index, heads in ((0, 4), (1, 2)):
        rows[index] = rows[index].view(heads, -1, 2, 64).transpose(1, 2).reshape(-1, 64)
    assert isinstance(qkv, PackedLinear) and isinstance(output, PackedLinear)
    assert torch.equal(unpack(qkv.packed), torch.cat(rows[:3]))
    assert torch.equal(unpack(output.packed), rows[3])
    exact = load(tmp_path / "model.gguf", "float32")
    distance = (naive_logits(model, IDS) - naive_logits(exact, IDS)).abs().max()
    assert 0 < float(distance) < 0.1 * float(naive_logits(exact, IDS).std())


# Bytes of a block that hold float16 factors.
FACTORS = {"Q4_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def random_blocks(name: str, shape: tuple[int, ...]) -> WrittenTensor:
    """A matrix of random codes, with small factors."""
    generator = np.random.Generator(np.random.PCG64(sum(shape)))
    elements, nbytes = SIZES[name]
    blocks = generator.integers(0, 256, (shape[0] * shape[1] // elements, nbytes), dtype=np.uint8)
    for at in FACTORS[name]:
        factors = generator.uniform(1e-5, 1e-4, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = factors[:, None].view(np.uint8)
    return WrittenTensor(name, shape, blocks.tobytes())


@pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
@pytest.mark.parametrize("name", [*FACTORS, "Q4_K_M"])
def test_every_number_of_a_file_is_kept(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To the bit, in layers, embedding and head; also where one layer has two formats."""
    raw = tiny_config("llama", hidden_size=256, intermediate_size=256, tie_word_embeddings=False)
    folder = write_folder(tmp_path / "folder", raw, torch.bfloat16)
    tensors = dict(read_tensors(folder, "BF16"))
    for own, tensor in tensors.items():
        if len(tensor.shape) > 1:
            better = "Q6_K" if own.endswith(("attn_v.weight", "output.weight")) else "Q4_K"
            tensors[own] = random_blocks(better if name == "Q4_K_M" else name, tensor.shape)
    file = write_gguf(tmp_path / "model.gguf", read_metadata(folder), tensors)
    model = load(file)
    assert not caplog.text  # nothing is decoded
    exact = load(file, "float32")
    tables = [(own._embedding, own._head) for own in (model, exact)]
    for kept, decoded in zip([*tables[0], *model._linears()], [*tables[1], *exact._linears()]):
        assert isinstance(kept, PackedLinear | JoinedLinear) and isinstance(decoded, TorchLinear)
        rows = kept.weight_rows(torch.arange(len(decoded.weight)))
        assert torch.equal(rows, decoded.weight.bfloat16())
    assert (name == "Q4_K_M") == isinstance(model._linears()[0], JoinedLinear)
    assert model.compiled_pass is not None
    ours, expected = naive_logits(model, IDS), naive_logits(exact, IDS)
    assert 0 < float((ours - expected).std()) < 0.1 * float(expected.std())


def test_a_draft_model_has_the_tokens_of_its_target(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", tiny_config("llama"))
    target = convert(folder, tmp_path / "target.gguf", "BF16")
    tokens = Metadata(dict(read_metadata(folder)), target).texts("tokenizer.ggml.tokens")
    swapped: list[str] = [*tokens[:300], tokens[301], tokens[300], *tokens[302:]]
    changes: dict[str, Value] = {"tokenizer.ggml.tokens": swapped}
    other = convert(folder, tmp_path / "other.gguf", "BF16", **changes)
    options: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "kv_cache_memory": "1MiB"}
    for draft in (target, folder):
        own = {"method": "draft", "model": str(draft), "num_speculative_tokens": 2}
        with LLM(str(target), speculative_config=own, max_num_seqs=2, **options) as llm:
            assert llm.generate("the dog", SamplingParams(temperature=0, max_tokens=4))
    own = {"method": "draft", "model": str(other), "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match=f"2 tokens another meaning: 300 is {tokens[301]!r}"):
        LLM(str(target), speculative_config=own, **options)
