"""Measures an exported model on phrasings it never saw.

    python -m training.evaluate [--model DIR]

Judge: an answer is right if and only if (1) the model ended it itself, (2) its token-level F1 with
the reference (words as a multiset, without case and punctuation) is at least 0.8, and (3) no other
item's reference of the same form has a higher F1 with it. Where a system prompt asks for a form,
the form has to be exact as well, and 'obeyed' reports the form alone. Questions are held-out
phrasings (those called wide were written to use words that the others do not), and the wordings of
instructions, follow-ups and document frames, the names and the words to copy are held out too.
Decoding is greedy.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from training.bank import BANK_DIR, Bank, first_sentence, load_bank, words_of
from training.export import WEIGHTS_DIR
from training.model import EOS_ID, greedy
from training.prepare import BANK_COPY
from training.suites import Case, all_cases, render
from training.tokenizer import load_tokenizer

RESULTS_DIR = Path(__file__).parent / "results"
F1_NEEDED = 0.8
MAX_NEW_TOKENS = 200
KEPT_FAILURES = 80


def f1(left: Counter[str], right: Counter[str]) -> float:
    """Harmonic mean of precision and recall over two multisets of words."""
    total = left.total() + right.total()
    return 2 * (left & right).total() / total if total else 0.0


class Judge:
    """Holds the word counts of every item's references, in each form an answer may take."""

    def __init__(self, bank: Bank) -> None:
        forms: dict[str, Callable[[Any], str | None]] = {
            "answer": lambda item: item.answer,
            "short": lambda item: item.short,
            "more": lambda item: item.more,
        }
        self._references = {
            form: [(item.id, Counter(words_of(text))) for item in bank.items if (text := get(item))]
            for form, get in forms.items()
        }

    def is_right(self, text: str, case: Case) -> bool:
        """Conditions (2) and (3) of the module's docstring."""
        return self.is_near(text, case.expected, case.item_id, case.form)

    def is_near(self, text: str, expected: str, item_id: str, form: str = "answer") -> bool:
        """The same for a text, the answer expected, its item and the form it has to have."""
        got = Counter(words_of(text))
        score = f1(got, Counter(words_of(expected)))
        if score < F1_NEEDED:
            return False
        references = self._references.get(form, [])
        return all(f1(got, words) <= score for ident, words in references if ident != item_id)


def obeys(text: str, case: Case) -> tuple[bool, str]:
    """Whether an answer has the form asked for, and the answer without what the form added."""
    if case.rule == "begin":
        return text.startswith(case.word), text.removeprefix(case.word).lstrip(" .")
    if case.rule == "end":
        return (
            text.rstrip(".").endswith(case.word),
            text.rstrip(".").removesuffix(case.word).rstrip(),
        )
    if case.rule == "say":
        return text.strip() == case.word, text
    if case.rule == "one":
        return first_sentence(text) == text, text
    if case.rule == "name":
        return case.word in text, text
    return True, text


@dataclass
class Score:
    """Counts over one suite."""

    cases: int = 0
    right: int = 0
    obeyed: int = 0
    ended: int = 0
    has_rule: bool = False

    def as_json(self) -> dict[str, float | int | None]:
        """Counts and rates; `obeyed` is null where no form was asked for."""
        n = max(1, self.cases)
        return {
            "cases": self.cases,
            "right": self.right,
            "accuracy": round(self.right / n, 4),
            "obeyed": round(self.obeyed / n, 4) if self.has_rule else None,
            "ended": round(self.ended / n, 4),
        }


def measure(
    model: LlamaForCausalLM, directory: Path, bank: Bank, cases: list[Case]
) -> tuple[dict[str, Score], list[dict[str, str]]]:
    """Answers every case and judges it; returns scores by suite, and some of the failures."""
    tokenizer = load_tokenizer(directory)
    judge = Judge(bank)
    prompts = [tokenizer.encode(render(case), add_special_tokens=False).ids for case in cases]
    scores: dict[str, Score] = {}
    failures: list[dict[str, str]] = []
    for case, tokens in zip(cases, greedy(model, prompts, MAX_NEW_TOKENS), strict=True):
        ended = bool(tokens) and tokens[-1] == EOS_ID
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        obeyed, plain = obeys(text, case)
        right = ended and obeyed and judge.is_right(plain, case)
        group = case.suite.split(", ")[0]
        names = (case.suite, f"{group}, all") if group.endswith("phrasings") else (case.suite,)
        for name in names:
            score = scores.setdefault(name, Score())
            score.cases += 1
            score.right += right
            score.obeyed += obeyed
            score.ended += ended
            score.has_rule |= bool(case.rule)
        if not right:
            question = case.messages[-1].content[-160:]
            failures.append(
                {"suite": case.suite, "item": case.item_id, "question": question, "got": text[:240]}
            )
    random.Random(0).shuffle(failures)
    return scores, failures[:KEPT_FAILURES]


