"""A Dense module behind the pooling, and the length of texts that an encoder was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from tests.checkpoints import tiny_config, write_checkpoint
from tests.engine.test_embedding import load, run
from tests.models.encoders import write_encoder
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.errors import ModelLoadError
from twostroke.core.pooling import PoolingParams, unpack_vector
from twostroke.model_spec.json_files import read_object
from twostroke.model_spec.vectors.pooling_ability import read_pooling_ability
from twostroke.runtime.vectors.encoder_executor import EncoderExecutor
from twostroke.server.openai.embeddings.pooling_fields import pooling_request

PROMPT = [5, 9, 13, 2, 40]
MODULES = ("Transformer", "Pooling", "Dense", "Normalize")


def write_modules(folder: Path, kinds: tuple[str, ...], **dense: Any) -> torch.Tensor:
    """modules.json with a Dense module of 12 outputs; its weights."""
    listed = [
        {"path": f"{place}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    place = folder / f"{kinds.index('Dense')}_Dense"
    place.mkdir(exist_ok=True)
    tanh = "torch.nn.modules.activation.Tanh"
    size = json.loads((folder / "config.json").read_text())["hidden_size"]
    config = {"in_features": size, "out_features": 12, "bias": False, "activation_function": tanh}
    (place / "config.json").write_text(json.dumps({**config, **dense}))
    weight = torch.randn(12, size, generator=torch.Generator().manual_seed(1))
    tensors = {"linear.weight": weight}
    if dense.get("bias"):
        tensors["linear.bias"] = torch.ones(12)
    save_file(tensors, place / "model.safetensors")
    return weight


@pytest.mark.parametrize("bias", [False, True])
def test_the_pooled_state_goes_through_the_layer(tmp_path: Path, bias: bool) -> None:
    folder = write_checkpoint(tmp_path / "tiny", tiny_config("qwen3", head_dim=16))
    weight = write_modules(folder, MODULES, bias=bias)
    request = pooling_request("a", PROMPT, PoolingParams())
    short = pooling_request("b", PROMPT, PoolingParams(dimensions=5))
    vectors = {
        output.request_id: unpack_vector(output.vector or b"")
        for output in run(load(folder), {0: [request, short]})
        if output.vector is not None
    }
    (folder / "modules.json").unlink()
    plain = run(load(folder, convert="embed"), {0: [request]})[-1].vector
    state = torch.tensor(unpack_vector(plain or b""))  # normalised, so the layer's input is not it
    assert len(vectors["a"]) == 12 and len(vectors["b"]) == 5
    assert sum(x * x for x in vectors["a"]) == pytest.approx(1, abs=1e-5)
    whole = torch.tensor(vectors["a"])
    assert vectors["b"] == pytest.approx(F.normalize(whole[:5], dim=0).tolist(), abs=1e-5)
    # The state's length is not known from here; some length makes the layer give the vector.
    lengths = torch.linspace(0.5, 40, 8000)[:, None]
    made = F.normalize(torch.tanh(lengths * (weight @ state) + float(bias)), dim=1)
    assert (made - whole).abs().max(dim=1).values.min() < 1e-2


@pytest.mark.parametrize(
    ("kinds", "dense", "message"),
    [
        (("Transformer", "Pooling", "Normalize", "Dense"), {}, "between Pooling and Normalize"),
        (MODULES, {"activation_function": "torch.nn.Softmax"}, "'Softmax' of its Dense"),
    ],
)
def test_what_is_not_computed_is_said(
    tmp_path: Path, kinds: tuple[str, ...], dense: dict[str, Any], message: str
) -> None:
    folder = write_checkpoint(tmp_path / "tiny", tiny_config("qwen3", head_dim=16))
    write_modules(folder, kinds, **dense)
    assert (
        message
        in read_pooling_ability(
            folder, read_object(folder / "config.json"), 32, ModelOptions()
        ).reason[0]
    )


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        ({"in_features": 7}, "takes 7 elements"),
        ({"out_features": 0}, "describes no linear layer"),
        ({"out_features": 13}, "shape"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, dense: dict[str, Any], message: str
) -> None:
    folder = write_checkpoint(tmp_path / "tiny", tiny_config("qwen3", head_dim=16))
    write_modules(folder, MODULES, **dense)
    with pytest.raises(ModelLoadError, match=message):
        load(folder)


def test_an_encoder_takes_texts_as_long_as_it_was_trained_on(tmp_path: Path) -> None:
    """More only where it is asked for, up to its positions."""
    write_encoder(tmp_path, "BertModel")
    path = tmp_path / "sentence_bert_config.json"

    def max_len(**options: Any) -> int:
        fields = {"model": str(tmp_path), "device": "cpu", **options}
        return EncoderExecutor.load(EngineConfig.from_flat(fields)).info.max_model_len

    positions = max_len()
    path.write_text('{"max_seq_length": 20, "do_lower_case": false}')
    assert (max_len(), max_len(max_model_len=30)) == (20, 30)
    path.write_text('{"max_seq_length": 100000}')
    assert max_len() == positions
    path.write_text('{"max_seq_length": null}')
    assert max_len() == positions
    path.write_text('{"max_seq_length": "many"}')
    with pytest.raises(ModelLoadError, match="max_seq_length is 'many'"):
        max_len()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"prompts": {"query": "query: ", "": "x"}}', (("query", "query: "), ("", "x"))),
        ('{"prompts": {}}', ()),
        ('{"prompts": null}', ()),
        ("{}", ()),
        ('{"prompts": ["query"]}', None),
        ('{"prompts": {"query": 5}}', None),
        ('{"prompts": {"query": "\\ud800"}}', None),
        ('{"prompts": {"query": "' + "x" * 20_000 + '"}}', None),
    ],
)
def test_prompts_of_the_makers_are_known(
    tmp_path: Path, text: str, expected: tuple[tuple[str, str], ...] | None
) -> None:
    write_encoder(tmp_path, "BertModel")
    assert (
        read_pooling_ability(
            tmp_path, read_object(tmp_path / "config.json"), 8, ModelOptions(), generates=False
        ).prompts
        == ()
    )
    (tmp_path / "config_sentence_transformers.json").write_text(text)
    if expected is not None:
        ability = read_pooling_ability(
            tmp_path, read_object(tmp_path / "config.json"), 8, ModelOptions(), generates=False
        )
        assert ability.prompts == expected
        return
    with pytest.raises(ModelLoadError, match="prompts"):
        read_pooling_ability(
            tmp_path, read_object(tmp_path / "config.json"), 8, ModelOptions(), generates=False
        )
