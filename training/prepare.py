"""First step: copies and checks the bank, and trains the tokenizer on its training side.

Do not run it between the training and the export of a model, which take both from training/runs.
Run as `python -m training.prepare`.
"""

import argparse
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer

from training import prompts
from training.bank import BANK_DIR, load_bank, problems_of
from training.conversations import ConversationBuilder
from training.data import Encoder
from training.tokenizer import VOCAB_SIZE, save_tokenizer, train_tokenizer, training_text

RUNS_DIR = Path(__file__).parent / "runs"
TOKENIZER_DIR = RUNS_DIR / "tokenizer"
# What the tokenizer and the models are made from: later edits of the bank do not move the split.
BANK_COPY = RUNS_DIR / "bank"


def put_in_place(
    bank: Path, tokenizer: Tokenizer, copy: Path = BANK_COPY, tokenizer_dir: Path = TOKENIZER_DIR
) -> None:
    """Writes the tokenizer to `tokenizer_dir` and what is in the folder `bank` to `copy`.

    The copy, which train.sh takes for the sign that all is prepared, comes last and whole: stopped
    at any point, this leaves the former one and its tokenizer, or no copy.
    """
    new, old = copy.with_name(f"{copy.name}.new"), copy.with_name(f"{copy.name}.old")
    for left in (new, old):
        if left.exists():
            shutil.rmtree(left)
    shutil.copytree(bank, new)
    if copy.exists():
        copy.replace(old)
    save_tokenizer(tokenizer, tokenizer_dir)
    new.replace(copy)
    if old.exists():
        shutil.rmtree(old)


def main() -> None:
    """Writes the tokenizer to training/runs/tokenizer and a summary to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bank", type=Path, default=BANK_DIR)
    parser.add_argument(
        "--show", type=int, default=0, help="print this many training conversations"
    )
    args = parser.parse_args()
    bank = load_bank(args.bank)
    for problem in problems_of(list(bank.items)):
        print(f"warning: {problem}", file=sys.stderr)
    tokenizer = train_tokenizer(training_text(bank, prompts.instruction_texts()))
    put_in_place(args.bank, tokenizer)
    encoder = Encoder(tokenizer)
    for subject, count in Counter(item.subject for item in bank.items).items():
        print(f"{subject:14} {count:4} items")
    phrasings = sum(len(i.questions) for i in bank.items)
    held = sum(len(i.held_out) + len(i.held_out_wide) for i in bank.items)
    lengths = sorted(len(encoder.encode(i.answer)) for i in bank.items)
    print(
        f"{len(bank.items)} items, {phrasings} training phrasings, {held} held out,"
        f" {sum(i.more is not None for i in bank.items)} with more"
    )
    print(
        f"answers: {sum(lengths)} tokens, median {lengths[len(lengths) // 2]}, longest"
        f" {lengths[-1]}"
    )
    characters = sum(len(i.answer) for i in bank.items)
    size = tokenizer.get_vocab_size()
    print(
        f"vocabulary {size} of {VOCAB_SIZE}, {characters / sum(lengths):.2f} characters per token;"
        f" bank {bank.digest}"
    )
    rng = random.Random(0)
    builder = ConversationBuilder(bank)
    for _ in range(args.show):
        for message in builder.build(rng, 0.5).messages:
            print(f"[{message.role}] {message.content[:300]}")
        print()


if __name__ == "__main__":
    main()
