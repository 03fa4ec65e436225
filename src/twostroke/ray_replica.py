"""An engine that Ray places: the actor's process is the engine's."""

from __future__ import annotations

import atexit
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray

from twostroke.core.freed_memory import share_heaps
from twostroke.core.kv_tier_config import KVTransferConfig
from twostroke.core.network.address import Address
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.process.frames import encode_frame
from twostroke.engine.process.handshake import StartEngine
from twostroke.engine.process.serve_front_end import serve_front_end
from twostroke.engine.workers.greeting import Admitted
from twostroke.engine.workers.listener import WorkerListener, listen_on
from twostroke.engine.workers.run_worker import FrontEndClock
from twostroke.observability.json_log import log_to_stderr
from twostroke.server.version import package_version


class ReplicaPlace(NamedTuple):
    """Where a replica listens for its front end, and the number of its process there."""

    host: str
    port: int
    pid: int


class RayReplica:
    """Made by ``RaySource``, which is its only front end.

    Args:
        token: What the front end must know.
        num_threads: With how many threads it computes; 0: as Ray says.
    """

    def __init__(self, token: bytes, num_threads: int) -> None:
        if num_threads:  # read when the libraries that compute are loaded
            os.environ["OMP_NUM_THREADS"] = str(num_threads)
        node = ray.get_runtime_context().get_node_id()
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        host = next(each["NodeManagerAddress"] for each in nodes if each["NodeID"] == node)
        self._listener: WorkerListener = listen_on(Address(host, 0), token, package_version())
        self._host, self._token = host, token

    def place(self) -> ReplicaPlace:
        return ReplicaPlace(*self._listener.address, os.getpid())

    def answer(self) -> None:
        """Show that the process runs; called while the engine loads."""

    def serve(self) -> None:
        """Load the engine that the front end asks for, and run it until that ends it."""
        guest = self._listener.next_guest()
        assert guest is not None  # nothing closes the listener before
        self._listener.close()
        share_heaps()
        clock = FrontEndClock()
        clock.follow(guest.ahead)

        def load(start: StartEngine) -> LLMEngine:
            from twostroke.startup import (
                load_own_engine,  # with torch, so after the threads are set
            )

            name, rank = start.served_model_name, start.rank
            config = replace(start.config, transfer=self._transfer(start.config.transfer))
            return load_own_engine(config, served_model_name=name, rank=rank, clock=clock)

        def log(start: StartEngine) -> None:
            log_to_stderr(start.log_level, "json" if start.log_json else "text")

        guest.connection.sendall(encode_frame(Admitted(guest.proof)))
        serve_front_end(guest.connection, load, log, package_version())

    def _transfer(self, transfer: KVTransferConfig) -> KVTransferConfig:
        """What it gives and fetches, by this machine's name, and by what all replicas know."""
        if not transfer.is_used:
            return transfer
        if transfer.kv_offered_at is not None:
            transfer = replace(transfer, kv_offered_at=str(Address(self._host, 0)))
        file, path = tempfile.mkstemp(prefix="twostroke-token-")
        atexit.register(Path(path).unlink, missing_ok=True)
        with os.fdopen(file, "w") as opened:
            opened.write(self._token.hex())
        return replace(transfer, kv_token_file=path)
