"""Recurrent layers in one call of the compiled kernels each: bfloat16 activations on a CPU.

A call takes all requests' tokens through convolution, recurrence and gated norm, and changes their
states in place. Token by token in one order: a token's numbers depend neither on its company nor on
where its prompt is cut.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from twostroke.kernels.calls import ConvolutionCall, DeltaCall, Mamba2Call, MatrixCall
from twostroke.kernels.library import MAX_KERNEL, Library
from twostroke.kernels.pass_calls import CONVOLUTION, GATED_DELTA, MAMBA2
from twostroke.layers.recurrent_state import LayerState, LayerStates, write_further_copies
from twostroke.model_spec.recurrent_forms import DeltaForm, Mamba2Form


class CompiledRecurrent(Protocol):
    """What a recurrent layer computes between its products, in one call or in the compiled pass.

    Attributes:
        kind: A ``Mixer`` of ``cpp/kernels.hpp``.
        call: The kernel's arguments, but for the tokens; valid as long as this lives.
    """

    kind: int

    @property
    def call(self) -> ConvolutionCall | DeltaCall | Mamba2Call: ...

    def attach(self, states: LayerState) -> None:
        """Compute with these states of all slots, as ``LayerStates.storage`` has them."""
        ...


class CompiledConvolution:
    """What a layer with a short convolution computes between its products.

    Args:
        weight: ``[channels, kernel]``.
        bias: ``[channels]``.
    """

    kind = CONVOLUTION

    def __init__(self, weight: Tensor, bias: Tensor | None, library: Library) -> None:
        self._kept = _taps(weight, bias)
        self._library = library
        self.call = _convolution_call(*self._kept)

    @staticmethod
    def can_run(kernel: int) -> bool:
        """Whether the kernels have a convolution over this many tokens."""
        return kernel <= MAX_KERNEL

    def attach(self, states: LayerState) -> None:
        """See ``CompiledRecurrent``."""
        self.call.before = states[0].data_ptr()

    def __call__(self, inputs: Tensor, states: LayerStates, layer: int) -> Tensor:
        """``second * convolution(first * third)``, bfloat16 ``[tokens, channels]``.

        Args:
            inputs: The three in a row, bfloat16 ``[tokens, 3 * channels]``; changed, as the
                layer's states are.
        """
        self.attach(states.storage(layer))
        out = torch.empty(len(inputs), self.call.channels, dtype=torch.bfloat16)
        _set_inputs(self.call, inputs, states)
        self.call.out = out.data_ptr()
        self._library.gated_convolution(ctypes.byref(self.call))
        write_further_copies(states, [layer])
        return out


class CompiledDelta:
    """What a layer of the gated delta rule computes between its products.

    Args:
        convolution: ``[channels, kernel]``.
        log_rates: Rates of the decays, ``[value_heads]``.
        bias: Bias of the decays, ``[value_heads]``.
        norm: ``[value_dim]``.
    """

    kind = GATED_DELTA

    def __init__(
        self,
        form: DeltaForm,
        convolution: Tensor,
        log_rates: Tensor,
        bias: Tensor,
        norm: Tensor,
        eps: float,
        library: Library,
    ) -> None:
        self._form, self._library = form, library
        vectors = log_rates.float().exp(), bias.float(), norm.float()
        taps = _taps(convolution, None)
        self._kept = *taps, *vectors  # keeps alive what the call points to
        sizes = (form.value_heads, form.key_heads, form.key_dim, form.value_dim)
        self.call = DeltaCall(matrix=_matrix_call(_convolution_call(*taps), vectors, sizes, eps))

    @staticmethod
    def can_run(form: DeltaForm) -> bool:
        """Whether the kernels take such sizes."""
        return form.kernel <= MAX_KERNEL and form.key_dim % 2 == 0

    def attach(self, states: LayerState) -> None:
        """See ``CompiledRecurrent``."""
        _attach_matrix(self.call.matrix, states)

    def __call__(self, inputs: Tensor, gates: Tensor, states: LayerStates, layer: int) -> Tensor:
        """Normalized and gated outputs, bfloat16 ``[tokens, values]``; the states change.

        Args:
            inputs: The first product's outputs, bfloat16 ``[tokens, channels + values]``.
            gates: Float32 ``[tokens, 2 * value_heads]``, inputs of rates and then of decays.
        """
        form, call = self._form, self.call
        out = torch.empty(len(inputs), form.values, dtype=torch.bfloat16)
        gate = inputs[:, form.channels :]
        self.attach(states.storage(layer))
        _set_matrix(call.matrix, inputs, gate, states, out)
        call.gates = gates.data_ptr()
        self._library.gated_delta(ctypes.byref(call))
        write_further_copies(states, [layer])
        return out


class CompiledMamba2:
    """What a layer of Mamba-2 computes between its products.

    Args:
        convolution: ``[channels, kernel]``, and its bias ``[channels]``.
        rates: Float32 ``[heads]``, as ``skip`` and ``bias``.
        norm: ``[inner]``, where the layer has one.
    """

    kind = MAMBA2

    def __init__(
        self,
        form: Mamba2Form,
        convolution: tuple[Tensor, Tensor | None],
        rates: Tensor,
        skip: Tensor,
        bias: Tensor,
        norm: Tensor | None,
        eps: float,
        library: Library,
    ) -> None:
        self._form, self._library = form, library
        vectors = rates, bias, None if norm is None else norm.float()
        taps, skip = _taps(*convolution), skip.float().contiguous()
        self._kept = *taps, *vectors, skip
        sizes = (form.heads, form.groups, form.state, form.head_dim)
        self.call = Mamba2Call(
            matrix=_matrix_call(_convolution_call(*taps), vectors, sizes, eps),
            skip=skip.data_ptr(),
            norm_groups=form.norm_groups,
            least_step=form.least_step,
        )

    @staticmethod
    def can_run(form: Mamba2Form) -> bool:
        """Whether the kernels have all that such a layer needs."""
        is_plain = form.most_step == math.inf and not form.norm_first
        return is_plain and form.kernel <= MAX_KERNEL and form.state % 2 == 0

    def attach(self, states: LayerState) -> None:
        """See ``CompiledRecurrent``."""
        _attach_matrix(self.call.matrix, states)

    def __call__(self, inputs: Tensor, states: LayerStates, layer: int) -> Tensor:
        """Normalized and gated outputs, bfloat16 ``[tokens, inner]``; the states change.

        Args:
            inputs: The first product's outputs, bfloat16: gate, channels, steps.
        """
        form, call = self._form, self.call
        out = torch.empty(len(inputs), form.inner, dtype=torch.bfloat16)
        mixed, steps = inputs[:, form.inner :], inputs[:, form.inner + form.channels :]
        self.attach(states.storage(layer))
        _set_matrix(call.matrix, mixed, inputs, states, out)
        call.steps, call.steps_stride = steps.data_ptr(), steps.stride(0)
        self._library.mamba2(ctypes.byref(call))
        write_further_copies(states, [layer])
        return out


def _taps(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Float32 ``[kernel, channels]`` and ``[channels]``."""
    return weight.float().T.contiguous(), None if bias is None else bias.float()


