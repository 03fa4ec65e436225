"""A multi-token-prediction head: one layer that guesses the token after the next one.

Section 2.2 of the report on DeepSeek-V3 (arXiv 2412.19437); Qwen3-Next and Qwen3.5 have one like
it. It reads the target's last state of a token and the embedding of the token that follows, each
normed, side by side. Its own last state, read in place of the target's, guesses one token further.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from twostroke.layers.attention.base import Attention
from twostroke.layers.linear import make_linear
from twostroke.layers.recurrent_state import NO_LAYER_STATES
from twostroke.layers.rotary import rotary_tables
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.decoder import Decoder
from twostroke.models.family import DecoderFamily
from twostroke.models.parameters import Parameter, ParameterSource, vector_parameter
from twostroke.observability.profile import NO_PROFILE


class MultiTokenPredictor:
    """The head of one target. Embedding and output matrix are the target's.

    Args:
        target: A model of ``family``, with attention in some layer.
        parameters: The tensors that ``predictor_parameters`` lists.
        max_length: Positions lie in ``[0, max_length)``.
        quantization: See ``Decoder``.

    Attributes:
        spec: A model of the head's layer alone; says what its keys and values are.
    """

    def __init__(
        self,
        target: Decoder,
        family: DecoderFamily,
        parameters: ParameterSource,
        max_length: int,
        quantization: str | None = None,
    ) -> None:
        self._target = target
        self.device, self.dtype = target.device, target.dtype
        self.spec = spec = predictor_spec(target.spec)
        [layer] = spec.layers
        make_norm, kernels = family.make_norm, target.kernels

        self._embedding_norm, self._hidden_norm, self._norm = (
            make_norm(parameters.pop(name), spec.norm_eps, kernels)
            for name in ("embedding_norm", "hidden_norm", "norm")
        )
        self._join = make_linear(parameters.pop("join"), None, quantization, kernels)
        parts = BranchParts(
            index=0,
            make_norm=make_norm,
            norm_eps=spec.norm_eps,
            residual_scale=layer.residual_scale,
            source=parameters,
            quantization=quantization,
            kernels=kernels,
            profiler=NO_PROFILE,
        )
        self._branches = [kind.build(layer, parts) for kind in family.branches_of(layer)]
        own = layer.attention
        assert own is not None  # as ``predictor_spec`` says
        ropes = [(own.rope, own.rotated)]
        self._rotary = rotary_tables(ropes, max_length, self.device, kernels)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its matrices."""
        linears = [linear for branch in self._branches for linear in branch.linears]
        return sum(linear.nbytes for linear in (self._join, *linears))

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        positions: Tensor,
        attention: Attention,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Read, at each of ``positions``, the last state there and the token that follows.

        Args:
            token_ids: ``[tokens]`` int64: each follows the position of its row.
            hidden: ``[tokens, hidden]``, normed.
            positions: ``[tokens]`` int64.
            attention: The attention over the head's own keys and values.
            rows: Which rows' states are wanted; by default all.

        Returns:
            Normed states ``[rows, hidden]``, from which the token after ``token_ids`` is guessed.
        """
        embedded = self._embedding_norm(self._target.embed(token_ids))
        x = Hidden(self._join(torch.cat([embedded, self._hidden_norm(hidden)], dim=-1)))
        rotations = {how: table.rotation(positions) for how, table in self._rotary.items()}
        step = PassInputs(rotations, attention, NO_LAYER_STATES)
        for branch in self._branches:
            x = branch(x, step, rows if branch.mixes_tokens else None)
        return x.normed(self._norm)[1]

    def likeliest(self, states: Tensor) -> list[int]:
        """The token that each of ``states`` [rows, hidden] guesses."""
        tokens: list[int] = self._target.logits(states).argmax(dim=-1).tolist()
        return tokens


def predictor_spec(target: ModelSpec) -> ModelSpec:
    """A model of one layer, which is like the target's last one with attention."""
    layer = [each for each in target.each_layer() if each.attention is not None][-1]
    return replace(target, layers=(replace(layer, count=1),))


def predictor_parameters(family: DecoderFamily, target: ModelSpec) -> list[Parameter]:
    """What to load, in terms of the checkpoint's names."""
    hidden, own = target.hidden_size, family.predictor
    parameters = [
        vector_parameter("embedding_norm", f"{own}pre_fc_norm_embedding", hidden),
        vector_parameter("hidden_norm", f"{own}pre_fc_norm_hidden", hidden),
        Parameter("join", ((f"{own}fc.weight", (hidden, 2 * hidden)),)),
        vector_parameter("norm", f"{own}norm", hidden),
    ]
    [layer] = predictor_spec(target).layers
    for kind in family.branches_of(layer):
        for parameter in kind.parameters(layer, hidden):
            parameters.append(parameter.under("0.", f"{own}layers.0."))
    return parameters
