"""Protects: preparing is all or nothing, since train.sh takes a copy of the bank for whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.training.banks import small_bank
from training.bank import load_bank
from training.prepare import put_in_place
from training.tokenizer import load_tokenizer, train_tokenizer


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    small_bank(folder)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def tokenizer(word: str) -> Tokenizer:
    return train_tokenizer([f"{word} {word}"], vocab_size=270)


def test_the_bank_and_its_tokenizer_replace_those_before(bank: Path, runs: Path) -> None:
    put_in_place(bank, tokenizer("one"), runs / "bank", runs / "tokenizer")
    (bank / "routing.toml").unlink()
    put_in_place(bank, tokenizer("two"), runs / "bank", runs / "tokenizer")
    assert load_bank(runs / "bank").digest == load_bank(bank).digest
    assert "two" in load_tokenizer(runs / "tokenizer").get_vocab()
    assert sorted(path.name for path in runs.iterdir()) == ["bank", "tokenizer"]


def test_the_copy_itself_can_be_the_source(bank: Path, runs: Path) -> None:
    """The tokenizer can be made again from the bank as it was."""
    put_in_place(bank, tokenizer("one"), runs / "bank", runs / "tokenizer")
    put_in_place(runs / "bank", tokenizer("two"), runs / "bank", runs / "tokenizer")
    assert load_bank(runs / "bank").digest == load_bank(bank).digest


def test_a_copy_that_breaks_off_leaves_none_or_the_one_before(bank: Path, runs: Path) -> None:
    broken = bank / "zz.toml"
    broken.symlink_to(bank / "nowhere")  # All others are copied, then an error is raised.
    with pytest.raises(shutil.Error):
        put_in_place(bank, tokenizer("one"), runs / "bank", runs / "tokenizer")
    assert not (runs / "bank").exists()
    broken.unlink()
    put_in_place(bank, tokenizer("one"), runs / "bank", runs / "tokenizer")
    (bank / "caching.toml").unlink()
    broken.symlink_to(bank / "nowhere")
    with pytest.raises(shutil.Error):
        put_in_place(bank, tokenizer("two"), runs / "bank", runs / "tokenizer")
    assert (runs / "bank" / "caching.toml").exists()
    assert "one" in load_tokenizer(runs / "tokenizer").get_vocab()


@pytest.mark.parametrize("edited", [False, True])
def test_a_run_does_not_go_on_with_another_bank(bank: Path, tmp_path: Path, edited: bool) -> None:
    """It would end in weights of a bank that is not the repository's, after an hour."""
    source, folder = Path(train_tokenizer.__code__.co_filename).parent, tmp_path / "training"
    folder.mkdir()
    for name in ("__init__.py", "bank.py", "train.sh"):
        shutil.copy(source / name, folder)
    shutil.copytree(bank, folder / "runs" / "bank")
    (bank / "README.md").write_text("not part of what is learned")
    if edited:
        (bank / "routing.toml").unlink()
    shutil.copytree(bank, folder / "bank")
    command = ["sh", str(folder / "train.sh")]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert ("remove training/runs" in ended.stderr) == edited
    assert (
        "No module named training.train" in ended.stderr
    ) != edited  # the next thing that it does


def test_no_bank_stands_beside_a_tokenizer_that_is_not_its_own(bank: Path, runs: Path) -> None:
    """A training that went on from such a pair would have other tokens than its first half."""
    put_in_place(bank, tokenizer("one"), runs / "bank", runs / "tokenizer")
    shutil.rmtree(runs / "tokenizer")
    (runs / "tokenizer").write_text("in the way")
    with pytest.raises(FileExistsError):
        put_in_place(bank, tokenizer("two"), runs / "bank", runs / "tokenizer")
    assert not (runs / "bank").exists()
    (runs / "tokenizer").unlink()
    put_in_place(bank, tokenizer("two"), runs / "bank", runs / "tokenizer")
    assert load_bank(runs / "bank").digest == load_bank(bank).digest
