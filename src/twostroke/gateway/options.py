"""The gateway's settings; the command line derives its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import Count, check_fields

MEMORY = "memory://"
REDIS_SCHEMES = ("redis://", "rediss://", "redis+unix://")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """API keys, limits for each of them, and what they share.

    Without keys, all requests are those of one anonymous tenant.
    """

    api_key: tuple[str, ...] = field(default=(), repr=False)
    """Key that a client must send as `Authorization: Bearer KEY` (repeat the flag for more)."""
    api_key_file: str | None = None
    """File with one `NAME:SHA256` per line, as `twostroke key NAME` makes them; `:admin` at its end
    is for a key that sees the metrics of all.
    """
    metrics_without_key: bool = False
    """Leave /metrics open; like everything but /health it asks for a key where there are keys."""
    requests_per_minute: Count | None = None
    """Most POST requests of one key in a minute; by default there is no limit."""
    tokens_per_minute: Count | None = None
    """Most tokens (prompts, answers, /tokenize and /detokenize) of one key in a minute; by default
    there is no limit.
    """
    rate_limit_storage: str = field(default=MEMORY, repr=False)
    """Where limits are counted: in this process, or for several servers together at
    redis://HOST:PORT/DB.
    """
    share_prefix_cache: bool = False
    """Let keys reuse each other's cached prefixes; response times then tell what others have
    sent.
    """

    def __post_init__(self) -> None:
        ok = all(
            key and key.isprintable() and " " not in key and key.isascii() for key in self.api_key
        )
        if not ok:  # without the value, which must not end up in a log
            raise ConfigError(
                "--api-key must be printable ASCII without spaces",
                hint="make one with twostroke key NAME",
            )
        check_fields(self)
        self._check_storage()

    @property
    def has_keys(self) -> bool:
        return bool(self.api_key) or self.api_key_file is not None

    @property
    def has_limits(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    def _check_storage(self) -> None:
        if self.rate_limit_storage == MEMORY:
            return
        scheme, separator, _ = self.rate_limit_storage.partition("://")
        if (
            not separator or scheme + separator not in REDIS_SCHEMES
        ):  # what follows may hold a password
            hint = f"give {MEMORY} or a URL that begins with " + ", ".join(REDIS_SCHEMES)
            raise ConfigError(f"--rate-limit-storage knows no {scheme!r}", hint=hint)
        if not self.has_limits:
            hint = "add --requests-per-minute or --tokens-per-minute"
            raise ConfigError("--rate-limit-storage means nothing without a limit", hint=hint)
        if find_spec("redis") is None:
            raise ConfigError(
                "--rate-limit-storage needs the Redis client", hint="pip install 'twostroke[redis]'"
            )
