"""Blocks that are read out of the giver's memory by NIXL: over RDMA, shared memory or TCP.

Keys go over the connection, as always. Each side has a window of memory beside it that NIXL knows.
The giver says where its own is, once both have greeted, and puts the blocks of each question there;
the asker reads them from there into its own. The next question says that they have been read.
Numbers are in little endian::

    window    8 bytes, where it is; 4 bytes, how many blocks it takes; 4 bytes, how long what
              follows is; then how NIXL reaches the giver
    answer    1 byte for each key: 1 if its block is in the window, at the key's place; 0 if not

What NIXL (with UCX) says to the other side is not encrypted, and it asks for no token.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import mmap
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from twostroke.core.errors import ConfigError
from twostroke.kv_tiers.block_channels import FetchedBlock
from twostroke.kv_tiers.block_wire import MAX_KEYS, WireError, receive, send_keys

WINDOW_BYTES = 16 << 20
READ_SECONDS = 5.0  # for one window
MAX_METADATA = 1 << 20
POLL_SECONDS = 0.0002
BACKEND, MEMORY = "UCX", "DRAM"
_WINDOW = struct.Struct("<QII")


class NixlChannel:
    """Implements ``BlockChannel``. Its agent lives as long as the process.

    Raises:
        ConfigError: NIXL is not installed, or does not start here.
    """

    name = "nixl"

    def __init__(self) -> None:
        try:
            nixl = importlib.import_module("nixl._api")
        except ImportError as error:
            raise ConfigError(
                f"--kv-transfer nixl: NIXL is not installed: {error}",
                hint="pip install 'twostroke[nixl]' on all machines, or leave --kv-transfer out",
            ) from error
        _log_as_all_do()
        try:
            config = nixl.nixl_agent_config(
                backends=[BACKEND], sync_mode=nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
            )
            self._agent = nixl.nixl_agent(secrets.token_hex(16), config)
        except Exception as error:  # its own kinds, which are in a module without a stable name
            raise ConfigError(
                f"--kv-transfer nixl: NIXL does not start: {type(error).__name__}: {error}",
                hint="see what it logs; or leave --kv-transfer out, which takes TCP",
            ) from error
        if BACKEND not in self._agent.backends:
            raise ConfigError(
                f"--kv-transfer nixl: NIXL has no {BACKEND} here",
                hint="leave --kv-transfer out, which takes TCP",
            )
        self._late = LateReads(self._agent)

    def reader(self, connection: socket.socket, block_bytes: int) -> NixlReader:
        self._late.let_go()
        return NixlReader(self._agent, connection, block_bytes, self._late)

    def sender(self, connection: socket.socket, block_bytes: int) -> NixlSender:
        return NixlSender(self._agent, connection, block_bytes)


class _Window:
    """Memory for some blocks that NIXL knows, each at its place."""

    def __init__(self, agent: Any, block_bytes: int) -> None:
        self.num_blocks = max(1, min(MAX_KEYS, WINDOW_BYTES // block_bytes))
        self._agent, self._size = agent, block_bytes
        memory = mmap.mmap(-1, self.num_blocks * block_bytes)
        self._view = memoryview(memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._registered = agent.register_memory([(self.address, len(memory), 0, "")], MEMORY)

    def put(self, place: int, block: memoryview) -> None:
        self._view[place * self._size : (place + 1) * self._size] = block

    def copy(self, place: int) -> memoryview:
        return memoryview(bytes(self._view[place * self._size : (place + 1) * self._size]))

    def places(self, address: int, numbers: Sequence[int]) -> Any:
        """Blocks of this window, or of one like it that begins elsewhere, as NIXL names them."""
        size = self._size
        listed = [(address + number * size, size, 0) for number in numbers]
        return self._agent.get_xfer_descs(listed, MEMORY)

    def close(self) -> None:
        with suppress(Exception):  # of NIXL: the memory stays its own then
            self._agent.deregister_memory(self._registered)


class _LateRead(NamedTuple):
    """A transfer that NIXL did not give up, and the window into which it may write yet."""

    handle: Any
    window: _Window


class LateReads:
    """Keeps windows for as long as NIXL may write to them; for any thread."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._lock = agent, threading.Lock()
        self._reads: list[_LateRead] = []

    def keep(self, handle: Any, window: _Window) -> None:
        """A reader ends, and its last transfer does not."""
        with self._lock:
            self._reads.append(_LateRead(handle, window))

    def let_go(self) -> None:
        """Free the windows of transfers that have ended meanwhile."""
        with self._lock:
            self._reads = [each for each in self._reads if not self._has_ended(each)]

    def _has_ended(self, read: _LateRead) -> bool:
        try:
            self._agent.release_xfer_handle(read.handle)
        except Exception:  # of NIXL: it has not
            return False
        read.window.close()
        return True


