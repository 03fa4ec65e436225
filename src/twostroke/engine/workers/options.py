"""The settings of a worker and of a router; the command line derives its flags from these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import SIZE, Must, at_least, check_fields, each
from twostroke.core.kv_tier_config import DefaultSize, KVTransferConfig
from twostroke.core.network.address import Address, is_address
from twostroke.observability.json_log import LogFormat, LogLevel

Role = Literal["prefill", "decode", "both"]
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
    role: Role = "both"
    """`prefill` computes long prompts for workers of role `decode`, which fetch their KV blocks
    from it and write the answers; `both` does all of it by itself.
    """
    kv_listen: Annotated[str | None, Must("HOST:PORT", is_address)] = None
    """Address where a `prefill` worker gives KV blocks to others, as HOST:PORT; by default the next
    port after that of --listen. Others reach it by the host's name that the router has, unless
    this names one.
    """
    prefill_memory: Annotated[int, SIZE, at_least(1, "a positive size")] = DefaultSize(1 << 30)
    """Bytes in which a `prefill` worker keeps blocks for others (accepts 4GiB). Prompts that exceed
    it are computed where their answers are.
    """
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
        if self.kv_listen is not None and self.role != "prefill":
            raise ConfigError(
                f"--kv-listen means nothing with --role {self.role}, which gives no blocks",
                hint="leave it out, or give --role prefill",
            )
        if self.token_file is None and not self.kv_address.is_loopback:
            raise ConfigError(
                f"--kv-listen {self.kv_listen} is reached from other machines, and nothing keeps"
                " them out",
                hint="give --token-file FILE, or listen on 127.0.0.1",
            )

    @property
    def address(self) -> Address:
        return Address.parse(self.listen)

    @property
    def kv_address(self) -> Address:
        """Where blocks are given, if any are."""
        if self.kv_listen is not None:
            return Address.parse(self.kv_listen)
        host, port = self.address
        return Address(host, port + 1 if 0 < port < 65535 else 0)

    @property
    def transfer(self) -> KVTransferConfig:
        """What it gives to other engines and fetches from them."""
        if self.role == "prefill":
            return KVTransferConfig(
                kv_offered_at=str(self.kv_address),
                kv_offered_memory=int(self.prefill_memory),
                kv_token_file=self.token_file,
            )
        fetches = self.role == "decode"
        return KVTransferConfig(kv_fetched_by_address=fetches, kv_token_file=self.token_file)


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
