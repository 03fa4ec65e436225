"""API keys: what opens the server, what does not, and what is kept of them."""

from __future__ import annotations

import hmac
import stat
from pathlib import Path

import pytest

from twostroke.cli.main import run
from twostroke.core.errors import (
    ConfigError,
    InvalidKeyError,
    MissingKeyError,
    RevokedKeyError,
    TwostrokeError,
)
from twostroke.gateway.keys import KeyRing, given_keys, key_line, new_key, read_key_file
from twostroke.gateway.options import GatewayOptions


def ring(tmp_path: Path, *lines: str) -> KeyRing:
    path = tmp_path / "keys"
    path.write_text("\n".join(lines))
    return KeyRing(read_key_file(path))


def test_a_key_opens_and_names_its_holder(tmp_path: Path) -> None:
    alice, bob = new_key(), new_key()
    keys = ring(tmp_path, "# team", key_line("alice", alice), "", key_line("bob", bob))
    assert keys.holder_of(f"Bearer {alice}") == "alice"
    assert keys.holder_of(f"bearer  {bob} ") == "bob"


def test_two_keys_of_one_name_are_one_tenant(tmp_path: Path) -> None:
    """So a key is replaced: both work until the old line goes."""
    old, new = new_key(), new_key()
    keys = ring(tmp_path, key_line("alice", old), key_line("alice", new))
    assert keys.holder_of(f"Bearer {old}") == keys.holder_of(f"Bearer {new}") == "alice"


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (None, MissingKeyError),
        ("", MissingKeyError),
        ("Bearer", MissingKeyError),
        ("Bearer ", MissingKeyError),
        ("Basic c2VjcmV0", MissingKeyError),
        ("secret", MissingKeyError),
        ("Bearer secre", InvalidKeyError),
        ("Bearer secrets", InvalidKeyError),
        ("Bearer Secret", InvalidKeyError),
        ("Bearer \udcff\udcfe", InvalidKeyError),
    ],
)
def test_what_does_not_open(header: str | None, error: type[TwostrokeError]) -> None:
    with pytest.raises(error) as caught:
        KeyRing(given_keys(["secret"])).holder_of(header)
    assert "ecret" not in str(caught.value), "an error must not repeat a key"


def test_a_revoked_key_says_so(tmp_path: Path) -> None:
    key = new_key()
    for lines in (
        [key_line("alice", key) + ":revoked"],
        [key_line("alice", key), key_line("alice", key) + ":revoked"],
    ):
        with pytest.raises(RevokedKeyError, match="alice"):
            ring(tmp_path, *lines).holder_of(f"Bearer {key}")


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an answer must not tell how far down the list a key stands, or how much of it was
    right.
    """
    compared: list[bool] = []
    original = hmac.compare_digest

    def count(a: bytes, b: bytes) -> bool:
        compared.append(original(a, b))
        return compared[-1]

    keys = KeyRing(given_keys(["first", "second", "third"]))
    monkeypatch.setattr(hmac, "compare_digest", count)
    keys.holder_of("Bearer first")
    assert compared == [True, False, False]


def test_given_keys_have_the_same_name_wherever_they_stand() -> None:
    """Servers that share a Redis must count one key as one."""
    assert given_keys(["a", "b"])[1].name == given_keys(["b"])[0].name


def test_one_key_cannot_have_two_names(tmp_path: Path) -> None:
    key = new_key()
    with pytest.raises(ConfigError, match="alice and bob have the same key"):
        ring(tmp_path, key_line("alice", key), key_line("bob", key))


@pytest.mark.parametrize(
    "line", ["alice", "alice:1234", "a b:" + "0" * 64, "alice:" + "0" * 64 + ":gone", "x" * 70]
)
def test_a_malformed_line_is_named_but_not_shown(tmp_path: Path, line: str) -> None:
    """Somebody may have put the key itself there."""
    with pytest.raises(ConfigError, match=r"^line 2 of .*keys is not NAME:SHA256$") as caught:
        ring(tmp_path, "# comment", line)
    assert line not in str(caught.value)


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    """It would lock everybody out, or (worse) be taken for no keys at all."""
    with pytest.raises(ConfigError, match="holds no key"):
        ring(tmp_path, "# nobody")
    with pytest.raises(ConfigError, match="No such file"):
        read_key_file(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_key_file(tmp_path / "binary")


def test_the_command_makes_a_key_and_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["key", "alice"]) == 0
    key, line = capsys.readouterr().out.splitlines()
    assert ring(tmp_path, line).holder_of(f"Bearer {key}") == "alice"
    assert key not in line


def test_the_command_appends_to_a_file_that_only_its_owner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    names = ["alice", "bob"]
    made = []
    for name in names:
        assert run(["key", name, "--append", str(path)]) == 0
        made.append(capsys.readouterr().out.strip())
        path.write_text(path.read_text().rstrip("\n"))  # as some editors leave it
    keys = KeyRing(read_key_file(path))
    assert [keys.holder_of(f"Bearer {key}") for key in made] == names
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_bad_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "a:b"]) == 1
    assert "cannot be the name of a key" in capsys.readouterr().err


def test_options_do_not_show_keys() -> None:
    """They end up in logs and tracebacks."""
    options = GatewayOptions(
        api_key=("sk-secret",), rate_limit_storage="redis://:pass@h", tokens_per_minute=1
    )
    assert "secret" not in repr(options) and "pass" not in repr(options)
    with pytest.raises(ConfigError) as caught:
        GatewayOptions(api_key=("two words",))
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests_per_minute": 0}, "--requests-per-minute must be 1 or more"),
        ({"tokens_per_minute": -1}, "--tokens-per-minute must be 1 or more"),
        ({"rate_limit_storage": "mysql://x", "tokens_per_minute": 1}, "knows no 'mysql'"),
        ({"rate_limit_storage": "redis:6379", "tokens_per_minute": 1}, "knows no 'redis:6379'"),
        ({"rate_limit_storage": "redis://localhost"}, "means nothing without a limit"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GatewayOptions(**options)  # type: ignore[arg-type]
