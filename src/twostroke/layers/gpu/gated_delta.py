"""What a layer of the gated delta rule computes between its products, on a GPU."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from twostroke.kernels.triton.delta_chunks import finish_chunks, pass_chunks, solve_chunks
from twostroke.kernels.triton.gated_delta import apply_delta, convolve_tokens
from twostroke.layers.gpu.operators import GpuOperators
from twostroke.layers.recurrent_state import (
    CHUNK,
    MANY_TOKENS,
    LayerStates,
    Runs,
    write_further_copies,
)
from twostroke.model_spec.recurrent_forms import DeltaForm

_CHANNELS = 128  # of a program
MAX_TILE = 128 * 128  # of a head's state, which a program holds in registers
_VALUES = 16  # columns of it, beside which a chunk of a prompt has room


class GpuDelta:
    """Two launches for all tokens of all requests, three more for prompts; states change in place.

    Args:
        convolution: ``[channels, kernel]``.
        log_rates, bias: Of the decays, ``[value_heads]``.
        norm: ``[value_dim]``.
    """

    def __init__(
        self,
        form: DeltaForm,
        convolution: Tensor,
        log_rates: Tensor,
        bias: Tensor,
        norm: Tensor,
        eps: float,
        operators: GpuOperators,
    ) -> None:
        self._form, self._operators, self._eps = form, operators, eps
        self._convolution = convolution.contiguous()
        self._log_rates, self._bias, self._norm = log_rates, bias, norm
        group = form.value_heads // form.key_heads
        self._sizes = form.value_heads, group, form.key_dim, form.value_dim, *_tiles(form)

    @staticmethod
    def can_run(form: DeltaForm) -> bool:
        """Whether a head's state fits a program."""
        key, value = _tiles(form)
        return key * value <= MAX_TILE and form.kernel > 1

    def __call__(self, inputs: Tensor, gates: Tensor, states: LayerStates, layer: int) -> Tensor:
        """Normalized and gated outputs, ``[tokens, values]`` in the inputs' dtype.

        Args:
            inputs: The first product's outputs, ``[tokens, channels + values]``.
            gates: Float32 ``[tokens, 2 * value_heads]``, inputs of rates and then of decays.
        """
        form, overlaps = self._form, self._operators.overlaps
        tokens, channels = len(inputs), form.channels
        active = torch.empty(tokens, channels, dtype=inputs.dtype, device=inputs.device)
        out = torch.empty(tokens, form.values, dtype=inputs.dtype, device=inputs.device)
        runs = states.runs
        requests = len(runs.firsts) - 1
        if not requests:
            return out
        history, matrices = states.storage(layer)
        convolve_tokens[requests, triton.cdiv(channels, _CHANNELS)](
            inputs, history, self._convolution, active, runs.segments, runs.firsts, channels,
            inputs.stride(0), form.kernel, _CHANNELS, overlaps, num_warps=4, launch_pdl=overlaps,
        )  # fmt: skip
        gates, gate = gates.contiguous(), inputs[:, channels:]
        apply_delta[requests, form.value_heads](
            active, gates, self._log_rates, self._bias, gate,
            self._norm, matrices, out, runs.segments, runs.firsts, active.stride(0),
            inputs.stride(0), self._eps, form.key_dim**-0.5, *self._sizes, MANY_TOKENS, overlaps,
            num_warps=8, launch_pdl=overlaps,
        )  # fmt: skip
        if len(runs.chunks):
            self._take_chunks(active, gates, gate, matrices, out, runs)
        write_further_copies(states, [layer])
        return out

    def _take_chunks(
        self, active: Tensor, gates: Tensor, gate: Tensor, matrices: Tensor, out: Tensor, runs: Runs
    ) -> None:
        """Write the outputs and states of requests with many tokens, see ``delta_chunks``."""
        form, own = self._form, self._operators
        rows, heads, device = len(runs.chunks) * CHUNK, form.value_heads, active.device
        looked_up = torch.empty(rows, heads, form.key_dim, dtype=active.dtype, device=device)
        added = torch.empty(rows, heads, form.value_dim, dtype=active.dtype, device=device)
        decays = torch.empty(rows, heads, device=device)
        product = own.product_type(active.dtype)
        solve_chunks[len(runs.chunks), heads](
            active, gates, self._log_rates, self._bias, runs.chunks, looked_up, added, decays,
            active.stride(0), *self._sizes, CHUNK, product, own.overlaps, num_warps=8,
            launch_pdl=own.overlaps,
        )  # fmt: skip
        value_tile = self._sizes[-1]
        values = min(_VALUES, value_tile)
        splits = triton.cdiv(form.value_dim, values)
        pass_chunks[len(runs.firsts) - 1, heads, splits](
            active, matrices, out, runs.segments, runs.firsts, runs.chunk_firsts, looked_up, added,
            decays, active.stride(0), form.key_dim**-0.5, *self._sizes[:-1], values, CHUNK,
            MANY_TOKENS, product, own.overlaps, num_warps=8, num_stages=1,
            launch_pdl=own.overlaps,
        )  # fmt: skip
        finish_chunks[len(runs.chunks), heads](
            gate, self._norm, out, runs.chunks, gate.stride(0), self._eps, heads, form.value_dim,
            value_tile, CHUNK, own.overlaps, num_warps=4, launch_pdl=own.overlaps,
        )  # fmt: skip


def _tiles(form: DeltaForm) -> tuple[int, int]:
    key, value = map(triton.next_power_of_2, (form.key_dim, form.value_dim))
    return int(key), int(value)
