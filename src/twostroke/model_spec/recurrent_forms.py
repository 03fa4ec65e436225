"""What a recurrent layer computes, by kind."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaForm:
    """The gated delta rule (arXiv:2412.06464), with a short convolution before it.

    Attributes:
        kernel: Tokens that the convolution sees.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Form:
    """A layer of Mamba-2 (arXiv:2405.21060).

    Attributes:
        groups: Heads of a group share what is written to and read from their states.
        state: Elements of a head's state for each of its ``head_dim`` values.
        kernel: Tokens that the convolution sees.
        norm_groups: Into how many parts the norm before the output divides; 0 is no norm.
        norm_first: That norm comes before the gate, not after it.
        least_step, most_step: Bounds of a token's step.
        activation: After the convolution, as ``config.json`` names it.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool
    bias: bool
    output_bias: bool
    norm_groups: int
    least_step: float
    most_step: float = math.inf
    norm_first: bool = False
    activation: str = "silu"

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: values, and what is written to and read from states."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class ConvolutionForm:
    """A gated convolution over the latest ``kernel`` tokens (LFM2), with or without biases."""

    kernel: int
    bias: bool


RecurrentForm = DeltaForm | Mamba2Form | ConvolutionForm
