"""How tokens are guessed ahead: the flags, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import Count, Must, check_fields, within
from twostroke.core.flags.json_flags import read_json_object
from twostroke.core.sampling_params import MAX_DRAFTS

Method = Literal["ngram", "suffix", "draft", "early-exit", "medusa", "mtp"]
# `synthetic` guesses nothing: it is for measuring, and so in --speculative-config only.
MethodName = Literal["ngram", "suffix", "draft", "early-exit", "medusa", "mtp", "synthetic"]
# vLLM's names of what is called otherwise here.
_METHOD_ALIASES = {
    "draft_model": "draft",
    "early_exit": "early-exit",
    "[ngram]": "ngram",
    "qwen3_next_mtp": "mtp",
    "qwen3_5_mtp": "mtp",
}
_FIELD_ALIASES = {
    "suffix_decoding_max_tree_depth": "max_match",
    "suffix_decoding_max_spec_factor": "max_factor",
    "suffix_decoding_min_token_prob": "min_probability",
    "prompt_lookup_max": "max_match",
    "prompt_lookup_min": "min_match",
}
_DEFAULT_DEPTH: dict[str, int] = {"ngram": 8, "suffix": 16, "synthetic": 4}
_MODEL_DEPTH = 4
Probability = Annotated[float, within(0, 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """One method and its settings.

    Attributes:
        num_speculative_tokens: Most drafts of a request in one step.
        adaptive: Whether fewer are made, or none, where fewer are faster; else always as many.
        model: With ``draft``: the smaller model, ``pilot-draft`` by default for ``pilot``. With
            ``medusa``: the folder of the heads, ``pilot-medusa`` by default for ``pilot``.
        exit_layer: With ``early-exit``: how many of the first layers guess; by default a quarter.
        min_match: With ``ngram``: fewest last tokens that must have come before.
        max_match: With ``ngram`` and ``suffix``: most last tokens that are compared.
        max_factor: With ``suffix``: drafts for each matching token, at most.
        min_probability: With ``suffix``: less likely drafts are not made.
        max_cached_tokens: With ``suffix``: how much of each tenant's earlier answers is kept.
        acceptance_rate: With ``synthetic``: how likely a draft is accepted if those before it were.
    """

    method: MethodName
    num_speculative_tokens: Annotated[int, within(1, MAX_DRAFTS)]
    adaptive: bool = True
    model: Annotated[str | None, Must("a model name or folder", bool)] = None
    exit_layer: Count | None = None
    min_match: Count = 2
    max_match: Count | None = None
    max_factor: Annotated[float, within(0, 64)] = 1.0
    min_probability: Probability = 0.1
    max_cached_tokens: Count = 2**16
    acceptance_rate: Probability = 0.7

    def __post_init__(self) -> None:
        check_fields(self, "--speculative-config: {}".format)
        for name, methods in (("model", ("draft", "medusa")), ("exit_layer", ("early-exit",))):
            if getattr(self, name) is not None and self.method not in methods:
                raise ConfigError(
                    f"--speculative-config: {name} belongs to method {' or '.join(methods)},"
                    f" but the method is {self.method}",
                    hint=f"leave {name} out",
                )

    @property
    def writes_kv(self) -> bool:
        """Whether drafting writes keys and values, and so needs slots."""
        return self.method in ("draft", "early-exit", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Guess tokens ahead and check several in one pass: the same answers, sooner."""

    speculation: Method | None = None
    """Guess tokens ahead: `ngram` quotes prompt and answer, `suffix` earlier answers too, `draft`
    asks a smaller model, `early-exit` the model's own first layers, `medusa` heads on its last
    hidden state, `mtp` the checkpoint's multi-token-prediction head. Answers stay the same, token
    by token.
    """
    speculative_config: str | None = None
    """The method and its settings, as JSON: `{"method": "ngram", "num_speculative_tokens": 5}`."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.resolve()

    def resolve(self) -> Speculation | None:
        """The method and its settings, if tokens are to be guessed at all."""
        settings = _read(self.speculative_config)
        method = self.speculation
        if method is not None and settings.setdefault("method", method) != method:
            raise ConfigError(
                f"--speculation is {method}, but --speculative-config says {settings['method']}",
                hint="give the method once",
            )
        return _resolve(settings) if settings else None


def _read(value: object) -> dict[str, Any]:
    """``--speculative-config`` as settings; Python callers may give a mapping."""
    if value is None:
        return {}
    example = '{"method": "ngram", "num_speculative_tokens": 5}'
    given = read_json_object("--speculative-config", value, example)
    if not given:
        message = "--speculative-config must be a JSON object with settings"
        raise ConfigError(message, hint=f"write it as {example}")
    settings = {_FIELD_ALIASES.get(name, name): setting for name, setting in given.items()}
    if "method" not in settings and "model" in settings:  # as in vLLM: a model drafts
        settings["method"] = "draft"
    if isinstance(method := settings.get("method"), str):
        settings["method"] = _METHOD_ALIASES.get(method, method)
    return settings


def _resolve(settings: dict[str, Any]) -> Speculation:
    names = [item.name for item in fields(Speculation)]
    for name in settings:
        if name not in names:
            raise ConfigError(
                f"--speculative-config: unknown setting {name!r}",
                hint="known settings: " + ", ".join(names),
            )
    method = settings.get("method")
    depth = _DEFAULT_DEPTH.get(str(method), _MODEL_DEPTH)
    return Speculation(**{"method": method, "num_speculative_tokens": depth, **settings})


class DepthReason(str, Enum):
    """Why a request gets as many drafts as it does.

    ``FIXED``: always as many. ``ASKED``: the request allows no more.
    ``PAYS``: this many give the most tokens a second. ``DOES_NOT_PAY``: none do, and none are made
    for a while. ``CANNOT_PAY``: none would, were all accepted.
    ``TRIAL``: a few, to see how they fare; ``AWAITED``: this step verifies what a trial gave.
    ``NO_BUDGET``: what drafts may lose is spent.
    ``REMEASURE``: a step without drafts, to measure how long one takes.
    """

    FIXED = "fixed"
    ASKED = "asked"
    PAYS = "pays"
    DOES_NOT_PAY = "does_not_pay"
    CANNOT_PAY = "cannot_pay"
    TRIAL = "trial"
    AWAITED = "awaited"
    NO_BUDGET = "no_budget"
    REMEASURE = "remeasure"


class DepthChange(msgspec.Struct, frozen=True):
    """From this step on a request may get ``depth`` drafts at a time, for another reason or number.

    Attributes:
        gain: Tokens a second at the best depth, as a multiple of those without drafts, as estimated
            for the decision; 0 where nothing was.
        pause: Steps for which a pause was decided.
    """

    request_id: str
    depth: int
    reason: DepthReason
    gain: float = 0.0
    pause: int = 0
