"""``twostroke generate``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.cli.flags import (
    CacheFlags,
    FormFlags,
    FormOptions,
    ModelFlags,
    SamplingFlags,
    SamplingOptions,
    SpeculationFlags,
    TemplateFlags,
    engine_config,
)
from twostroke.core.errors import ConfigError

if TYPE_CHECKING:
    from twostroke.cli.session import Session


def generate(
    # "-" must not be taken for a flag.
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    url: str | None = None,
    raw: Annotated[bool, Parameter(negative=())] = False,
    system: str | None = None,
    sampling: SamplingFlags | None = None,
    form: FormFlags | None = None,
    model_options: ModelFlags | None = None,
    template: TemplateFlags | None = None,
    cache: CacheFlags | None = None,
    speculation: SpeculationFlags | None = None,
) -> None:
    """Answer one prompt, in this process or on a server; the text streams to stdout.

    Args:
        prompt: The prompt; - reads it from stdin.
        url: Ask the OpenAI-compatible server there instead of loading a model (key from
            OPENAI_API_KEY).
        raw: Continue the prompt as it is, without the model's chat template.
        system: System prompt.
    """
    import asyncio

    from twostroke.cli.session import not_utf8, open_session, refuse_surrogates

    try:
        text = sys.stdin.read() if prompt == "-" else prompt
    except UnicodeDecodeError as error:
        raise not_utf8() from error
    sampling = sampling or SamplingOptions()
    form = form or FormOptions()
    refuse_surrogates(text, system, *sampling.stop, form.regex, *form.choice)
    form.as_fields()  # what cannot be read is said before the model is loaded
    session = open_session(
        engine_config(None, model_options, cache, speculation=speculation, template=template),
        url,
        loads=any(each is not None for each in (cache, speculation, template)),
    )
    try:
        asyncio.run(print_answer(session, text, system, raw, sampling, form))
    finally:
        session.close()


async def print_answer(
    session: Session,
    prompt: str,
    system: str | None,
    raw: bool,
    sampling: SamplingOptions,
    form: FormOptions | None = None,
) -> None:
    """Stream the answer to stdout, with a newline at its end."""
    fields = sampling.as_fields() | (form or FormOptions()).as_fields()
    if system and (raw or not session.chats):
        raise ConfigError(
            "--system needs a chat template", hint="leave out --raw, or write it into the prompt"
        )
    if raw or not session.chats:
        pieces = session.complete(prompt, fields)
    else:
        messages = [{"role": "system", "content": system}] if system else []
        pieces = session.chat([*messages, {"role": "user", "content": prompt}], fields)
    ended = True
    async for piece in pieces:
        sys.stdout.write(piece.text)
        sys.stdout.flush()
        ended = piece.text.endswith("\n") if piece.text else ended
    if not ended:
        sys.stdout.write("\n")