def _convolution_call(taps: Tensor, bias: Tensor | None) -> ConvolutionCall:
    kernel, channels = taps.shape
    bias_address = None if bias is None else bias.data_ptr()
    return ConvolutionCall(
        taps=taps.data_ptr(), bias=bias_address, channels=channels, kernel=kernel
    )


def _matrix_call(
    convolution: ConvolutionCall,
    vectors: tuple[Tensor, Tensor, Tensor | None],
    sizes: Sequence[int],
    eps: float,
) -> MatrixCall:
    """A kernel call with rates, bias and norm; heads, groups, rows and columns."""
    rates, bias, norm = vectors
    heads, groups, rows, columns = sizes
    return MatrixCall(
        convolution=convolution,
        rates=rates.data_ptr(),
        bias=bias.data_ptr(),
        norm=None if norm is None else norm.data_ptr(),
        heads=heads,
        groups=groups,
        rows=rows,
        columns=columns,
        eps=eps,
    )


def _attach_matrix(call: MatrixCall, states: LayerState) -> None:
    before, matrices = states
    call.convolution.before, call.states = before.data_ptr(), matrices.data_ptr()
    call.bf16_states = matrices.dtype == torch.bfloat16


def _set_inputs(call: ConvolutionCall, x: Tensor, states: LayerStates) -> None:
    table = states.table
    call.segments, call.num_segments = table.data_ptr(), len(table)
    call.x, call.x_stride = x.data_ptr(), x.stride(0)


def _set_matrix(
    call: MatrixCall, x: Tensor, gate: Tensor, states: LayerStates, out: Tensor
) -> None:
    _set_inputs(call.convolution, x, states)
    call.gate, call.gate_stride, call.out = gate.data_ptr(), gate.stride(0), out.data_ptr()
