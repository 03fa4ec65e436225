"""The settings of a worker and of a router; the command line derives its flags from these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import Must, check_fields, each
from twostroke.core.network.address import Address, is_address
from twostroke.observability.json_log import LogFormat, LogLevel

TokenFile = Annotated[str | None, Must("the name of a file", bool)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Where a worker listens, and for whom."""

    listen: Annotated[str, Must("HOST:PORT", is_address)] = "127.0.0.1:8100"
    """Address for the router, as HOST:PORT; port 0 takes a free one. Beyond this machine it needs
    --token-file.
    """
    token_file: TokenFile = None
    """File with a secret of at least 16 bytes, the same as the router's; others are refused."""
    shutdown_timeout: Annotated[
        float, Must("0 or more seconds", lambda seconds: 0 <= seconds < 1e6)
    ] = 30.0
    """Seconds that running requests may go on after SIGTERM; what is left goes on in other
    workers.
    """
    log_level: LogLevel = "info"
    """Least severe messages that are logged (to stderr)."""
    log_format: LogFormat = "text"
    """`json` writes each message as one line of JSON."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.token_file is None and not self.address.is_loopback:
            raise ConfigError(
                f"--listen {self.listen} is reached from other machines, and nothing keeps them"
                " out",
                hint="give --token-file FILE, or listen on 127.0.0.1",
            )

    @property
    def address(self) -> Address:
        return Address.parse(self.listen)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """Which workers a router has."""

    worker: Annotated[tuple[str, ...], each("HOST:PORT", is_address)] = ()
    """Address of a worker as HOST:PORT (repeat the flag for more)."""
    token_file: TokenFile = None
    """File with the secret of the workers; needed where they are on other machines."""

    def __post_init__(self) -> None:
        check_fields(self)
        if len(set(self.worker)) < len(self.worker):
            raise ConfigError(
                "--worker names one worker twice", hint="a worker has one router; name it once"
            )

    @property
    def addresses(self) -> list[Address]:
        """The workers.

        Raises:
            ConfigError: There are none, or they cannot know the router.
        """
        addresses = [Address.parse(each) for each in self.worker]
        if not addresses:
            raise ConfigError("a router needs workers", hint="give --worker HOST:PORT")
        for address in addresses:
            if self.token_file is None and not address.is_loopback:
                raise ConfigError(
                    f"--worker {address} is on another machine, and would not know this router",
                    hint="give --token-file FILE, the same as the worker's",
                )
        return addresses
