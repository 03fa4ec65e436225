"""What `twostroke serve` prints once it is ready: where it listens, how to call it, what fits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from twostroke.core.config import PolicyName
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.core.speculation_config import Speculation
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.make_kv import capacity_text
from twostroke.observability.process import age_of_process
from twostroke.server.state.served_model import ServedModel
from twostroke.server.version import package_version


def ready_banner(
    model: ServedModel,
    url: str,
    *,
    asks_for_keys: bool = False,
    traces_endpoint: str | None = None,
    slow_ttft: float | None = None,
    has_inspector: bool = False,
    certificate: str | None = None,
) -> str:
    """Several lines, the last of which is a command that works when pasted.

    Args:
        asks_for_keys: The command sends ``$OPENAI_API_KEY``.
        traces_endpoint, slow_ttft: Where traces go, and which; see ``ServerOptions``.
        has_inspector: The address of its page is given.
        certificate: The command trusts this file; for HTTPS.
    """
    info = model.client.info
    return "\n".join(
        [
            (
                f"twostroke {package_version()} serves {model.name} on {info.device}, ready in"
                f" {age_of_process():.1f} s"
            ),
            *memory_summary(info),
            *beside_summary(model),
            *tier_summary(info),
            *sampling_summary(info),
            *ranker_summary(model),
            *policy_summary(model.client.scheduler_config.policy),
            *speculation_summary(model.client.speculation),
            *targets_summary(model.client.watched_targets),
            *traces_summary(traces_endpoint, slow_ttft),
            f"  {'API':<10} {url}/v1 (OpenAI), documented at {url}/docs"
            if not url.startswith("unix:")
            else f"  {'API':<10} /v1 (OpenAI) and /docs on the socket {url.removeprefix('unix:')}",
            *(page_summary(model, url) if has_inspector and "://" in url else []),
            "",
            curl_line(model, url, asks_for_keys=asks_for_keys, certificate=certificate),
            "",
        ]
    )


def memory_summary(info: ExecutorInfo) -> list[str]:
    """Weights, KV blocks, the tokens they hold, and how many requests of maximum length that is;
    or slots of states, where no layer attends.
    """
    if not info.kv_cache_dtype and info.num_state_slots:
        return [
            f"  {'weights':<10} {format_bytes(info.weight_bytes)}",
            f"  {'states':<10} {info.num_state_slots:,} slots of requests and checkpoints;"
            f" requests of at most {info.max_model_len:,} tokens",
        ]
    kv_cache = format_bytes(info.num_blocks * info.block_bytes)
    kind = f" in {info.kv_cache_dtype}" if info.kv_cache_dtype else ""
    # Floor: what is left over serves shorter requests only. A cache may hold less than one of
    # maximum length.
    fits = info.full_requests
    share = f"{fits} requests" if fits != 1 else "1 request"
    return [
        f"  {'weights':<10} {format_bytes(info.weight_bytes)}",
        (
            f"  {'KV cache':<10} {kv_cache}{kind}: {info.num_blocks:,} blocks of {info.block_size},"
            f" {capacity_text(info)}, {share} of maximum length ({info.max_model_len:,})"
        ),
    ]


def beside_summary(model: ServedModel) -> list[str]:
    """The server's other models, and what their KV caches hold."""
    return [
        f"  {'beside it':<10} {other.name} on {other.client.info.device}, weights"
        f" {format_bytes(other.client.info.weight_bytes)}, KV cache of"
        f" {capacity_text(other.client.info)}"
        for other in model.beside
    ]


def page_summary(model: ServedModel, url: str) -> list[str]:
    """Where a browser finds the chat, if the model chats, and the inspector."""
    chat = [f"  {'chat':<10} {url}/"] if model.chats else []
    return [*chat, f"  {'inspector':<10} {url}/inspect"]


def tier_summary(info: ExecutorInfo) -> list[str]:
    """What KV blocks can spill to, and what is there already."""
    lines = []
    for tier in info.tiers:
        tokens = tier.num_blocks // info.kv_groups.count * info.block_size
        room = f"{tokens:,} tokens"
        if tier.states_alone:
            room = f"{tier.num_blocks // max(1, info.num_state_parts):,} states"
        holds = f", {len(tier.keys):,} blocks from before" if tier.keys else ""
        size = format_bytes(tier.num_blocks * tier.block_bytes)
        lines.append(f"  {'KV ' + tier.name:<10} {size}: room for {room}{holds}")
    return lines


def sampling_summary(info: ExecutorInfo) -> list[str]:
    """The sampling defaults of the model and of the operator, if there are any."""
    lines = []
    if info.sampling_defaults:
        listed = ", ".join(f"{name} {value:g}" for name, value in info.sampling_defaults.items())
        lines.append(f"  {'sampling':<10} {listed} (where a request says nothing)")
    if info.max_new_tokens is not None:
        lines.append(f"  {'answers':<10} at most {info.max_new_tokens:,} tokens")
    return lines


def ranker_summary(model: ServedModel) -> list[str]:
    """What ranks the documents of chats, if a model does."""
    if model.ranker is None:
        return []
    return [f"  {'ranking':<10} documents of chats by {model.ranker.model.name}"]


def policy_summary(policy: PolicyName) -> list[str]:
    """Which key goes first, where that is not simply the order of arrival."""
    if policy != "fair":
        return []
    return [f"  {'policy':<10} fair: the key served least goes first (--policy fcfs: in order)"]


def speculation_summary(speculation: Speculation | None) -> list[str]:
    """What guesses tokens ahead, and how many, if anything does."""
    if speculation is None:
        return []
    source, most = str(speculation.method), speculation.num_speculative_tokens
    if speculation.model is not None:
        source += f" ({PurePath(speculation.model).name})"
    if not speculation.adaptive:
        depth = f"always {most} tokens ahead"
    else:
        depth = f"up to {most} tokens ahead, as many as pay (automatic)"
    return [f"  {'guessing':<10} {source}: {depth}"]


def targets_summary(targets: Sequence[str]) -> list[str]:
    """What is watched, if anything is."""
    if not targets:
        return []
    return [f"  {'targets':<10} {', '.join(targets)}, shown at /v1/targets"]


def traces_summary(endpoint: str | None, slow_ttft: float | None) -> list[str]:
    """Where traces go, if they are made."""
    if endpoint is None:
        return []
    which = "" if slow_ttft is None else f", of failures and TTFT from {slow_ttft:g} s on"
    return [f"  {'traces':<10} to {endpoint}{which}"]


def curl_line(
    model: ServedModel, url: str, *, asks_for_keys: bool = False, certificate: str | None = None
) -> str:
    """A streaming request, quoted for a POSIX shell."""
    body: dict[str, object] = {"model": model.name, "stream": True}
    if model.chats:
        path, question = "chat/completions", "Why is decode slower than prefill?"
        body["messages"] = [{"role": "user", "content": question}]
    else:
        path = "completions"
        body.update(prompt="The two strokes of inference are", max_tokens=64)
    data = shlex.quote(json.dumps(body))
    trust = "" if certificate is None else f" --cacert {shlex.quote(certificate)}"
    if url.startswith("unix:"):
        trust += f" --unix-socket {shlex.quote(url.removeprefix('unix:'))}"
        url = f"{'http' if certificate is None else 'https'}://localhost"
    key = ' -H "Authorization: Bearer $OPENAI_API_KEY"' if asks_for_keys else ""
    return (
        f"curl -N{trust} {shlex.quote(f'{url}/v1/{path}')}{key} -H 'Content-Type: application/json'"
        f" -d {data}"
    )
