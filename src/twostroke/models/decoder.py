"""A decoder-only transformer, put together from the branches of its family.

Inference only: plain tensors, no ``nn.Module``, no autograd.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from twostroke.distributed.ranks import Ranks
from twostroke.kernels.library import FORMATS
from twostroke.layers.attention.base import Attention
from twostroke.layers.compiled.decoder_pass import CompiledPass, compile_layers
from twostroke.layers.compiled.drafting import CompiledDrafting
from twostroke.layers.linear import Linear, TorchLinear, warn_of_exact
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import NO_LAYER_STATES, LayerStates, StateShape
from twostroke.layers.rotary import rotary_tables
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import Branch, BranchParts, PassInputs, asks_host
from twostroke.models.family import DecoderFamily
from twostroke.models.layer_inputs import LayerInputs
from twostroke.models.parameters import ParameterSource
from twostroke.models.token_tables import TokenTable
from twostroke.observability.profile import GEMM, LAYERS, NO_PROFILE, Profiler


class Decoder:
    """A decoder-only language model.

    Args:
        spec: What it consists of; one that ``check_runnable`` accepts.
        family: What its parts are called, and how they are made.
        parameters: The tensors that ``family.parameters(spec)`` lists, all of one dtype and on one
            device. They are taken out one by one, since a layer may keep another form of its
            weight, and two would not fit.
        max_length: Positions lie in ``[0, max_length)``.
        quantization: ``int8`` or ``int4`` rounds the weights of linear layers; bfloat16 on a CPU
            only.
        profiler: Measures the parts of a pass.
        ranks: The processes that have a share each; ``spec`` and ``parameters`` are of this one's.
    """

    def __init__(
        self,
        spec: ModelSpec,
        family: DecoderFamily,
        parameters: ParameterSource,
        max_length: int,
        quantization: str | None = None,
        profiler: Profiler = NO_PROFILE,
        ranks: Ranks | None = None,
    ) -> None:
        self.spec = spec
        self._profiler = profiler
        table = TokenTable(parameters, "embed", spec.vocab_size, ranks)
        self.device, self.dtype = table.device, table.dtype
        self.kernels = kernels = table.kernels()
        head = table if spec.tied else TokenTable(parameters, "head", spec.vocab_size, ranks)
        self._head = head.linear(quantization)
        # Tied and not rounded, one copy serves both.
        is_shared = spec.tied and (self._head.is_exact or table.is_kept)
        self._embedding = self._head if is_shared else table.rows()
        self._layer_inputs: LayerInputs | None = None
        if spec.layer_inputs:
            self._layer_inputs = LayerInputs(spec, parameters, quantization, kernels)
        self._norm = family.make_norm(parameters.pop("norm"), spec.norm_eps, kernels)
        # Rounded as the hidden states are, as in transformers.
        self._scale = torch.tensor(spec.embedding_scale, dtype=self.dtype, device=self.device)
        self._layers: list[list[Branch]] = []
        for index, layer in enumerate(spec.each_layer()):
            parts = BranchParts(
                index=index,
                make_norm=family.make_norm,
                norm_eps=spec.norm_eps,
                residual_scale=layer.residual_scale,
                source=parameters,
                quantization=quantization,
                kernels=kernels,
                profiler=profiler,
                ranks=ranks,
            )
            self._layers.append([kind.build(layer, parts) for kind in family.branches_of(layer)])
        # After it, only the rows that are wanted matter.
        self._last_mixing = [b for layer in self._layers for b in layer if b.mixes_tokens][-1]
        ropes = [(own.rope, own.rotated) for layer in spec.layers if (own := layer.attention)]
        self._rotary = rotary_tables(ropes, max_length, self.device, kernels)
        if quantization is not None:
            warn_of_exact([self._head, *self._linears()], quantization)
        self.compiled_pass = self._compile()

    def first_layers(self, count: int) -> Decoder:
        """This model ending after ``count`` layers; the two share their weights.

        Norm and head are the whole model's, and ``spec`` still describes that.
        """
        part = copy.copy(self)
        part._layers = self._layers[:count]
        part._last_mixing = [b for layer in part._layers for b in layer if b.mixes_tokens][-1]
        part.compiled_pass = part._compile()
        return part

    def compiled_drafting(self) -> CompiledDrafting | None:
        """Drafts in one call, or ``None`` where the kernels cannot run the whole model."""
        head = self._head.kernel_call
        if self.compiled_pass is None or self.kernels is None or head is None:
            return None
        if any(self.state_shapes) or self._layer_inputs is not None:
            return None  # a draft would change what recurrent layers keep, or lack inputs
        if not (self.spec.is_unscaled and isinstance(self._norm, RMSNorm)):
            return None
        if isinstance(self._embedding, TorchLinear):
            table = self._embedding.weight
        elif self._embedding is self._head and head.format == FORMATS["bfloat16"]:
            table = None  # the head's rows
        else:
            return None
        return CompiledDrafting(self.compiled_pass, self._norm, head, table, self.kernels)

    def _compile(self) -> CompiledPass | None:
        if self.kernels is None:
            return None
        compiled = [[branch.compiled() for branch in layer] for layer in self._layers]
        eps = self.spec.norm_eps
        return compile_layers(compiled, self._rotary, eps, self.kernels, self._profiler)

    @property
    def state_shapes(self) -> list[tuple[StateShape, ...]]:
        """The recurrent state of each layer: what a request keeps of it besides keys and values."""
        return [tuple(s for branch in layer for s in branch.state) for layer in self._layers]

    @property
    def asks_host(self) -> bool:
        return any(asks_host(branch) for layer in self._layers for branch in layer)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices as they are kept; norms and biases are too small to count."""
        own = [self._head, *([] if self._embedding is self._head else [self._embedding])]
        tables = own if self._layer_inputs is None else [*own, self._layer_inputs]
        return sum(part.nbytes for part in (*tables, *self._linears()))

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: Attention,
        rows: Tensor | None = None,
        states: LayerStates = NO_LAYER_STATES,
    ) -> Tensor:
        """Run ``token_ids`` [tokens] at ``positions`` [tokens] (int64).

        Tokens of many requests may be mixed; only ``attention`` and ``states`` know which belong
        together.

        Args:
            rows: Which tokens' states are wanted, int64 in rising order, by default all. What
                comes after the last attention is spared for the others: their keys and values are
                all that is read of them.
            states: States of recurrent layers, if there are any.

        Returns:
            Normed hidden states ``[rows, hidden]``.
        """
        with self._profiler.measure(LAYERS):
            x = self.embed(token_ids)  # [tokens, hidden]
            inputs = None if self._layer_inputs is None else self._layer_inputs(token_ids, x)
            cache = attention.kernel_cache
            if self.compiled_pass is not None and cache is not None:
                return self._norm(self.compiled_pass(x, positions, cache, rows, states, inputs))
            rotations = {how: table.rotation(positions) for how, table in self._rotary.items()}
            step = PassInputs(rotations, attention, states, inputs, rows, positions)
            hidden = Hidden(x)
            for layer in self._layers:
                for branch in layer:
                    hidden = branch(hidden, step, rows if branch is self._last_mixing else None)
            return hidden.normed(self._norm)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token: ``[rows, hidden]`` to float32 ``[rows, vocab]``."""
        with self._profiler.measure(GEMM):
            logits = self._head.wide(hidden)
        if self.spec.logit_scale != 1.0:
            logits *= self.spec.logit_scale
        if (cap := self.spec.logit_soft_cap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def embed(self, token_ids: Tensor) -> Tensor:
        x = self._embedding.weight_rows(token_ids)
        return x if self.spec.embedding_scale == 1.0 else x * self._scale

    def _linears(self) -> list[Linear]:
        return [linear for layer in self._layers for branch in layer for linear in branch.linears]