def machine() -> dict[str, object]:
    model = platform.processor() or "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next(
            (
                line.split(":")[1].strip()
                for line in info.read_text().splitlines()
                if line.startswith("model name")
            ),
            model,
        )
    return {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def weights_digest(directory: Path) -> str:
    """SHA-256 of a model's weights, in hexadecimal: figures are of that file."""
    with (directory / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_markdown(report: dict[str, Any]) -> str:
    """The summary table."""
    training = report["training"]
    lines = [
        f"# {report['model']}",
        "",
        (
            f"Measured {report['date']} on {report['machine']['cores']} cores of"
            f" {report['machine']['cpu']}, torch {report['torch']}, {report['dtype']},\ncommit"
            f" {report['commit'] or 'none'}.\n{report['items']} questions in"
            f" {report['training_phrasings']} training phrasings, {report['held_out_phrasings']}"
            f" held out.\nTrained {training.get('minutes')} min, final loss"
            f" {training.get('final_loss')}."
        ),
        "",
        f"Weights: model.safetensors with SHA-256\n`{report['weights_sha256']}`.",
        "",
        textwrap.fill(report["judge"], 99, break_on_hyphens=False),
        "",
        "| suite | cases | right | obeyed | ended by itself |",
        "|---|---:|---:|---:|---:|",
    ]
    for suite, score in report["suites"].items():
        obeyed = "" if score["obeyed"] is None else f"{score['obeyed']:.1%}"
        right, ended = f"{score['accuracy']:.1%}", f"{score['ended']:.1%}"
        lines.append(f"| {suite} | {score['cases']} | {right} | {obeyed} | {ended} |")
    return "\n".join(lines) + "\n"


def build_report(args: argparse.Namespace, bank: Bank) -> dict[str, Any]:
    """Runs all suites and gathers the numbers with what produced them."""
    directory: Path = args.model
    # Before they are measured: a later export would go unnoticed.
    digest = weights_digest(directory)
    disable_progress_bar()
    model = LlamaForCausalLM.from_pretrained(directory, dtype=getattr(torch, args.dtype))
    record_path = directory / "training.json"
    record: dict[str, Any] = (
        json.loads(record_path.read_text(encoding="utf-8")) if record_path.exists() else {}
    )
    if record.get("bank_digest") != bank.digest:
        print(
            "warning: the model was trained on another version of the bank; the held-out split may"
            " differ",
            file=sys.stderr,
        )
    begun = time.perf_counter()
    scores, failures = measure(model, directory, bank, all_cases(bank, args.limit))
    return {
        "model": directory.name,
        "weights_sha256": digest,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "torch": torch.__version__,
        "dtype": args.dtype,
        "machine": machine(),
        "seconds": round(time.perf_counter() - begun, 1),
        "items": len(bank.items),
        "training_phrasings": sum(len(i.questions) for i in bank.items),
        "held_out_phrasings": sum(len(i.held_out) + len(i.held_out_wide) for i in bank.items),
        "same_bank_as_training": record.get("bank_digest") == bank.digest,
        "limit": args.limit,
        "training": record,
        "judge": " ".join((__doc__ or "").split("\n\n")[1].split()),
        "suites": {name: scores[name].as_json() for name in sorted(scores)},
        "failures": failures,
    }


def main() -> None:
    """Writes training/results/<model>.json and .md, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=WEIGHTS_DIR / "pilot", help="an exported model's directory"
    )
    parser.add_argument("--limit", type=int, default=None, help="at most this many cases per suite")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--bank", type=Path, default=BANK_COPY if BANK_COPY.exists() else BANK_DIR)
    parser.add_argument("--results", type=Path, default=RESULTS_DIR)
    args = parser.parse_args()
    report = build_report(args, load_bank(args.bank))
    args.results.mkdir(parents=True, exist_ok=True)
    target: Path = args.results / f"{report['model']}.json"
    target.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    summary = as_markdown(report)
    target.with_suffix(".md").write_text(summary, encoding="utf-8")
    print(summary)


if __name__ == "__main__":
    main()
