"""Measures how pilot calls tools, and how often what drafts for it is right.

    python -m training.tuning.evaluate [--model DIR]

Calls: questions in wordings that were held out, with the tools of `chat --tools demo` declared. An
answer is right if and only if it ends by itself and is one call with the right name and arguments.
Results: the call and its result given, whether the answer is the expected one, word by word. No
call: questions about the bank with tools declared, in held-out phrasings; right by the judge of
`training/evaluate.py`. Missing: the tool that a question wants is not declared. Decoding is greedy,
by twostroke's own engine, chat template and parser.

Drafts: the share of drafts accepted, if those before them were, and tokens a pass, on held-out
questions.
"""

import argparse
import datetime
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from training.bank import BANK_DIR, Bank, load_bank, words_of
from training.evaluate import Judge, commit, machine, weights_digest
from training.export import WEIGHTS_DIR
from training.suites import held_out_cases
from training.tuning.phrasings import NO_TOOL
from training.tuning.tool_calls import answer_from, call_text, draw_call, draw_result
from twostroke import LLM, SamplingParams
from twostroke.cli.terminal_chat.demo_tools import DEMO_TOOLS, demo_tool_schemas
from twostroke.core.request import FinishReason
from twostroke.text.answer_parsing.parser import AnswerParser
from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate
from twostroke.tools.hermes import HERMES

RESULTS_DIR = Path(__file__).parent / "results"
PER_TOOL, PER_RESULT, NO_CALLS, MISSING = 100, 30, 150, 60
DRAFTED_QUESTIONS, DEPTH = 96, 4
KEPT_FAILURES = 40
MAX_TOKENS = 200
SETTINGS = {"device": "cpu", "max_model_len": 2048, "kv_cache_memory": 2**28}


class ToolCase(NamedTuple):
    """A conversation with tools, and what is right.

    Attributes:
        tools: Names of those that are declared.
        call: The right call, or none.
        text: The right text, or none.
        item_id: Of the bank's item whose answer is right.
    """

    suite: str
    messages: list[dict[str, Any]]
    tools: Sequence[str]
    call: tuple[str, dict[str, Any]] | None = None
    text: str = ""
    item_id: str = ""


def tool_cases(bank: Bank) -> Iterator[ToolCase]:
    """All cases, seeded."""
    rng, names = random.Random(20260201), tuple(DEMO_TOOLS)
    for name in names:
        for _ in range(PER_TOOL):
            call = draw_call(rng, name, held_out=True)
            asked = [{"role": "user", "content": call.question}]
            yield ToolCase(f"calls, {name}", asked, names, (name, dict(call.arguments)))
        for _ in range(PER_RESULT):
            call = draw_call(rng, name, held_out=True)
            function = {"name": name, "arguments": json.dumps(call.arguments)}
            made = [{"id": "1", "type": "function", "function": function}]
            result = draw_result(rng, name)
            turns: list[dict[str, Any]] = [
                {"role": "user", "content": call.question},
                {"role": "assistant", "content": None, "tool_calls": made},
                {"role": "tool", "tool_call_id": "1", "content": result},
            ]
            yield ToolCase(f"results, {name}", turns, names, text=answer_from(name, result))
    for case in rng.sample(held_out_cases(bank), NO_CALLS):
        if case.suite.startswith("held-out"):
            asked = [{"role": m.role, "content": m.content} for m in case.messages]
            yield ToolCase("no call", asked, names, text=case.expected, item_id=case.item_id)
    for number in range(MISSING):
        wanted = names[number % len(names)]
        call = draw_call(rng, wanted, held_out=True)
        others = [name for name in names if name != wanted]
        asked = [{"role": "user", "content": call.question}]
        yield ToolCase("missing", asked, others, text=NO_TOOL)


