"""What does not work beside recurrent layers.

And what does nothing without them.
"""

from __future__ import annotations

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError

# What drafts beside recurrent layers: early exit would need states of its own, heads are not tried.
DRAFTING = ("ngram", "suffix", "draft", "mtp", "synthetic")


def check_states(config: EngineConfig) -> None:
    """Refuse what a model with recurrent layers cannot be served with.

    Raises:
        ConfigError: It names the flag.
    """
    speculation = config.speculation.resolve()
    if speculation is not None and speculation.method not in DRAFTING:
        raise ConfigError(
            f"this model has recurrent layers, beside which method {speculation.method} of"
            " --speculation does not draft",
            hint="use one of " + ", ".join(DRAFTING),
        )
    if config.transfer.is_used:
        raise ConfigError(
            "this model has recurrent layers, whose states --prefill-engines and --role do not hand"
            " on",
            hint="leave them out",
        )


def check_without_states(config: EngineConfig) -> None:
    """Refuse what only a model with recurrent layers can be served with.

    Raises:
        ConfigError: It names the flag.
    """
    flags = {
        "--state-spacing": config.cache.state_spacing is not None,
        "--mamba-ssm-cache-dtype": config.cache.mamba_ssm_cache_dtype != "auto",
    }
    for flag, is_given in flags.items():
        if is_given:
            raise ConfigError(
                f"this model has no recurrent layers, whose states {flag} is about",
                hint=f"leave {flag} out",
            )
