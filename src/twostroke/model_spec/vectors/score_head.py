"""How a ranking model scores: by a head with one label, or by the logits of two tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from twostroke.core.config import ModelOptions
from twostroke.core.errors import ModelLoadError
from twostroke.core.pooling import PoolingAbility
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short

CLASSIFICATION = "ForSequenceClassification"
ACTIVATIONS = ("Sigmoid", "Identity")
# What Qwen3-Reranker and models trained like it answer.
NO_AND_YES = ("no", "yes")
ONLY_SCORES = ("this is a ranking model: it gives scores of pairs", "ask /v1/rerank or /v1/score")


def has_score_head(config: Mapping[str, Any]) -> bool:
    """Whether ``config.json`` names a model with a head for pairs of texts.

    Raises:
        ModelLoadError: The head has more than one label.
    """
    fields = ConfigFields(config)
    names = fields.items("architectures")
    if not names or not str(names[0]).endswith(CLASSIFICATION):
        return False
    count = len(fields.mapping("id2label")) or fields.integer("num_labels", 2)
    if count != 1:
        raise ModelLoadError(
            f"the model sorts texts into {count} labels, which is not supported",
            hint="serve a ranking model, whose head has one label",
        )
    return True


def read_score_activation(fields: ConfigFields) -> str:
    """The activation as sentence-transformers names it; a sigmoid where none is stated."""
    stated = fields.mapping("sentence_transformers").get("activation_fn")
    stated = stated or fields.raw.get("sbert_ce_default_activation_function")
    if stated is None:
        return "Sigmoid"
    name = str(stated).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ModelLoadError(
            f"config.json: the activation {short(stated)} of scores is not supported", hint=CHECK
        )
    return name


def with_scores(
    ability: PoolingAbility, config: Mapping[str, Any], options: ModelOptions
) -> PoolingAbility:
    """What a decoder gives that embeds like ``ability``, if it is a ranking model as well.

    A head's states were not trained for embeddings. Without a head, ``classifier_from_token`` in
    ``config.json`` (vLLM's name) gives the tokens that stand for no and yes.

    Raises:
        ModelLoadError: The head has several labels, or the tokens are no two texts.
    """
    if has_score_head(config):
        return PoolingAbility(score_kind="last", reason=ONLY_SCORES)
    if options.convert == "none" or options.runner == "generate":
        return ability
    stated = config.get("classifier_from_token")
    if stated is None and options.convert != "classify":
        return ability
    words = NO_AND_YES if stated is None else stated
    if len(words) != 2 or not all(isinstance(word, str) and 0 < len(word) < 100 for word in words):
        raise ModelLoadError(
            f"config.json: classifier_from_token is {short(stated)}",
            hint='it must be two tokens, such as ["no", "yes"]',
        )
    return structs.replace(ability, score_kind="last", score_tokens=(words[0], words[1]))
