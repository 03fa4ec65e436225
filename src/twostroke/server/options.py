"""The HTTP server's settings; the command line derives its flags from these fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from twostroke.core.flag_values import require

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the server listens, under which names it serves the model, and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every interface."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    served_model_name: tuple[str, ...] = ()
    """Name of the model in the API (repeat the flag for more); by default MODEL as given."""
    allowed_origins: tuple[str, ...] = ()
    """Origin of web pages that may call the server (repeat the flag for more; * is any); by default
    none.
    """
    shutdown_timeout: float = 30.0
    """Seconds that running requests may go on after SIGTERM before they are aborted."""
    max_body_size: int = 32 * 2**20
    """Largest accepted request body in bytes (accepts 512KiB, 32MiB)."""
    max_queued_requests: int = 1024
    """Most requests that wait to be run; while that many do, further ones get a 429."""
    stall_timeout: float = 60.0
    """Seconds after which a step that has not ended makes /health answer 503."""
    log_level: LogLevel = "info"
    """Least severe messages that are logged (to stderr)."""
    access_log: bool = False
    """Log one line per HTTP request."""
    enable_log_requests: bool = False
    """Log one line per generation: who asked (user, prompt_cache_key ...), tokens, seconds, and how
    it ended.
    """

    def __post_init__(self) -> None:
        require(bool(self.host), "--host", self.host, "an address")
        require(0 <= self.port <= 65535, "--port", self.port, "from 0 to 65535")
        require(
            all(self.served_model_name), "--served-model-name", self.served_model_name, "not empty"
        )
        ok = all(origin == "*" or _ORIGIN.fullmatch(origin) for origin in self.allowed_origins)
        require(
            ok,
            "--allowed-origins",
            self.allowed_origins,
            "such as https://chat.example.org, without a path, or *",
        )
        require(
            0 <= self.shutdown_timeout < 1e6,
            "--shutdown-timeout",
            self.shutdown_timeout,
            "0 or more seconds",
        )
        require(
            0 < self.stall_timeout < 1e6,
            "--stall-timeout",
            self.stall_timeout,
            "more than 0 seconds",
        )
        require(self.max_body_size >= 1024, "--max-body-size", self.max_body_size, "at least 1KiB")
        require(
            self.max_queued_requests >= 1,
            "--max-queued-requests",
            self.max_queued_requests,
            "at least 1",
        )
