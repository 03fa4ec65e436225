"""Protects: other software reads the embedded models, they are small, figures are theirs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from training.bank import load_bank
from twostroke.cli.terminal_chat.demo_tools import demo_tool_schemas
from twostroke.core.config import EngineConfig
from twostroke.model_spec.model_files import resolve_model
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import naive_logits
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.tokenizer import Tokenizer
from twostroke.tools.hermes import HERMES
from twostroke.tools.registry import family_of_template

MODELS = ("pilot", "pilot-draft")
TRAINING = Path(__file__).parents[2] / "training"
RESULTS, TUNING_RESULTS = TRAINING / "results", TRAINING / "tuning" / "results"
MESSAGES = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is prefill?"},
    {"role": "assistant", "content": "Reading the prompt."},
    {"role": "user", "content": "naïve 🙂 100 %"},
]


@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_the_same_folder_and_gives_the_same_logits(name: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model(name)
    tokenizer, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    text = ChatTemplate.from_tokenizer(tokenizer).render(MESSAGES, add_generation_prompt=True)
    assert text == theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokens == theirs(text, add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    options = {
        "model": name,
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": 512,
        "kv_cache_memory": 2**23,
    }
    executor = load_torch_executor(EngineConfig.from_flat(options))
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    assert (naive_logits(executor.model, tokens) - expected).abs().max() < 1e-4
    assert executor.info.eos_token_ids == {tokenizer.eos_token_id}


def test_tools_are_declared_as_transformers_would() -> None:
    """The template takes ``tools`` as transformers passes them, and calls and results as turns."""
    from transformers import AutoTokenizer

    folder = resolve_model("pilot")
    tokenizer, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    arguments = {"model": "llama-3.1-8b", "gpu": "h100"}
    call = {"type": "function", "function": {"name": "fits_on", "arguments": arguments}}
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "yes, 16 of 86 GB"},
    ]
    template = ChatTemplate.from_tokenizer(tokenizer)
    for messages in ([MESSAGES[1], *turns], [*MESSAGES, *turns]):
        text = template.render(messages, tools=demo_tool_schemas(), add_generation_prompt=True)
        assert text == theirs.apply_chat_template(
            messages, tools=demo_tool_schemas(), add_generation_prompt=True, tokenize=False
        )
        assert text.count("tools: kv_cache_size(model, tokens), decode_speed(model, gpu)") == 1
        assert text.count(f"{json.dumps(arguments)}}}\n</tool_call>") == 2
        assert text.endswith(
            "<|im_start|>tool\nyes, 16 of 86 GB<|im_end|>\n<|im_start|>assistant\n"
        )
        assert text.count("<|im_start|>system") == 1
    bare = [{"type": "function", "function": {"name": "now"}}]
    assert "tools: now()<|im_end|>" in template.render(MESSAGES[1:2], tools=bare)
    assert family_of_template(tokenizer.chat_templates["default"]) is HERMES


def test_the_heads_are_of_these_weights_and_small() -> None:
    folder = resolve_model("pilot-medusa")
    record = json.loads((folder / "training.json").read_text())
    assert record["model_sha256"] == digest("pilot"), "run python -m training.tuning.heads"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3e6


def test_what_drafts_for_pilot_was_measured_with_these_weights() -> None:
    report = json.loads((TUNING_RESULTS / "pilot.json").read_text())
    assert report["weights_sha256"] == digest("pilot"), "run python -m training.tuning.evaluate"
    assert digest("pilot") in (TUNING_RESULTS / "pilot.md").read_text()
    for method in ("draft", "early-exit", "medusa"):
        assert report["drafts"][f"{method}, temperature 0.0"]["accepted"] > 0.5


def digest(name: str) -> str:
    return hashlib.sha256((resolve_model(name) / "model.safetensors").read_bytes()).hexdigest()


def test_both_share_a_tokenizer_and_together_are_small() -> None:
    """Speculation needs equal tokens; the package should stay quick to install."""
    folders = [resolve_model(name) for name in MODELS]
    first, second = ((folder / "tokenizer.json").read_bytes() for folder in folders)
    assert first == second
    size = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    assert size <= 25e6


def test_every_record_is_of_the_weights_that_are_shipped() -> None:
    """Two exports of one training share a training.json; the weights' digests differ."""
    recorded = {path.stem for path in RESULTS.glob("*.json")}
    assert "pilot" in recorded
    for name in recorded:
        shipped = digest(name)
        report = json.loads((RESULTS / f"{name}.json").read_text())
        assert report.get("weights_sha256") == shipped, (
            f"run python -m training.evaluate for {name}"
        )
        assert shipped in (RESULTS / f"{name}.md").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_of_the_bank_that_is_here(name: str) -> None:
    """Else the README would describe answers that the model does not know."""
    record = json.loads((resolve_model(name) / "training.json").read_text())
    assert record["bank_digest"] == load_bank().digest, "make train"


def test_the_recorded_quality_is_of_these_weights() -> None:
    """What training/results holds was measured of what is shipped, on all that is held out."""
    report = json.loads((RESULTS / "pilot.json").read_text())
    record = json.loads((resolve_model("pilot") / "training.json").read_text())
    assert report["training"] == record
    assert report["same_bank_as_training"]
    assert report["limit"] is None
    suite = report["suites"]["held-out phrasings, all"]
    wide = report["suites"]["wide phrasings, all"]
    assert suite["cases"] + wide["cases"] == report["held_out_phrasings"]
    assert suite["cases"] >= 600
    assert suite["accuracy"] >= 0.85
    assert suite["ended"] >= 0.98
