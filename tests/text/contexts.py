"""Chats, documents and templates for the tests of prompts that are put together."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from tests.text.tiny_tokenizers import byte_level
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.context import Assembly, assemble
from twostroke.text.context_material import ContextOptions
from twostroke.text.context_report import Strategy
from twostroke.text.documents import Document
from twostroke.text.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# Without special tokens at the seams, tokens of pieces and of their sum can differ.
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
# As Gemma's: no system role. As Command-R's: a place for documents.
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
OWN_DOCUMENTS = (
    "{% for d in documents or [] %}<{{ d.doc_id }}={{ d.title }}:{{ d.text }}>{% endfor %}" + CHATML
)
TEMPLATES = {
    "chatml": CHATML,
    "plain": PLAIN,
    "no_system": NO_SYSTEM,
    "own_documents": OWN_DOCUMENTS,
}
DROPPING = [strategy for strategy in get_args(Strategy) if strategy != "error"]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level())


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[name])


def put_together(
    messages: list[dict[str, Any]],
    documents: list[Document] | None = None,
    *,
    hard_limit: int,
    **options: Any,
) -> Assembly:
    source = template(options.pop("template", "chatml"))
    soft_limit = options.pop("soft_limit", None)
    return assemble(
        ChatEncoder(source, tokenizer()),
        messages,
        documents or [],
        ContextOptions(**options),
        hard_limit=hard_limit,
        soft_limit=soft_limit,
    )


def text_of(assembly: Assembly) -> str:
    return tokenizer().decode(assembly.token_ids, skip_special_tokens=False)


def chat(turns: int, system: str | None = "Be brief.") -> list[dict[str, Any]]:
    """Alternating messages whose words say which they are."""
    messages = [{"role": "system", "content": system}] if system else []
    for i in range(turns):
        messages += [
            {"role": "user", "content": f"question{i}"},
            {"role": "assistant", "content": f"answer{i}"},
        ]
    return [*messages, {"role": "user", "content": "the last question"}]


def size(messages: list[dict[str, Any]], documents: list[Document] | None = None) -> int:
    """Tokens of a prompt from which nothing is left out."""
    return len(put_together(messages, documents, hard_limit=10**6).token_ids)


def kept_turns(assembly: Assembly, turns: int) -> list[int]:
    text = text_of(assembly)
    assert all((f"question{i}<" in text) == (f"answer{i}<" in text) for i in range(turns)), (
        "half a turn"
    )
    return [i for i in range(turns) if f"question{i}<" in text]


def docs(*texts: str, scores: tuple[float, ...] | None = None) -> list[Document]:
    return [
        Document(text=text, id=f"d{i}", score=None if scores is None else scores[i])
        for i, text in enumerate(texts)
    ]
