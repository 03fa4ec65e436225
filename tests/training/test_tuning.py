"""Protects: pilot is taught the form that template and parser have, and measured on other words."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from tests.spec_decode.engines import make_engine
from training.bank import load_bank
from training.conversations import ConversationBuilder
from training.data import Encoder, collate
from training.evaluate import Judge
from training.export import WEIGHTS_DIR, write_weights
from training.model import SIZES, make_model
from training.tokenizer import load_tokenizer
from training.tuning import heads as heads_module
from training.tuning import tune
from training.tuning.blend import blend
from training.tuning.evaluate import ToolCase, is_right, tool_cases
from training.tuning.losses import MedusaHeads, tuning_losses
from training.tuning.phrasings import DEVICES, MODELS, PHRASINGS
from training.tuning.tool_calls import ToolConversations, call_text, draw_call
from twostroke.cli.terminal_chat.demo_tools import DEMO_TOOLS, demo_tool_schemas, run_tool
from twostroke.model_spec.public_models import find_model
from twostroke.runtime.speculation.medusa_weights import load_medusa_heads
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.tokenizer import Tokenizer

PILOT = WEIGHTS_DIR / "pilot"


def test_what_is_taught_is_what_the_template_renders() -> None:
    """System prompts, calls as messages and results, in the tokens of `data.Encoder`."""
    tools = {tool["function"]["name"]: tool for tool in demo_tool_schemas()}
    template = ChatTemplate.from_tokenizer(Tokenizer.from_folder(PILOT))
    encoder, tokenizer = Encoder(load_tokenizer(PILOT)), load_tokenizer(PILOT)
    builder = ToolConversations(ConversationBuilder(load_bank()))
    rng = random.Random(3)
    for _ in range(60):
        conversation = builder.build(rng, 1.0)
        system, *turns = conversation.messages
        before, _, names = system.content.rpartition("tools: ")
        messages = [{"role": "system", "content": before.strip()}] if before else []
        for turn in turns:
            message: dict[str, object] = {"role": turn.role, "content": turn.content}
            for name in DEMO_TOOLS if turn.role == "assistant" else ():
                if turn.content.startswith(f'<tool_call>\n{{"name": "{name}"'):
                    arguments = turn.content.partition('"arguments": ')[2].partition("}")[0] + "}"
                    call = {"function": {"name": name, "arguments": arguments}}
                    message = {"role": "assistant", "content": "", "tool_calls": [call]}
            messages.append(message)  # type: ignore[arg-type]
        declared = [tools[name.partition("(")[0]] for name in names.split("), ")]
        text = template.render(messages, tools=declared, add_generation_prompt=False)
        whole = conversation.messages and not conversation.stub
        ids = encoder.example(conversation, rng).ids
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == (expected if whole else expected[: len(ids)])


def test_a_blend_lies_between_two_checkpoints(tmp_path: Path) -> None:
    model = make_model("pilot", seed=1)
    other = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    write_weights(model, tmp_path / "tuned", {"size": "pilot"}, PILOT)
    blend(PILOT, tmp_path / "tuned", tmp_path / "half", 0.5)
    base, half = (load_file(folder / "model.safetensors") for folder in (PILOT, tmp_path / "half"))
    for name, tensor in half.items():
        between = (base[name].float() + other[name].bfloat16().float()) / 2
        torch.testing.assert_close(tensor.float(), between, atol=1e-2, rtol=1e-2)
    assert tune.read_record(tmp_path / "half") == {"size": "pilot", "blended": 0.5}
    with pytest.raises(SystemExit, match="not between 0 and 1"):
        blend(PILOT, PILOT, tmp_path / "none", 1.5)


def test_wordings_to_measure_with_are_never_trained_on() -> None:
    rng = random.Random(5)
    trained, measured = (
        {draw_call(rng, name, held_out=held_out, noise=False).question for _ in range(300)}
        for held_out in (False, True)
        for name in ["fits_on"]
    )
    names = sorted(
        {*MODELS, *DEVICES, *(o for v in (MODELS, DEVICES) for f in v.values() for o in f)}
    )

    def frame(question: str) -> str:
        for name in sorted(names, key=len, reverse=True):
            question = question.replace(name, "*")
        return question

    assert not {*map(frame, trained)} & {*map(frame, measured)}
    assert len({*map(frame, measured)}) >= 4


def test_every_call_that_is_taught_can_be_carried_out() -> None:
    assert all(find_model(name) for name in MODELS)
    assert all(load_hardware(name) for name in DEVICES)
    rng = random.Random(1)
    for name in PHRASINGS:
        for _ in range(40):
            text = draw_call(rng, name).text
            arguments = text.partition('"arguments": ')[2].removesuffix("}\n</tool_call>")
            assert not run_tool(name, arguments).startswith("error")


def test_the_judge_wants_the_very_call() -> None:
    judge = Judge(load_bank())
    case = ToolCase("calls", [], (), ("fits_on", {"model": "llama-2-7b", "gpu": "h100"}))
    right = call_text(*case.call) if case.call else ""
    assert is_right(case, right, judge)
    assert is_right(case, right.replace(": ", ":"), judge)
    for wrong in (
        right.replace("h100", "h200"),
        right + right,
        "Sure. " + right,
        right.replace("fits_on", "decode_speed"),
        right[:-20],
        "",
    ):
        assert not is_right(case, wrong, judge)
    suites = {case.suite for case in tool_cases(load_bank())}
    assert {"no call", "missing", "calls, fits_on", "results, kv_cache_size"} <= suites


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    tiny = {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48}
    tiny |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    monkeypatch.setitem(SIZES, "tiny", tiny)
    return "tiny"


def test_losses_are_those_of_plain_formulas(tiny: str) -> None:
    """Of the exit: a model of its first layers alone. Of head `i`: the token `i + 2` on."""
    torch.manual_seed(2)
    model = make_model(tiny, seed=1)
    encoder = Encoder(load_tokenizer(PILOT))
    builder, rng = ToolConversations(ConversationBuilder(load_bank())), random.Random(2)
    example = encoder.example(builder.build(rng, 1.0), rng)
    batch = collate([replace(example, positions=list(range(len(example.ids))))])
    losses = tuning_losses(model, batch, 1, model)
    n = len(example.ids)
    chosen = [t for t in range(n - 1) if example.has_loss[t + 1]]
    ids = torch.tensor([example.ids])
    with torch.no_grad():
        logits = model(ids).logits[0]
        text = F.cross_entropy(logits[chosen], ids[0, 1:][chosen])
        shorter = make_model(tiny, seed=1)
        shorter.model.layers = shorter.model.layers[:1]
        early = F.cross_entropy(shorter(ids).logits[0][chosen], ids[0, 1:][chosen])
    assert losses.text.item() == pytest.approx(text.item(), abs=1e-3)
    assert losses.exit.item() == pytest.approx(early.item(), abs=1e-3)
    assert losses.kept.item() == pytest.approx(0, abs=1e-5)


def test_a_stopped_run_goes_on_to_the_same_weights(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SAVE_SECONDS", 0.0), ("BANK_BATCH", 256), ("TOOL_BATCH", 512)):
        monkeypatch.setattr(tune, name, value)
    base = tmp_path / "base"
    write_weights(make_model(tiny, seed=1), base, {"size": tiny}, PILOT)

    def tuner(name: str) -> tune.Tuner:
        return tune.Tuner(base, tmp_path / name, 0.004, 0, checkpoint=tmp_path / f"{name}.pt")

    whole, stopped = tuner("whole"), tuner("stopped")
    assert not whole.resume()
    torch.manual_seed(4)
    whole.run()
    torch.manual_seed(4)
    for _ in range(2):
        stopped.step()
    assert stopped.step_number == 2 < whole.step_number
    stopped.save_checkpoint()
    again = tuner("stopped")
    assert again.resume() and again.step_number == 2
    again.run()
    weights = [tmp_path / name / "model.safetensors" for name in ("whole", "stopped")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert weights[0].read_bytes() != (base / "model.safetensors").read_bytes()
    assert tune.read_record(tmp_path / "whole")["tuned"]["steps"] == whole.step_number


def test_heads_learn_from_the_states_and_tokens_of_their_positions(tiny: str) -> None:
    """At the state of token `t`, token `t + 1` was drawn, and head `i` guesses `t + 2 + i`."""
    model, encoder = make_model(tiny, seed=1).eval(), Encoder(load_tokenizer(PILOT))
    builder, rng = ToolConversations(ConversationBuilder(load_bank())), random.Random(2)
    conversations = [builder.build(rng, 1.0) for _ in range(3)]
    states = heads_module.read_states(model, encoder, conversations)
    examples = [encoder.example(conversation, rng) for conversation in conversations]
    row = 0
    for example in sorted(examples, key=lambda example: len(example.ids)):
        ids, n = example.ids, len(example.ids)
        with torch.no_grad():
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
        for t in [t for t in range(n - 1) if example.has_loss[t + 1]]:
            assert (states.hidden[row].float() - hidden[t]).abs().max() < 0.1
            for head in range(heads_module.NUM_HEADS):
                there = t + 2 + head < n and example.has_loss[t + 2 + head]
                wanted = ids[t + 2 + head] if there else heads_module.NOTHING
                assert states.targets[row, head] == wanted
            row += 1
    assert row == len(states.hidden)
    heads = MedusaHeads(heads_module.NUM_HEADS, 2, 32, 0.02)
    floats = states._replace(hidden=states.hidden.float())
    loss, right = heads_module.heads_loss(model, heads, floats)
    assert loss.item() > 0
    assert len(right) == heads_module.NUM_HEADS


def test_heads_are_read_back_as_they_were_trained(tmp_path: Path) -> None:
    torch.manual_seed(1)
    heads = MedusaHeads(heads_module.NUM_HEADS, heads_module.NUM_LAYERS, 32)
    for parameter in heads.parameters():
        parameter.data.normal_(std=0.3).copy_(parameter.data.bfloat16())
    heads_module.write(heads, {"model": "tiny"}, tmp_path)
    executor = make_engine().executor
    assert isinstance(executor, TorchExecutor)
    loaded = load_medusa_heads("tiny", tmp_path, executor.model)
    states = torch.randn(3, 32)
    with torch.no_grad():
        expected = [executor.model.logits(heads(states, i)).argmax(-1).tolist() for i in range(4)]
    assert loaded.guess(states, 4) == [list(row) for row in zip(*expected, strict=True)]
