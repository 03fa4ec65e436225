"""A bank for tests that need one."""

from __future__ import annotations

from pathlib import Path

from training.bank import Bank, load_bank


def small_bank(folder: Path) -> Bank:
    """Five items of ten phrasings, each in a file of its own; three have more to tell."""
    subjects = ("batching", "quantisation", "sampling", "caching", "routing")
    forms = [
        "what is {}",
        "explain {} to me",
        "why does {} matter",
        "tell me about {}",
        "{} in short",
        "how {} works",
    ]
    forms += ["who uses {}", "{}, what for", "is {} good", "the point of {}"]
    for subject in subjects:
        questions = ", ".join(f'"{form.format(subject)}"' for form in forms)
        text = (
            f'[[item]]\nid = "{subject}"\nquestions = [{questions}]\nanswer = "About {subject}:'
            ' nothing."\n'
        )
        text += 'more = "Nor more."\n' if subject < "r" else ""
        (folder / f"{subject}.toml").write_text(text)
    return load_bank(folder)
