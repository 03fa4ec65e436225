"""Runs an engine for a front end in another process: ``python -m twostroke.engine_process FD``.

Started by ``twostroke serve --engine-process``, which hands it one end of a pair of sockets.
"""

from __future__ import annotations

import signal
import socket
import sys

from twostroke.core.freed_memory import share_heaps
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.process.handshake import StartEngine
from twostroke.engine.process.serve_front_end import serve_front_end
from twostroke.observability.json_log import log_to_stderr
from twostroke.server.version import package_version
from twostroke.startup import load_own_engine


def main(descriptor: int) -> None:
    """Serve the front end at the other end of a socket that was inherited."""
    # These go to whole groups of processes. The front end takes them, lets requests finish, and
    # then ends this process by closing the socket.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    share_heaps()
    serve_front_end(socket.socket(fileno=descriptor), _load, _log, package_version())


def _load(start: StartEngine) -> LLMEngine:
    return load_own_engine(start.config, served_model_name=start.served_model_name, rank=start.rank)


def _log(start: StartEngine) -> None:
    log_to_stderr(start.log_level, "json" if start.log_json else "text")


if __name__ == "__main__":
    main(int(sys.argv[1]))
