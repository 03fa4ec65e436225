"""Stream a chat from a running server with OpenAI's own client.

    python examples/stream_openai.py URL

Start the server with ``twostroke serve``, and install the client with ``pip install openai``.
"""

from __future__ import annotations

import argparse

from openai import OpenAI


def main(url: str, max_tokens: int) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="not needed", timeout=60) as client:
        model = client.models.list().data[0].id
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is a KV cache?"}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
            if chunk.usage is not None:  # only the last chunk has it
                print(
                    f"\n({chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens}"
                    f" out, from {model})"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "url", nargs="?", default="http://127.0.0.1:8000", help="where the server is, without /v1"
    )
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    main(options.url, options.max_tokens)
