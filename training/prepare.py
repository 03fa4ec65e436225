"""First step: copies the bank to training/runs/bank, checks it, trains the tokenizer on its training side.

Do not run it between the training and the export of a model, which take both from training/runs. Run as `python -m
training.prepare`.
"""

import argparse
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

from training import prompts
from training.bank import BANK_DIR, load_bank, problems_of
from training.conversations import ConversationBuilder
from training.data import Encoder
from training.tokenizer import VOCAB_SIZE, save_tokenizer, train_tokenizer, training_text

RUNS_DIR = Path(__file__).parent / "runs"
TOKENIZER_DIR = RUNS_DIR / "tokenizer"
BANK_COPY = (
    RUNS_DIR / "bank"
)  # What the tokenizer and the models are made from: later edits of the bank do not move the split.


def main() -> None:
    """Writes the tokenizer to training/runs/tokenizer and a summary to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bank", type=Path, default=BANK_DIR)
    parser.add_argument("--show", type=int, default=0, help="print this many training conversations")
    args = parser.parse_args()
    bank = load_bank(args.bank)
    for problem in problems_of(list(bank.items)):
        print(f"warning: {problem}", file=sys.stderr)
    tokenizer = train_tokenizer(training_text(bank, prompts.instruction_texts()))
    save_tokenizer(tokenizer, TOKENIZER_DIR)
    if BANK_COPY.exists():
        shutil.rmtree(BANK_COPY)
    shutil.copytree(args.bank, BANK_COPY)
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
    print(f"answers: {sum(lengths)} tokens, median {lengths[len(lengths) // 2]}, longest {lengths[-1]}")
    characters = sum(len(i.answer) for i in bank.items)
    size = tokenizer.get_vocab_size()
    print(
        f"vocabulary {size} of {VOCAB_SIZE}, {characters / sum(lengths):.2f} characters per token; bank {bank.digest}"
    )
    rng = random.Random(0)
    builder = ConversationBuilder(bank)
    for _ in range(args.show):
        for message in builder.build(rng, 0.5).messages:
            print(f"[{message.role}] {message.content[:300]}")
        print()


if __name__ == "__main__":
    main()
