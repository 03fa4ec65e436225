"""What `twostroke serve` prints once it is ready: where it listens, how to call it, what fits."""

from __future__ import annotations

import json
import shlex

from twostroke.core.byte_sizes import format_bytes
from twostroke.engine.executor import ExecutorInfo
from twostroke.observability.process import age_of_process
from twostroke.server.state.served_model import ServedModel
from twostroke.server.version import package_version


def ready_banner(model: ServedModel, url: str, *, asks_for_keys: bool = False) -> str:
    """Several lines, the last of which is a command that works when pasted.

    Args:
        asks_for_keys: The command sends ``$OPENAI_API_KEY``.
    """
    info = model.client.info
    return "\n".join(
        [
            (
                f"twostroke {package_version()} serves {model.name} on {info.device}, ready in"
                f" {age_of_process():.1f} s"
            ),
            *memory_summary(info),
            *sampling_summary(info),
            f"  {'API':<10} {url}/v1 (OpenAI), documented at {url}/docs",
            "",
            curl_line(model, url, asks_for_keys=asks_for_keys),
            "",
        ]
    )


def memory_summary(info: ExecutorInfo) -> list[str]:
    """Weights, KV blocks, the tokens they hold, and how many requests of maximum length that is."""
    tokens = info.num_blocks * info.block_size
    kv_cache = format_bytes(tokens * info.kv_bytes_per_token)
    # Floor: what is left over serves shorter requests only. A cache may hold less than one of
    # maximum length.
    fits = info.num_blocks // -(-info.max_model_len // info.block_size)
    share = f"{fits} requests" if fits != 1 else "1 request"
    return [
        f"  {'weights':<10} {format_bytes(info.weight_bytes)}",
        (
            f"  {'KV cache':<10} {kv_cache}: {info.num_blocks:,} blocks of {info.block_size},"
            f" {tokens:,} tokens, {share} of maximum length ({info.max_model_len:,})"
        ),
    ]


def sampling_summary(info: ExecutorInfo) -> list[str]:
    """The model's own sampling defaults, if it has any."""
    if not info.sampling_defaults:
        return []
    listed = ", ".join(f"{name} {value:g}" for name, value in info.sampling_defaults.items())
    return [
        f"  {'sampling':<10} {listed} (from generation_config.json, where a request says nothing)"
    ]


def curl_line(model: ServedModel, url: str, *, asks_for_keys: bool = False) -> str:
    """A streaming request, quoted for a POSIX shell."""
    body: dict[str, object] = {"model": model.name, "stream": True}
    if model.chats:
        path, question = "chat/completions", "Why is decode slower than prefill?"
        body["messages"] = [{"role": "user", "content": question}]
    else:
        path = "completions"
        body.update(prompt="The two strokes of inference are", max_tokens=64)
    data = shlex.quote(json.dumps(body))
    key = ' -H "Authorization: Bearer $OPENAI_API_KEY"' if asks_for_keys else ""
    return (
        f"curl -N {shlex.quote(f'{url}/v1/{path}')}{key} -H 'Content-Type: application/json' -d"
        f" {data}"
    )
