"""Which layers the one compiled call takes, by what they consist of. Without torch."""

from __future__ import annotations

import math

from twostroke.kernels.library import MAX_HEAD_DIM, MAX_KERNEL
from twostroke.model_spec.layer_specs import AttentionSpec, LayerSpec
from twostroke.model_spec.recurrent_forms import ConvolutionForm, DeltaForm, RecurrentForm


def runs_in_one_call(layer: LayerSpec) -> bool:
    """Whether bfloat16 layers of this kind run in one call with those around them on a CPU."""
    experts = layer.experts.linears if layer.experts else ()
    if any(linear.inputs % 2 for linear in (*layer.linears, *experts)):
        return False
    if layer.attention is not None and not _is_taken_attention(layer.attention):
        return False
    return layer.recurrent is None or _is_taken_recurrent(layer.recurrent.form)


def _is_taken_attention(attention: AttentionSpec) -> bool:
    sizes = attention.key_dim, attention.value_dim
    if (latent := attention.latent) is not None:
        sizes = latent.cached, latent.value
        if (attention.key_dim - attention.rotated) % 2:
            return False
    return all(size % 16 == 0 and size <= MAX_HEAD_DIM for size in sizes)


def _is_taken_recurrent(form: RecurrentForm | None) -> bool:
    if form is None or form.kernel > MAX_KERNEL:
        return False
    if isinstance(form, ConvolutionForm):
        return True
    if isinstance(form, DeltaForm):
        return form.key_dim % 2 == 0
    return form.most_step == math.inf and not form.norm_first and form.state % 2 == 0
