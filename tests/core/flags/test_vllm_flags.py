"""Command lines that were written for vLLM start here, or say which flag is refused and why."""

from __future__ import annotations

import pytest

from tests.cli.test_flags import serve_arguments
from twostroke.cli.main import run
from twostroke.core.errors import ConfigError
from twostroke.core.flags.vllm_flags import MEANINGLESS, without_vllm_flags


def test_flags_that_mean_nothing_are_noted_and_left_out() -> None:
    notes: list[str] = []
    arguments = (
        "serve folder --disable-custom-all-reduce --pipeline-parallel-size 1 -pp=1 --swap-space 4"
        " --dtype half --load-format=auto --port 1 -tp 2 -dp=3"
    )
    kept = without_vllm_flags(arguments.split(), notes.append)
    same = ["serve", "folder", "--swap-space", "4", "--dtype", "float16", "--port", "1"]
    assert kept == [*same, "--tensor-parallel-size", "2", "--data-parallel-size=3"]
    assert len(notes) == 4
    assert notes[0] == "--disable-custom-all-reduce changes nothing: the engine chooses how it runs"


def test_other_commands_and_what_stands_behind_two_hyphens_are_left_alone() -> None:
    for arguments in (
        ["simulate", "--disable-custom-all-reduce"],
        ["generate", "--", "--disable-custom-all-reduce"],
        ["serve", "--dtype"],
        [],
    ):
        assert without_vllm_flags(arguments, print) == arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trust-remote-code"], "no code of a checkpoint is ever run"),
        (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size must be 1, got '2'"),
        (["-pp=8"], "-pp must be 1, got '8'"),
        (["--load-format", "bitsandbytes"], "must be auto or safetensors"),
    ],
)
def test_what_would_change_something_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError):
        without_vllm_flags(["serve", *arguments], print)
    assert run(["serve", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_none_of_them_is_a_flag_of_ours() -> None:
    """Else ours would never be seen."""
    from twostroke.cli.main import build_app

    command = build_app()["serve"].assemble_argument_collection()
    ours = {name for argument in command for name in argument.names}
    assert "--max-num-seqs" in ours
    assert not ours & MEANINGLESS.keys()


def test_the_last_value_of_a_repeated_flag_counts() -> None:
    """Scripts append their users' flags to their own."""
    bound = serve_arguments(
        "--max-num-seqs", "3", "--enable-prefix-caching", "--max-num-seqs", "4",
        "--no-enable-prefix-caching",
    )  # fmt: skip
    assert bound["scheduler"].max_num_seqs == 4
    assert bound["cache"].enable_prefix_caching is False


def test_several_names_at_once() -> None:
    for names in (["a", "b"], ["a", "--served-model-name", "b"]):
        bound = serve_arguments("folder", "--served-model-name", *names, "--port", "1")
        assert bound["server"].served_model_name == ("a", "b")
        assert (bound["models"], bound["server"].port) == (("folder",), 1)
