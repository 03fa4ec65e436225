"""Which of the names that a model's tensors go by a checkpoint uses, and what is beside the model.

The text part of an image model has a prefix, and its towers are no part of it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from twostroke.model_spec.spec import ModelSpec
from twostroke.models.branches.experts import ExpertsKind
from twostroke.models.family import DecoderFamily

# What the text part's names begin with in place of ``model.``, and its head.
_IMAGE_MODELS = {
    "model.language_model.": "lm_head.weight",
    "language_model.model.": "language_model.lm_head.weight",
}


def names_as_stored(
    family: DecoderFamily, spec: ModelSpec, names: Container[str]
) -> tuple[DecoderFamily, bool]:
    """The family by the names of a checkpoint.

    Returns:
        The family, and whether the checkpoint was saved without the part that has the head.
    """
    is_bare = False
    if family.embedding not in names:
        for prefix, head in _IMAGE_MODELS.items():
            renamed = replace(family.with_prefix(prefix), head=head)
            if renamed.embedding in names:
                family = renamed
        bare = family.with_prefix("")
        if family.embedding not in names and bare.embedding in names:
            family, is_bare = bare, True
    layers = [family.layer.format(index) for index in range(spec.num_layers)]
    return with_stored_experts(family, layers, names), is_bare


def with_stored_experts(
    family: DecoderFamily, layers: Sequence[str], names: Container[str]
) -> DecoderFamily:
    """The family with experts as a checkpoint stores them; names begin with ``layers``."""
    branches = [
        kind.as_stored(layers, names) if isinstance(kind, ExpertsKind) else kind
        for kind in family.branches
    ]
    return replace(family, branches=tuple(branches))


# Towers of files whose text part has no prefix (Qwen2-VL).
_TOWERS = ("visual.",)


class Beside:
    """Whether a tensor of a checkpoint belongs to something else than the text model.

    Towers, layers that draft, and what a layer that shares a cache does not use of its own.
    """

    def __init__(self, family: DecoderFamily, spec: ModelSpec) -> None:
        self._root = next((own for own in _IMAGE_MODELS if family.layer.startswith(own)), "")
        self._unused = {
            f"{family.layer.format(index)}self_attn.{name}.weight"
            for index, layer in enumerate(spec.each_layer())
            if layer.attention is not None and layer.attention.shares is not None
            for name in ("k_proj", "v_proj", "k_norm")
        }
        self._head, self._ignored = family.head, family.ignored

    def __call__(self, name: str) -> bool:
        if name.startswith((*self._ignored, *_TOWERS)) or name in self._unused:
            return True
        return not name.startswith(self._root) and name != self._head