class NixlReader:
    """Implements ``BlockReader``."""

    def __init__(
        self, agent: Any, connection: socket.socket, block_bytes: int, late: LateReads
    ) -> None:
        self._agent, self._connection, self._late = agent, connection, late
        address, num_blocks, length = _WINDOW.unpack(receive(connection, _WINDOW.size))
        if not num_blocks or not 0 < length <= MAX_METADATA:
            raise WireError("what listens there gives no blocks by NIXL")
        metadata = bytes(receive(connection, length))
        self._theirs = address
        self._giver = _ask(lambda: agent.add_remote_agent(metadata))
        try:
            self._window = _ask(lambda: _Window(agent, block_bytes))
        except WireError:
            self._forget_giver()
            raise
        self._unreleased: Any = None
        self.max_keys = min(num_blocks, self._window.num_blocks)

    def fetch(self, keys: Sequence[bytes]) -> Iterator[FetchedBlock]:
        send_keys(self._connection, keys)
        answer = receive(self._connection, len(keys))
        there = [place for place, is_there in enumerate(answer) if is_there]
        began = time.perf_counter()
        if there:
            self._read(there)
        each = (time.perf_counter() - began) / max(1, len(there))
        for place, is_there in enumerate(answer):
            yield FetchedBlock(self._window.copy(place) if is_there else None, each)

    def close(self) -> None:
        if self._unreleased is None:
            self._window.close()
        else:
            self._late.keep(self._unreleased, self._window)
        self._forget_giver()

    def _forget_giver(self) -> None:
        with suppress(Exception):
            self._agent.remove_remote_agent(self._giver)

    def _read(self, there: Sequence[int]) -> None:
        own, theirs = (
            self._window.places(address, there) for address in (self._window.address, self._theirs)
        )
        agent = self._agent
        handle = _ask(lambda: agent.initialize_xfer("READ", own, theirs, self._giver, b""))
        try:
            state, deadline = _ask(lambda: agent.transfer(handle)), time.monotonic() + READ_SECONDS
            while state == "PROC":
                if time.monotonic() > deadline:
                    raise TimeoutError("NIXL has not read the blocks in time")
                _check_there(self._connection)
                state = _ask(lambda: agent.check_xfer_state(handle))
            if state != "DONE":
                raise WireError("NIXL could not read the blocks")
        finally:
            try:
                agent.release_xfer_handle(handle)
            except Exception:  # it is still under way
                self._unreleased = handle


class NixlSender:
    """Implements ``BlockSender``."""

    def __init__(self, agent: Any, connection: socket.socket, block_bytes: int) -> None:
        self._connection = connection
        self._window = _ask(lambda: _Window(agent, block_bytes))
        metadata: bytes = _ask(agent.get_agent_metadata)
        head = _WINDOW.pack(self._window.address, self._window.num_blocks, len(metadata))
        connection.sendall(head + metadata)

    def answer(self, keys: Sequence[bytes], find: Callable[[bytes], memoryview | None]) -> None:
        if len(keys) > self._window.num_blocks:
            raise WireError(f"{len(keys)} blocks were asked for, more than the window takes")
        there = bytearray()
        for place, key in enumerate(keys):
            block = find(key)
            if block is not None:
                self._window.put(place, block)
            there.append(block is not None)
        self._connection.sendall(there)

    def close(self) -> None:
        self._window.close()


def _log_as_all_do() -> None:
    """NIXL writes its log to stdout, which is for data."""
    log = logging.getLogger("nixl")
    log.handlers.clear()
    log.propagate = True
    log.setLevel(logging.WARNING)


def _ask(question: Callable[[], Any]) -> Any:
    """NIXL's answer; what it raises is of many kinds."""
    try:
        return question()
    except Exception as error:
        raise WireError(f"NIXL: {type(error).__name__}: {error}") from error


def _check_there(connection: socket.socket) -> None:
    """Wait a moment. Raises WireError if the giver has hung up, since it says nothing meanwhile."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    if waiting.poll(POLL_SECONDS * 1000):
        raise WireError("the connection ended while NIXL read the blocks")
