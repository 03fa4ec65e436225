"""From a decoder's hidden states to scores of pairs: by a head, or by the logits of two tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.core.pooling import Pooling, pack_vector
from twostroke.model_spec.config_fields import ConfigFields
from twostroke.model_spec.vectors.score_head import has_score_head, read_score_activation
from twostroke.models.parameters import Parameter
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.weights import SCORE_HEAD, StoredParameters


class ScoreHead:
    """A linear layer with one output, in float32.

    Args:
        weight: ``[1, hidden]``.
        activation: ``Sigmoid`` or ``Identity``.
    """

    def __init__(self, weight: Tensor, activation: str) -> None:
        self._weight, self._activation = weight, activation

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, hidden_size: int, device: torch.device
    ) -> ScoreHead | None:
        """The head of a checkpoint; ``None`` if ``config.json`` names none.

        Raises:
            ModelLoadError: It is missing or of the wrong shape, or it is no ranking model's.
        """
        if not has_score_head(checkpoint.config):
            return None
        activation = read_score_activation(ConfigFields(checkpoint.config))
        expected = [Parameter("score", ((SCORE_HEAD, (1, hidden_size)),))]
        files = TensorFiles(checkpoint.tensors())
        files.check(expected, lambda name: True)  # the others are the decoder's
        weight = StoredParameters(expected, files, torch.float32, device).pop("score")
        return cls(weight, activation)

    def __call__(self, state: Tensor) -> float:
        """The score of a pair whose last token has this state, float32 ``[hidden]``."""
        score = torch.mv(self._weight, state)[0]
        return float(torch.sigmoid(score) if self._activation == "Sigmoid" else score)


def finish_score(
    state: Tensor, pooling: Pooling, head: ScoreHead | None, logits: Callable[[Tensor], Tensor]
) -> bytes | None:
    """The score of a pooled state ``[hidden]``, packed; ``None`` if it is not finite.

    Args:
        logits: The model's language head: ``[1, hidden]`` to ``[1, vocab]``.
    """
    if pooling.score_token_ids is None:
        assert head is not None  # as the model's ability says
        score = head(state)
    else:
        # Softmax over two is a sigmoid of their difference.
        no, yes = logits(state[None])[0, list(pooling.score_token_ids)]
        score = float(torch.sigmoid(yes - no))
    return pack_vector([score]) if abs(score) < float("inf") else None
