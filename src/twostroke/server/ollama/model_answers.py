"""What this API says of the served model: its names, its size, what it can do."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from msgspec import Meta, Struct

from twostroke.model_spec.spec import ModelSpec
from twostroke.questions.model_facts import ModelFacts
from twostroke.server.ollama.generation_answer import utc_text
from twostroke.server.ollama.names import tagged
from twostroke.server.ollama.option_fields import CHAT_NAMES
from twostroke.server.state.served_model import ServedModel

UNKNOWN = "unknown"
# The served model is never unloaded.
NEVER = "9999-12-31T23:59:59Z"
_LETTERS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


class ModelDetails(Struct, kw_only=True):
    """Texts are empty where nothing is known."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] | None = None
    parameter_size: str = ""
    quantization_level: str = ""


class ListedModel(Struct, kw_only=True):
    """One name of the model; ``size`` is that of its weights in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class ListedModels(Struct):
    models: list[ListedModel]


class RunningModel(Struct, kw_only=True):
    """One name of the model; ``size`` is that of its weights and KV blocks in bytes."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(Struct):
    models: list[RunningModel]


class ShownModel(Struct, kw_only=True):
    """The model; ``template`` is Jinja, ``capabilities`` are what requests may ask of it here."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: Annotated[dict[str, Any], Meta(description="As of GGUF files.")]
    capabilities: list[str]
    modified_at: str


def listed_model(model: ServedModel, name: str, facts: ModelFacts | None) -> ListedModel:
    """What ``/api/tags`` says of a name."""
    return ListedModel(
        name=tagged(name),
        model=tagged(name),
        modified_at=utc_text(model.created),
        size=model.client.info.weight_bytes,
        digest=_digest(model),
        details=details_of(facts),
    )


def running_model(model: ServedModel, name: str, facts: ModelFacts | None) -> RunningModel:
    """What ``/api/ps`` says of a name."""
    info = model.client.info
    size = info.weight_bytes + info.num_blocks * info.block_bytes
    return RunningModel(
        name=tagged(name),
        model=tagged(name),
        size=size,
        digest=_digest(model),
        details=details_of(facts),
        expires_at=NEVER,
        size_vram=0 if info.device.startswith("cpu") else size,
        context_length=info.max_model_len,
    )


def shown_model(model: ServedModel, name: str, facts: ModelFacts | None) -> ShownModel:
    """What ``/api/show`` says."""
    defaults = model.client.info.sampling_defaults
    names = {chat_name: option for option, chat_name in CHAT_NAMES.items()}
    lines = [f"{names.get(field, field):<30} {value:g}" for field, value in defaults.items()]
    if (limit := model.client.info.max_new_tokens) is not None:
        lines.append(f"{'num_predict':<30} {limit}")
    templates = model.tokenizer.chat_templates
    return ShownModel(
        modelfile="\n".join([f"FROM {name}", *(f"PARAMETER {line}" for line in lines)]),
        parameters="\n".join(lines),
        template=templates.get("default") or next(iter(templates.values()), ""),
        details=details_of(facts),
        model_info=_model_info(model, name, facts),
        capabilities=_capabilities(model),
        modified_at=utc_text(model.created),
    )


def details_of(facts: ModelFacts | None) -> ModelDetails:
    """Family, size and format of the weights."""
    if facts is None:
        return ModelDetails()
    family = facts.spec.model_type
    return ModelDetails(
        format="safetensors",
        family=family,
        families=[family],
        parameter_size=short_number(facts.spec.num_parameters),
        quantization_level=facts.weights.upper(),
    )


def short_number(count: int) -> str:
    """Such as 7.3M or 70B."""
    for unit, letter in _LETTERS:
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + letter
    return str(count)


def _capabilities(model: ServedModel) -> list[str]:
    info = model.client.info
    has = {
        "completion": info.generates,
        "tools": info.generates and model.chats and model.tool_family is not None,
        "thinking": info.generates and model.reasoning_parser is not None,
        "embedding": info.pooling.size > 0,
    }
    return [name for name, there in has.items() if there]


def _model_info(model: ServedModel, name: str, facts: ModelFacts | None) -> dict[str, Any]:
    """Under the names that GGUF files have. The context is the one that requests may use."""
    family = UNKNOWN if facts is None else facts.spec.model_type
    info = model.client.info
    values = {
        "general.architecture": family,
        "general.basename": name,
        f"{family}.context_length": info.max_model_len,
        f"{family}.vocab_size": info.vocab_size,
    }
    if info.pooling.size:
        values[f"{family}.embedding_length"] = info.pooling.size
    return values if facts is None else values | _shape(facts.spec)


def _shape(spec: ModelSpec) -> dict[str, Any]:
    family = spec.model_type
    values: dict[str, Any] = {
        "general.parameter_count": spec.num_parameters,
        f"{family}.block_count": spec.num_layers,
        f"{family}.embedding_length": spec.hidden_size,
    }
    attention = next((layer.attention for layer in spec.layers if layer.attention), None)
    if attention is not None:
        values[f"{family}.attention.head_count"] = attention.heads
        values[f"{family}.attention.head_count_kv"] = attention.kv_heads
    return values


def _digest(model: ServedModel) -> str:
    """A digest in the form of a manifest's; equal for equal weights."""
    return hashlib.sha256(model.client.info.model_id.encode()).hexdigest()
