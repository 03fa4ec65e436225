"""The HTTP server's settings; the command line derives its flags from these fields."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import SIZE, Must, at_least, check_fields, each, within
from twostroke.core.flags.values import require
from twostroke.core.kv_tier_config import DefaultSize
from twostroke.observability.json_log import LogFormat, LogLevel
from twostroke.routing.make_router import Routing
from twostroke.routing.routers import RouterName
from twostroke.tools.reasoning import REASONING_OF_NAME
from twostroke.tools.registry import FAMILY_OF_NAME

# The value of --context-ranker that stands for the served model.
SERVED = "served"
# The names are known as the module is imported; a type checker sees any.
if TYPE_CHECKING:
    ToolCallParser = str
    ReasoningParser = str
else:
    ToolCallParser = Literal["auto", "none", *FAMILY_OF_NAME]
    ReasoningParser = Literal["auto", "none", *REASONING_OF_NAME]
# What means nothing without a certificate.
_TLS_FIELDS = (
    "ssl_keyfile",
    "ssl_keyfile_password",
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_ciphers",
    "enable_ssl_refresh",
)


def _is_http_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 4317
    except ValueError:  # a port that is none
        return False


def _is_origin(value: str) -> bool:
    return value == "*" or re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", value) is not None


def _is_host_name(value: str) -> bool:
    name = r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?"
    return value == "*" or re.fullmatch(name, value) is not None


def _is_proxy(value: str) -> bool:
    if value == "*":
        return True
    try:
        ipaddress.ip_network(value)
    except ValueError:
        return False
    return True


def _is_below_root(path: str) -> bool:
    return not path or (path[0] == "/" and path[-1] != "/")


Origin = each("such as https://chat.example.org, without a path, or *", _is_origin)
HostName = each("a name such as llm.example.org, without a port, or *", _is_host_name)
Proxy = each("an address such as 10.0.0.7, a network such as 10.0.0.0/8, or *", _is_proxy)
Collector = Must(
    "an address such as http://localhost:4318; OTLP over gRPC (port 4317) is not spoken",
    _is_http_url,
)
Timeout = Annotated[float, Must("more than 0 seconds", lambda seconds: 0 < seconds < 1e6)]
# What may also be no time at all.
Seconds = Annotated[float, Must("0 or more seconds", lambda seconds: 0 <= seconds < 1e6)]
Megabytes = Annotated[int, SIZE, at_least(2**20, "at least 1MiB")]
StoreFile = Annotated[str, Must("a file", bool)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the server listens, under which names it serves the model, and its limits."""

    host: Annotated[str, Must("an address", bool)] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every interface."""
    port: Annotated[int, within(0, 65535, "from 0 to 65535")] = 8000
    """Port to listen on; 0 takes a free one."""
    uds: str | None = None
    """Path of a Unix domain socket to listen on, instead of host and port."""
    ssl_certfile: str | None = None
    """Serve HTTPS with this certificate (PEM; those above it follow in the file)."""
    ssl_keyfile: str | None = None
    """Its private key (PEM); by default the certificate's file holds it, too."""
    ssl_keyfile_password: str | None = None
    """Password of an encrypted key. Other users of the machine may see it in the list of processes.
    """
    ssl_ca_certs: str | None = None
    """Authorities (PEM) whose certificates clients may show; see --ssl-cert-reqs."""
    ssl_cert_reqs: Annotated[int, within(0, 2, "0, 1 or 2")] = 0
    """Certificates of clients: 0 asks for none, 1 checks one that a client shows, 2 lets no client
    in without.
    """
    ssl_ciphers: str | None = None
    """Ciphers of TLS 1.2, as OpenSSL writes them; by default those that Python takes for safe."""
    enable_ssl_refresh: bool = False
    """Take up certificates and keys that are replaced while the server runs."""
    root_path: Annotated[str, Must("a path such as /llm", _is_below_root)] = ""
    """Path below which a proxy shows the server, such as /llm."""
    served_model_name: Annotated[tuple[str, ...], each("not empty", bool)] = ()
    """Names of the model in the API, after MODEL; by default MODEL as given."""
    allowed_origins: Annotated[tuple[str, ...], Origin] = ()
    """Origin of web pages that may call the server (repeat the flag for more; * is any); by default
    none.
    """
    allowed_hosts: Annotated[tuple[str, ...], HostName] = ()
    """Name under which clients may address the server (repeat the flag for more; * is any); by
    default, where it listens on loopback, localhost and addresses, elsewhere any.
    """
    forwarded_allow_ips: Annotated[tuple[str, ...], Proxy] = ()
    """Address or network of a proxy whose X-Forwarded-For names the client in logs (repeat the flag
    for more; * is any); by default none.
    """
    shutdown_timeout: Seconds = 30.0
    """Seconds that running requests may go on after SIGTERM or SIGHUP before they are aborted."""
    max_body_size: Annotated[int, SIZE, at_least(1024, "at least 1KiB")] = 4 * 2**20
    """Largest accepted request body in bytes (accepts 512KiB, 32MiB). Large bodies that are being
    read may take sixteen times as much together; beyond that a client gets a 503.
    """
    client_timeout: Timeout = 30.0
    """Seconds that a client may take for a request's head, for its body, and to take what is ready
    of its answer, beside what --min-client-rate gives it.
    """
    min_client_rate: Annotated[int, SIZE, at_least(1, "at least 1")] = 8 * 2**10
    """Bytes per second that a client must send or take: for each this many it has one second more
    (accepts 8KiB).
    """
    max_queued_requests: Annotated[int, at_least(1, "at least 1")] = 1024
    """Most answers that wait to be begun; beyond, keys with more than their share get a 429."""
    max_logprobs_memory: Megabytes | None = None
    """Bytes that the log-probabilities of unfinished answers may take (accepts 512MiB, 2GiB);
    beyond, calls that ask for some get a 429. By default 1 GiB, or what two of the longest answers
    can have.
    """
    stall_timeout: Timeout = 60.0
    """Seconds after which a step that has not ended makes /health answer 503; an engine in a
    process of its own is then ended and started again.
    """
    engine_process: bool = False
    """Run the engine in a process of its own. If that ends, it is started again, and answers that
    are under way go on where they were, without a change.
    """
    data_parallel_size: Annotated[int, within(1, 64)] = 1
    """Engines of the model, each in a process of its own; they divide memory and cores. If one
    ends, its requests go on in the others.
    """
    prefill_engines: Annotated[int, within(0, 63)] = 0
    """How many of the --data-parallel-size engines compute prompts alone, so that no answer waits
    for a long prompt; the others fetch what they have computed, and write the answers.
    """
    prefill_min_tokens: Annotated[int, within(1, 2**31 - 1)] | None = None
    """Shorter prompts are computed where their answers are, beside --prefill-engines or workers of
    role prefill. By default learned: from which length on to compute takes longer than to move.
    """
    prefill_memory: Annotated[int, SIZE, at_least(1, "a positive size")] = DefaultSize(1 << 30)
    """Bytes in which each of --prefill-engines keeps blocks for the others (accepts 4GiB). Prompts
    that exceed it are computed where their answers are.
    """
    router: RouterName = "prefix-affinity"
    """Which of several engines gets a request: `least-loaded`, `round-robin`, by `kv-occupancy` the
    one whose KV cache and queue are least full, by `prefix-affinity` the one that got most of its
    prompt before, by `kv-aware` the one that has most of it cached, or by `session` the one that
    has the others of its `prompt_cache_key`, `safety_identifier`, `user` or `metadata.user_id`.
    """
    slow_start: Seconds = 10.0
    """Seconds in which an engine that has come to others, or come back, gets a growing part of what
    they get; 0: all at once.
    """
    idle_unload: Timeout | None = None
    """Seconds without a request after which a model's process ends, which frees its memory; the
    next request waits until it has started again. Needs --engine-process, or several models.
    """
    kv_cache_share: Annotated[tuple[str, ...], each("not empty", bool)] = ()
    """Part of the memory for a model's KV cache as `NAME=PART`, where several models are served; by
    default each has part 1 (repeat the flag for more).
    """
    tool_call_parser: ToolCallParser = "auto"
    """Form in which the model writes tool calls, by vLLM's names: auto reads it off the chat
    template.
    """
    reasoning_parser: ReasoningParser = "auto"
    """Form in which the model writes its thoughts, which become reasoning_content; none leaves them
    in the text.
    """
    context_ranker: Annotated[str | None, Must("a model", bool)] = None
    """Model that ranks the documents of chats where not all fit: a ranking or embedding model, as a
    folder or Hub id, that is loaded beside MODEL; `served` is MODEL itself. By default BM25 ranks.
    """
    context_ranker_timeout: Timeout = 10.0
    """Seconds that it may take for a chat's documents; then BM25 ranks them."""
    enable_force_include_usage: bool = False
    """End every stream of OpenAI's chats and completions with its usage, whatever the request says;
    the other APIs always do.
    """
    special_tokens_in_messages: bool = False
    """Recognise special tokens that chat messages spell out, as transformers does; by default they
    are plain text, so that no message can end its turn.
    """
    responses_store: StoreFile | None = None
    """SQLite file for the responses of /v1/responses; by default they are kept in memory."""
    responses_store_size: Megabytes = 64 * 2**20
    """Most bytes of stored responses (accepts 64MiB, 1GiB); beyond it the oldest go first."""
    files_store: StoreFile | None = None
    """SQLite file for the files and batches of clients; by default they are kept in memory, and
    end with the server.
    """
    files_store_size: Megabytes = 256 * 2**20
    """Most bytes of stored files and batches (accepts 256MiB, 4GiB); each key leaves others as much
    as it takes.
    """
    max_file_size: Megabytes = 64 * 2**20
    """Largest accepted file in bytes (accepts 64MiB, 1GiB), also of requests for a batch."""
    inspector: bool = True
    """Serve /inspect, the page that shows what the engine does, and the feed behind it."""
    inspect_content: bool = False
    """Keep the latest prompts and answers (32 MiB) and show them in the inspector: a key its own,
    an admin key all, without keys anybody who reaches the port. By default only counts are shown.
    """
    inspect_efficiencies: Path | None = None
    """A file of twostroke calibrate: the roof and the estimates on the inspector's page Model."""
    log_level: LogLevel = "info"
    """Least severe messages that are logged (to stderr)."""
    log_format: LogFormat = "text"
    """`json` writes each message as one line of JSON, the ready message included."""
    access_log: bool = False
    """Log one line per HTTP request: status, seconds, id."""
    otlp_traces_endpoint: Annotated[str | None, Collector] = None
    """Export a trace of each call to this collector, OTLP over HTTP, such as http://localhost:4318
    (needs the extra `otel`).
    """
    otlp_traces_slow_ttft: Seconds | None = None
    """Export only traces whose first token took at least this many seconds, and those of calls that
    failed; by default all.
    """
    enable_log_requests: bool = False
    """Log one line per generation: who asked (user, prompt_cache_key ...), tokens, seconds, and how
    it ended.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_tls()
        ok = self.inspector or not self.inspect_content
        require(ok, "--inspect-content", self.inspect_content, "given without --no-inspector")
        slow = self.otlp_traces_slow_ttft
        ok = slow is None or self.otlp_traces_endpoint is not None
        require(ok, "--otlp-traces-slow-ttft", slow, "together with --otlp-traces-endpoint")

    @property
    def routing(self) -> Routing:
        """How requests are spread over several engines."""
        return Routing(self.router, self.slow_start)

    def named(self, model: str) -> ServerOptions:
        """The options with the names of the model, which is called ``model`` by default."""
        return replace(self, served_model_name=self.served_model_name or (model,))

    def _check_tls(self) -> None:
        checks, authorities = self.ssl_cert_reqs > 0, self.ssl_ca_certs is not None
        if checks != authorities:
            given, lacking = (
                ("--ssl-cert-reqs", "--ssl-ca-certs FILE")
                if checks
                else ("--ssl-ca-certs", "--ssl-cert-reqs 1 or 2")
            )
            raise ConfigError(
                f"{given} checks no client without {lacking.split()[0]}",
                hint=f"give {lacking}, or leave {given} out",
            )
        if self.ssl_certfile is None:
            for name in _TLS_FIELDS:
                flag = "--" + name.replace("_", "-")
                if getattr(self, name) not in (None, 0, False):
                    raise ConfigError(
                        f"{flag} means nothing without --ssl-certfile",
                        hint=f"give --ssl-certfile FILE, or leave {flag} out",
                    )
