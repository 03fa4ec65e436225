"""What the file of one ``model_type`` says: a checkpoint's names, and the branches of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twostroke.layers.norm import MakeNorm, RMSNorm
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.branches.base import BranchKind
from twostroke.models.layer_inputs import layer_input_parameters
from twostroke.models.parameters import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """A family of checkpoints.

    Attributes:
        branches: Kinds of branches in the order in which a layer adds them; each layer has those
            that are in its spec.
        layer: What the names of a layer's tensors begin with, with its index for ``{}``.
        embedding, norm, head: Names of tensors outside the layers.
        make_norm: Makes its norms.
        predictor: What the names of a multi-token-prediction head begin with; empty: none is read.
        ignored: What the names of tensors begin with that published files have and no pass needs.
    """

    branches: tuple[BranchKind, ...]
    layer: str = "model.layers.{}."
    embedding: str = "model.embed_tokens.weight"
    norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    make_norm: MakeNorm = RMSNorm
    predictor: str = ""
    ignored: tuple[str, ...] = ()

    def with_prefix(self, prefix: str) -> DecoderFamily:
        """This family, with ``prefix`` in place of ``model.`` in all names but the head's."""

        def renamed(name: str) -> str:
            return prefix + name[len(own) :] if name.startswith(own := "model.") else name

        names = (self.layer, self.embedding, self.norm)
        layer, embedding, norm = map(renamed, names)
        return replace(self, layer=layer, embedding=embedding, norm=norm)

    def branches_of(self, layer: LayerSpec) -> list[BranchKind]:
        return [kind for kind in self.branches if kind.is_in(layer)]

    def parameters(self, spec: ModelSpec) -> list[Parameter]:
        """What to load: fused parameters in terms of a checkpoint's names and shapes."""
        table = (spec.vocab_size, spec.hidden_size)
        parameters = [Parameter("embed", ((self.embedding, table),))]
        prefix = self.embedding.removesuffix("embed_tokens.weight")
        parameters += layer_input_parameters(spec, prefix)
        for index, layer in enumerate(spec.each_layer()):
            for kind in self.branches_of(layer):
                for parameter in kind.parameters(layer, spec.hidden_size):
                    parameters.append(parameter.under(f"{index}.", self.layer.format(index)))
        parameters.append(Parameter("norm", ((self.norm, (spec.hidden_size,)),)))
        if not spec.tied:
            parameters.append(Parameter("head", ((self.head, table),)))
        return parameters
