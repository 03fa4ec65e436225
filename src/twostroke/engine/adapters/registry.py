"""The LoRA adapters that an engine knows by name, and which of them are in memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import NamedTuple, Protocol

from twostroke.core.errors import (
    InsufficientMemoryError,
    InvalidRequestError,
    ModelLoadError,
    TwostrokeError,
)
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.core.operator.lora_config import LoraConfig, is_adapter_name
from twostroke.engine.adapters.orders import AdapterOrder, KnownAdapter, LoadAdapter

logger = logging.getLogger(__name__)
_MAX_KNOWN = 1000


class LoadedAdapter(NamedTuple):
    """What an adapter is, once it is in memory.

    Attributes:
        digest: A hash of its contents.
        rank: The highest of its modules.
    """

    digest: str
    rank: int
    nbytes: int


class AdapterHolder(Protocol):
    """Has adapters in memory; what runs the model implements it."""

    def load(self, path: str, max_rank: int, max_bytes: int) -> LoadedAdapter:
        """Read, check and keep an adapter. Raises TwostrokeError, and nothing is kept then."""
        ...

    def drop(self, digest: str) -> None:
        """Forget it; no request that uses it runs."""
        ...


def adapter_digest(identity: str) -> str:
    """The digest in what a request carries; empty: no adapter."""
    return identity.rpartition("@")[2]


class Adapters:
    """All adapters of one engine.

    The engine's thread changes them; names are looked up on any thread.

    Attributes:
        known: By name; replaced as a whole when it changes.
    """

    def __init__(self, options: LoraConfig | None = None) -> None:
        self.options = options or LoraConfig()
        self.known: dict[str, KnownAdapter] = {}
        self._holder: AdapterHolder | None = None
        self._resident: dict[str, int] = {}  # bytes by digest, the one used longest ago first

    def attach(self, holder: AdapterHolder) -> None:
        """Load what the operator named. Raises ModelLoadError or InsufficientMemoryError."""
        self._holder = holder
        for name, path in self.options.paths().items():
            try:
                self.load(name, path, ())
            except TwostrokeError as error:
                message = f"--lora {name}={path}: {error.message}"
                raise ModelLoadError(message, hint=error.hint) from error

    def identity_of(self, name: str) -> str:
        """What a request for that adapter carries. Raises InvalidRequestError for no adapter."""
        if not name:
            return ""
        if (own := self.known.get(name)) is None:
            listed = ", ".join(list(self.known)[:20]) or "none"
            raise InvalidRequestError(
                f"there is no adapter {name!r}", param="model", hint=f"loaded are: {listed}"
            )
        return own.identity

    def carry_out(self, order: AdapterOrder, in_use: Collection[str]) -> KnownAdapter:
        """Load an adapter or unload one, between two steps; requests wait meanwhile.

        Args:
            in_use: Identities that requests carry now.

        Raises:
            InvalidRequestError: It cannot be done.
        """
        if not self.options.enable_lora:
            raise InvalidRequestError(
                "adapters of this server cannot change while it runs",
                hint="start it with --enable-lora",
            )
        if not isinstance(order, LoadAdapter):
            return self.unload(order.name, in_use)
        try:
            return self.load(order.name, order.path, in_use)
        except (ModelLoadError, InsufficientMemoryError) as error:
            message, hint = error.message, error.hint
            raise InvalidRequestError(message, param="lora_path", hint=hint) from error

    def load(self, name: str, path: str, in_use: Collection[str]) -> KnownAdapter:
        """Load an adapter under a new name.

        Args:
            in_use: Identities that requests carry now.

        Raises:
            InvalidRequestError: The name is taken or malformed, or there is no room.
            TwostrokeError: It cannot be loaded.
        """
        if not is_adapter_name(name):
            raise InvalidRequestError(
                f"{name[:200]!r} is no name for an adapter",
                param="lora_name",
                hint="a name has letters, digits and . _ : / - and at most 128 characters",
            )
        if name in self.known:
            raise InvalidRequestError(
                f"there is an adapter {name!r} already", param="lora_name", hint="unload it first"
            )
        if len(self.known) >= _MAX_KNOWN:
            raise InvalidRequestError(f"there are {_MAX_KNOWN} adapters, the most that are kept")
        loaded = self._read(path, in_use)
        own = KnownAdapter(name, path, *loaded, created=int(time.time()))
        self.known = {**self.known, name: own}
        return own

    def unload(self, name: str, in_use: Collection[str]) -> KnownAdapter:
        """Forget an adapter. Raises InvalidRequestError: there is none, or requests use it."""
        own = self.known.get(name)
        if own is None:
            raise InvalidRequestError(f"there is no adapter {name!r}", param="lora_name")
        if own.identity in in_use:
            raise InvalidRequestError(
                f"requests that use the adapter {name!r} are not through",
                param="lora_name",
                hint="wait for them, or abort them",
            )
        self.known = {other: known for other, known in self.known.items() if other != name}
        if all(known.digest != own.digest for known in self.known.values()):
            self._drop(own.digest)
        return own

    def use(self, identity: str, in_use: Collection[str]) -> None:
        """Have an adapter in memory for a request that comes.

        Raises:
            InvalidRequestError: It was unloaded meanwhile, or all that are in memory are in use.
            TwostrokeError: It cannot be read again, or has changed.
        """
        if not identity:
            return
        own = self.known.get(identity.rpartition("@")[0])
        if own is None or own.identity != identity:
            raise InvalidRequestError("the adapter has been unloaded", param="model")
        if own.digest in self._resident:
            self._resident[own.digest] = self._resident.pop(own.digest)
            return
        loaded = self._read(own.path, in_use)
        if loaded.digest != own.digest:
            if all(known.digest != loaded.digest for known in self.known.values()):
                self._drop(loaded.digest)
            raise InvalidRequestError(
                f"the files of the adapter {own.name!r} have changed since it was loaded",
                param="model",
                hint="unload it, and load it again",
            )

    def _read(self, path: str, in_use: Collection[str]) -> LoadedAdapter:
        if self._holder is None:
            raise InvalidRequestError(
                "this server has no LoRA adapters", hint="start it with --enable-lora"
            )
        used = {adapter_digest(identity) for identity in in_use}
        if len(self._resident) >= self.options.max_loras:
            self._make_room(used)
        options = self.options
        try:
            loaded = self._holder.load(path, options.max_lora_rank, options.max_lora_memory)
        except TwostrokeError:
            raise
        except Exception as error:  # a stranger's files end no request but the one for them
            logger.exception("the adapter at %s could not be read", path)
            raise ModelLoadError(
                f"{path} cannot be read: {type(error).__name__}: {error}",
                hint="save the adapter again with PEFT",
            ) from error
        was_there = loaded.digest in self._resident
        self._resident[loaded.digest] = loaded.nbytes
        try:
            while sum(self._resident.values()) > self.options.max_lora_memory:
                self._make_room(used | {loaded.digest})
        except InvalidRequestError:
            if not was_there:
                self._drop(loaded.digest)
            raise
        return loaded

    def _make_room(self, used: Collection[str]) -> None:
        """Drop the adapter that was used longest ago and that no request uses."""
        free = next((digest for digest in self._resident if digest not in used), None)
        if free is None:
            options = self.options
            raise InvalidRequestError(
                f"there is no room for the adapter: {options.max_loras} of at most"
                f" {format_bytes(options.max_lora_memory)} together may be in memory, and requests"
                " use those that are",
                hint="wait for them, or start the server with larger --max-loras and"
                " --max-lora-memory",
            )
        self._drop(free)

    def _drop(self, digest: str) -> None:
        self._resident.pop(digest, None)
        if self._holder is not None:
            self._holder.drop(digest)