def read_answer(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text for the user, and the calls: names and arguments."""
    parser = AnswerParser(HERMES.reader({}))
    content, calls = "", list[tuple[str, str]]()
    for part in [*parser.feed(text), *parser.finish()]:
        match part:
            case Content(more):
                content += more
            case CallStarted(_, name):
                calls.append((name, ""))
            case CallArguments(_, more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
    return content, calls


def is_right(case: ToolCase, text: str, judge: Judge) -> bool:
    """Whether an answer that ended by itself is right."""
    content, calls = read_answer(text)
    if case.call is not None:
        if len(calls) != 1 or content.strip():
            return False
        try:
            return (calls[0][0], json.loads(calls[0][1])) == case.call
        except ValueError:
            return False
    if case.item_id:
        return not calls and judge.is_near(content, case.text, case.item_id)
    return not calls and words_of(content) == words_of(case.text)


def measure_tools(model: Path, bank: Bank) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Scores by suite, and some of the failures."""
    cases, judge = list(tool_cases(bank)), Judge(bank)
    schemas = {tool["function"]["name"]: tool for tool in demo_tool_schemas()}
    with LLM(str(model), **SETTINGS) as llm:
        encoder = ChatEncoder(ChatTemplate.from_tokenizer(llm.tokenizer), llm.tokenizer)
        prompts = [
            encoder.encode(case.messages, tools=[schemas[name] for name in case.tools])
            for case in cases
        ]
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        results = llm.generate(prompts, params)
    scores: dict[str, Counter[str]] = {}
    failures = []
    for case, result in zip(cases, results, strict=True):
        ended = result.outputs[0].finish_reason is FinishReason.STOP
        right = ended and is_right(case, result.text, judge)
        group = case.suite.split(", ")[0]
        for name in dict.fromkeys((case.suite, f"{group}, all" if ", " in case.suite else group)):
            scores.setdefault(name, Counter()).update(cases=1, right=right, ended=ended)
        if not right:
            wanted = call_text(*case.call) if case.call else case.text
            asked = str(case.messages[0]["content"])
            failures.append(
                {"suite": case.suite, "asked": asked, "wanted": wanted, "got": result.text[:240]}
            )
    random.Random(0).shuffle(failures)
    return {name: dict(scores[name]) for name in sorted(scores)}, failures[:KEPT_FAILURES]


def measure_drafts(
    model: Path, draft: Path, heads: Path | None, bank: Bank
) -> dict[str, dict[str, float]]:
    """Acceptance and tokens a pass by method and temperature."""
    rng = random.Random(20260202)
    cases = [c for c in held_out_cases(bank) if c.suite.startswith("held-out")]
    questions = [c.messages[0].content for c in rng.sample(cases, DRAFTED_QUESTIONS)]
    methods: dict[str, dict[str, Any]] = {
        "draft": {"method": "draft", "model": str(draft)},
        "early-exit": {"method": "early-exit"},
    }
    if heads is not None:
        methods["medusa"] = {"method": "medusa", "model": str(heads)}
    measured = {}
    for method, settings in methods.items():
        for temperature in (0.0, 0.7):
            speculative = {**settings, "num_speculative_tokens": DEPTH, "adaptive": False}
            with LLM(str(model), **SETTINGS, speculative_config=speculative) as llm:
                prompts = [llm.chat_prompt([{"role": "user", "content": q}]) for q in questions]
                params = SamplingParams(temperature=temperature, seed=1, max_tokens=MAX_TOKENS)
                results = llm.generate(prompts, params)
                counts = _counts(llm)
            num_tokens = sum(len(result.outputs[0].token_ids) for result in results)
            tried, accepted = counts["tried"], counts["accepted"]
            measured[f"{method}, temperature {temperature}"] = {
                "accepted": round(accepted / max(tried, 1), 4),
                "first_accepted": round(counts["first"] / max(counts["rounds"], 1), 4),
                "tokens_a_pass": round(num_tokens / (num_tokens - accepted), 3),
            }
    return measured


def _counts(llm: LLM) -> dict[str, float]:
    """Rounds of drafts; drafts that were reached; those accepted; first ones accepted."""
    labels = {"model_name": llm.engine.config.model.model, "engine": "0"}
    registry = llm.engine.metrics.registry

    def sample(name: str, **more: str) -> float:
        return registry.get_sample_value(f"vllm:spec_decode_num_{name}_total", labels | more) or 0.0

    rounds = sample("drafts")
    by_position = [
        sample("accepted_tokens_per_pos", position=str(position)) for position in range(DEPTH)
    ]
    return {
        "rounds": rounds,
        "tried": rounds + sum(by_position[:-1]),
        "accepted": sum(by_position),
        "first": by_position[0],
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The summary."""
    lines = [
        "# pilot: tools and drafts",
        "",
        f"Measured {report['date']} on {report['machine']['cores']} cores of"
        f" {report['machine']['cpu']}, torch {report['torch']},",
        f"commit {report['commit'] or 'none'}.",
        "",
        f"Weights: model.safetensors with SHA-256\n`{report['weights_sha256']}`.",
        "",
        "What is right: `training/tuning/evaluate.py`. Wordings are held out, decoding is greedy.",
        "",
        "| suite | cases | right | ended by itself |",
        "|---|---:|---:|---:|",
    ]
    for suite, score in report["tools"].items():
        right, ended = score["right"] / score["cases"], score["ended"] / score["cases"]
        lines.append(f"| {suite} | {score['cases']} | {right:.1%} | {ended:.1%} |")
    lines += ["", "| drafts | accepted | first accepted | tokens a pass |", "|---|---:|---:|---:|"]
    for method, score in report["drafts"].items():
        values = f"{score['accepted']:.2f} | {score['first_accepted']:.2f}"
        lines.append(f"| {method} | {values} | {score['tokens_a_pass']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes results/pilot.json and .md, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=WEIGHTS_DIR / "pilot")
    parser.add_argument("--draft", type=Path, default=WEIGHTS_DIR / "pilot-draft")
    parser.add_argument("--heads", type=Path, default=WEIGHTS_DIR / "pilot-medusa")
    parser.add_argument("--results", type=Path, default=RESULTS_DIR)
    args = parser.parse_args()
    bank = load_bank(BANK_DIR)
    tools, failures = measure_tools(args.model, bank)
    heads = args.heads if args.heads.is_dir() else None
    report = {
        "weights_sha256": weights_digest(args.model),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "torch": torch.__version__,
        "machine": machine(),
        "tools": tools,
        "drafts": measure_drafts(args.model, args.draft, heads, bank),
        "failures": failures,
    }
    args.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    (args.results / "pilot.json").write_text(text, encoding="utf-8")
    summary = as_markdown(report)
    (args.results / "pilot.md").write_text(summary, encoding="utf-8")
    print(summary)


if __name__ == "__main__":
    main()
