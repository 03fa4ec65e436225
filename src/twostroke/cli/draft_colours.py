"""Which of an answer's tokens were guessed before they were drawn, in colour."""

from __future__ import annotations

from typing import TextIO

from twostroke.cli.terminal import paint
from twostroke.core.output import RequestOutput
from twostroke.text.tokenizer import Tokenizer

ACCEPTED, REJECTED = "32", "9;31"  # green; struck through, red


def show_drafts(output: RequestOutput, tokenizer: Tokenizer, stream: TextIO) -> None:
    """Write what a step added: accepted drafts green, rejected ones struck through, in red.

    Without colours (``NO_COLOR``, or no terminal) it is the text alone.
    """
    num_accepted, text = output.num_accepted_drafts, output.text
    accepted = tokenizer.decode(output.token_ids[:num_accepted])
    rejected = tokenizer.decode(output.draft_token_ids[num_accepted:])
    coloured = paint("x", ACCEPTED, stream) != "x"
    # Where a character was held back, or a stop string cut the text, its parts cannot be told.
    if coloured and text.startswith(accepted):
        first = paint(accepted, ACCEPTED, stream) if accepted else ""
        wrong = paint(rejected, REJECTED, stream) if rejected else ""
        text = first + wrong + text[len(accepted) :]
    stream.write(text)
    stream.flush()
