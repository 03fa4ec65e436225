"""An engine that Ray places: the actor's process is the engine's."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import ray

from twostroke.core.freed_memory import share_heaps
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
            from twostroke.startup import load_engine  # with torch, so after the threads are set

            name, rank = start.served_model_name, start.rank
            return load_engine(start.config, served_model_name=name, rank=rank, clock=clock)

        def log(start: StartEngine) -> None:
            log_to_stderr(start.log_level, "json" if start.log_json else "text")

        guest.connection.sendall(encode_frame(Admitted(guest.proof)))
        serve_front_end(guest.connection, load, log, package_version())
