"""A real server on loopback answers a chat by transformers' code, as a naive loop does."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai

from tests.models.foreign_models import write_foreign
from tests.server.running import running_process, wait_until
from tests.server.scripted import TEMPLATE
from tests.text.tiny_tokenizers import byte_level

QUESTION: list[Any] = [{"role": "user", "content": "the quick brown fox"}]


def test_a_server_answers_a_chat_by_transformers_code(tmp_path: Path) -> None:
    backend = byte_level()
    write_foreign(tmp_path, "stablelm", vocab_size=backend.get_vocab_size(), eos_token_id=0)
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    flags = ["--port", "0", "--kv-cache-memory", "4MiB", "--model-impl", "auto"]
    with running_process("-m", "twostroke", "serve", str(tmp_path), *flags) as server:
        wait_until(lambda: "curl" in server.stderr, 120)  # transformers takes seconds to import
        with openai.OpenAI(base_url=server.url() + "/v1", api_key="-", max_retries=0) as client:

            def ask(index: int) -> tuple[str | None, int]:
                made = client.chat.completions.create(
                    model=str(tmp_path), messages=QUESTION, max_tokens=12, temperature=0.0
                )
                assert made.usage is not None
                return made.choices[0].message.content, made.usage.completion_tokens

            alone = ask(0)
            with ThreadPoolExecutor(4) as pool:
                together = list(pool.map(ask, range(4)))
        assert "stablelm runs by transformers' code" in server.stderr
        server.process.send_signal(signal.SIGTERM)
        assert server.end(30) == 0
    assert alone[1] > 0 and together == [alone] * 4
    assert alone[0] == _by_transformers(tmp_path, backend, alone[1])


def _by_transformers(folder: Path, backend: Any, count: int) -> str:
    """The greedy continuation by transformers' own generation."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = f"user: {QUESTION[0]['content']}\nassistant: "
    token_ids = backend.encode(prompt, add_special_tokens=False).ids
    made = model.generate(
        torch.tensor([token_ids]),
        attention_mask=torch.ones(1, len(token_ids), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    text: str = backend.decode(made[0, len(token_ids) :].tolist())
    return text
