"""What runs, by family: its layers, its features, and how they are computed.

Read from the registry and from what the readers of ``config.json`` know, without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from twostroke.checkpoints.gguf.architectures import ROWS
from twostroke.model_spec.config.families import FAMILIES, SAME, Family
from twostroke.model_spec.reader import DTYPES
from twostroke.model_spec.spec import ModelSpec
from twostroke.model_spec.vectors.encoder_spec import ENCODER_TYPES
from twostroke.models.one_call import runs_in_one_call
from twostroke.models.registry import MODEL_TYPES

HowItRuns = Literal["compiled", "layer by layer"]
# Of a checkpoint's tensors.
FORMATS = tuple(f"safetensors {name}" for name in DTYPES)
# Makes the families of transformers run by its code.
EXTRA = "pip install 'twostroke[transformers]'"
_RECURRENT = {"delta": "gated delta rule", "mamba2": "Mamba-2", "convolution": "short convolution"}
_WINDOWS = {
    "all": "windows",
    "even": "some windows",
    "pattern": "some windows",
    "upper": "windows if stated",
    "unrotated": "windows if stated",
    "stated": "windows if stated",
}
_ROTATED = {
    "none": "no rotation",
    "typed": "rotation if stated",
    "stated": "some layers unrotated",
    "window": "some layers unrotated",
}
# What a family's row does not say.
_OWN = {
    "gpt_oss": ("sinks",),
    "llama4_text": ("chunks",),
}


# Whose GGUF files are read, too; some go by the name of another family.
GGUF_TYPES = frozenset(
    {own.model_type for own in ROWS} | {"mistral", "olmo3", "deepseek_v2", "kimi_k2"}
)
_FORMATS = {"gpt_oss": ("MXFP4",)}  # of experts


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """One ``model_type`` that runs.

    Attributes:
        layers: What its layers consist of; where there are experts, some layers may have an MLP.
        features: In what they differ from Llama's.
        formats: How its tensors may be stored.
        path: The fastest way through its layers, in bfloat16 on a CPU; see ``path_of``.
    """

    model_type: str
    layers: tuple[str, ...]
    features: tuple[str, ...]
    formats: tuple[str, ...]
    path: HowItRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSurvey:
    """A checkpoint that runs.

    Attributes:
        path: How: ``compiled``, ``layer by layer`` or ``transformers``.
        device: On which, as ``--device auto`` chooses.
        dtype: In which precision, as ``--dtype auto`` chooses.
        stored: Precisions of the tensors in its files.
        weight_bytes: In that precision.
        kv_bytes_per_token: What one more token adds to the cache while no window is full.
        state_bytes: What a request's recurrent layers keep, whatever its length.
        context_length: Most tokens of prompt and output together.
    """

    model_type: str
    path: str
    device: str
    dtype: str
    stored: list[str]
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    context_length: int


def list_families() -> list[FamilyRow]:
    """All of them by name; encoders, which make vectors and scores only, last."""
    rows = []
    for model_type in sorted(MODEL_TYPES):
        family = FAMILIES[SAME.get(model_type, model_type)]
        layers, features = tuple(_layers(family)), tuple(_features(model_type, family))
        gguf = ("GGUF",) if model_type in GGUF_TYPES else ()
        formats = (*FORMATS, *_FORMATS.get(model_type, ()), *gguf)
        rows.append(FamilyRow(model_type, layers, features, formats, "compiled"))
    encoding = ("attention both ways", "MLP")
    for model_type in sorted(ENCODER_TYPES):
        rows.append(FamilyRow(model_type, encoding, ("vectors only",), FORMATS, "layer by layer"))
    return rows


def list_further_formats(rows: Iterable[FamilyRow]) -> dict[str, list[str]]:
    """The formats that not every family has, and the families that have them."""
    families: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: row.model_type):
        for name in row.formats:
            if name not in FORMATS:
                families.setdefault(name, []).append(row.model_type)
    return families


def path_of(spec: ModelSpec, dtype: str, *, kernels: bool) -> HowItRuns:
    """How a model runs.

    Args:
        dtype: Precision of weights and activations.
        kernels: Whether it runs on a CPU, and the compiled kernels are there.
    """
    whole = kernels and dtype == "bfloat16" and all(map(runs_in_one_call, spec.layers))
    return "compiled" if whole else "layer by layer"


def _layers(family: Family) -> Iterator[str]:
    if family.recurrent:
        yield _RECURRENT[family.recurrent]
    if family.unbounded:
        return
    if family.latent:
        yield "latent attention"
    elif family.recurrent == "delta":
        yield "gated attention"
    else:
        yield "attention beside MLP" if family.parallel else "attention"
    if not family.parallel:
        yield "experts" if family.experts else "MLP"


def _features(model_type: str, family: Family) -> Iterator[str]:
    if family.windows != "none":
        yield _WINDOWS[family.windows]
    yield from _OWN.get(model_type, ())
    if family.qk_norm or family.whole_norm:
        yield "norms over all heads" if family.whole_norm else "head norms"
    if family.norms > 2:
        yield "norms before and after"
    if family.rotated in _ROTATED:
        yield _ROTATED[family.rotated]
    if family.partial and not family.latent:
        yield "partial rotation"
    if family.interleaved:
        yield "interleaved rotation"
    if family.soft_caps:
        yield "soft caps"
    if family.multipliers or family.inner_multipliers:
        yield "multipliers"
