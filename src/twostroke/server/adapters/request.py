"""Bodies of the routes of adapters, as vLLM has them."""

from __future__ import annotations

from pydantic import Field

from twostroke.server.openai.field_limits import RequestFields
from twostroke.server.openai.generation_fields import Label


class LoadAdapterRequest(RequestFields):
    """An adapter to load."""

    lora_name: Label = Field(description="The name by which requests will ask for it.")
    lora_path: Label = Field(description="A folder on the server, as PEFT's save_pretrained wrote.")
    base_model_name: Label | None = Field(
        None, description="The model that it is for, where the server has several."
    )


class UnloadAdapterRequest(RequestFields):
    """An adapter to forget."""

    lora_name: Label = Field(description="Its name.")
