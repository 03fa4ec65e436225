"""Names of adapters, and which of them are in memory."""

from __future__ import annotations

import msgspec
import pytest

from twostroke.core.errors import ConfigError, InvalidRequestError, ModelLoadError
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.engine.adapters.orders import LoadAdapter, UnloadAdapter
from twostroke.engine.adapters.registry import Adapters, LoadedAdapter


class Folders:
    """Implements ``AdapterHolder`` over folders that are texts: the contents and their bytes."""

    def __init__(self, **contents: int) -> None:
        self.contents = contents
        self.held: set[str] = set()

    def load(self, path: str, max_rank: int, max_bytes: int) -> LoadedAdapter:
        if path not in self.contents:
            raise ModelLoadError(f"{path} holds no adapter", hint="name another")
        self.held.add(f"digest-{path}")
        return LoadedAdapter(f"digest-{path}", 8, self.contents[path])

    def drop(self, digest: str) -> None:
        self.held.remove(digest)


def adapters(folders: Folders, **options: int) -> Adapters:
    made = Adapters(LoraConfig(enable_lora=True, **options))  # type: ignore[arg-type]
    made.attach(folders)
    return made


def test_what_was_used_longest_ago_makes_room_and_is_read_again() -> None:
    folders = Folders(a=1, b=1, c=1)
    own = adapters(folders, max_loras=2)
    one, two = own.load("a", "a", ()), own.load("b", "b", ())
    own.use(one.identity, ())
    own.load("c", "c", ())
    assert folders.held == {"digest-a", "digest-c"}
    own.use(two.identity, {one.identity})  # "a" was used longest ago, but a request has it
    assert folders.held == {"digest-a", "digest-b"}
    assert list(own.known) == ["a", "b", "c"]


def test_no_room_while_all_are_in_use() -> None:
    folders = Folders(a=1, b=1)
    own = adapters(folders, max_loras=1)
    one = own.load("a", "a", ())
    with pytest.raises(InvalidRequestError, match="there is no room"):
        own.load("b", "b", {one.identity})
    assert folders.held == {"digest-a"}
    assert list(own.known) == ["a"]


def test_bytes_have_a_bound() -> None:
    folders = Folders(a=60, b=60, c=200)
    own = adapters(folders, max_lora_memory=100)
    one = own.load("a", "a", ())
    own.load("b", "b", ())
    assert folders.held == {"digest-b"}
    own.use(one.identity, ())
    with pytest.raises(InvalidRequestError, match="there is no room"):
        own.load("c", "c", {one.identity})
    assert folders.held == {"digest-a"}


def test_two_names_of_the_same_contents_share_their_memory() -> None:
    folders = Folders(a=1)
    own = adapters(folders)
    first, second = own.load("x", "a", ()), own.load("y", "a", ())
    assert first.identity != second.identity
    own.unload("x", {second.identity})
    assert folders.held == {"digest-a"}
    own.unload("y", ())
    assert folders.held == set()


def test_an_adapter_in_use_is_not_unloaded() -> None:
    own = adapters(Folders(a=1))
    one = own.load("a", "a", ())
    with pytest.raises(InvalidRequestError, match="are not through"):
        own.unload("a", {one.identity})
    own.unload("a", ())
    with pytest.raises(InvalidRequestError, match="has been unloaded"):
        own.use(one.identity, ())
    with pytest.raises(InvalidRequestError, match="no adapter 'a'"):
        own.unload("a", ())


def test_files_that_changed_are_not_read_again() -> None:
    folders = Folders(a=1, b=1)
    own = adapters(folders, max_loras=1)
    one = own.load("a", "a", ())
    own.load("b", "b", ())
    folders.load = lambda *_: LoadedAdapter("other", 8, 1)  # type: ignore[method-assign]
    folders.held.add("other")
    with pytest.raises(InvalidRequestError, match="have changed"):
        own.use(one.identity, ())
    assert "other" not in folders.held


@pytest.mark.parametrize("name", ["", "a@b", "a b", "-a", "ä", "a" * 129, "a\n"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="no name for an adapter"):
        adapters(Folders(a=1)).load(name, "a", ())
    with pytest.raises(ConfigError, match="--lora must be NAME=FOLDER"):
        LoraConfig(lora=(f"{name}=a",))


def test_orders() -> None:
    own = adapters(Folders(a=1))
    own.carry_out(LoadAdapter("x", "a"), ())
    with pytest.raises(InvalidRequestError, match="'x' already"):
        own.carry_out(LoadAdapter("x", "a"), ())
    with pytest.raises(InvalidRequestError, match="holds no adapter") as caught:
        own.carry_out(LoadAdapter("y", "nowhere"), ())
    assert caught.value.hint == "name another"
    assert own.carry_out(UnloadAdapter("x"), ()).path == "a"
    fixed = Adapters(LoraConfig(lora=("x=a",)))
    fixed.attach(Folders(a=1))
    with pytest.raises(InvalidRequestError, match="cannot change while it runs"):
        fixed.carry_out(UnloadAdapter("x"), ())


def test_what_the_operator_named_must_load() -> None:
    with pytest.raises(ModelLoadError, match="--lora x=b: b holds no adapter"):
        Adapters(LoraConfig(lora=("x=b",))).attach(Folders(a=1))
    with pytest.raises(ConfigError, match="names x twice"):
        LoraConfig(lora=("x=a", "x=b"))
    assert Adapters().identity_of("") == ""
    with pytest.raises(InvalidRequestError, match="no adapter 'x'"):
        Adapters().identity_of("x")


def test_files_that_became_those_of_another_adapter_take_nothing_from_it() -> None:
    folders = Folders(v1=1, v2=1)
    own = adapters(folders, max_loras=2)
    latest, second = own.load("latest", "v1", ()), own.load("v2", "v2", ())
    own.use(second.identity, ())
    folders.contents["v3"] = 1
    own.load("v3", "v3", {second.identity})  # makes room
    assert folders.held == {"digest-v2", "digest-v3"}
    own.known["latest"] = msgspec.structs.replace(latest, path="v2")
    with pytest.raises(InvalidRequestError, match="have changed since"):
        own.use(latest.identity, {second.identity})
    assert "digest-v2" in folders.held


def test_whatever_a_strangers_files_raise_the_request_alone_fails() -> None:
    folders = Folders()
    own = adapters(folders)
    folders.load = lambda *_: [][0]  # type: ignore[method-assign]
    with pytest.raises(InvalidRequestError, match="x cannot be read: IndexError"):
        own.carry_out(LoadAdapter("a", "x"), ())
