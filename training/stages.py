"""The stages of training: which kinds of examples are drawn, and how much of them is learnt."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """What examples are drawn from until `until` (progress in [0, 1]); the rest: distractors.

    `mixed` asks mixtures of questions; `stubs` is the share of answers cut short where they can be,
    `bare` the share of those left out altogether (their item is all there is to learn), `plain`
    that of phrasings without noise.
    """

    until: float
    single: float
    mixed: float
    copying: float
    system: float
    multi_turn: float
    stubs: float
    bare: float
    plain: float


# First which item a question wants; then the answers (and copying is kept up, which `copying.py`
# taught); then the two together (an answer's first tokens say which it is; whole answers would
# drown them); then all else. The last stage is the learning rate's later falls, on first tokens
# above all: most of what is still wrong is another item's answer.
MIX = (
    Stage(
        0.074,
        single=0.55,
        mixed=0.35,
        copying=0.10,
        system=0.00,
        multi_turn=0.00,
        stubs=1.00,
        bare=1.0,
        plain=0.2,
    ),
    Stage(
        0.203,
        single=0.60,
        mixed=0.14,
        copying=0.10,
        system=0.12,
        multi_turn=0.02,
        stubs=0.40,
        bare=0.6,
        plain=0.2,
    ),
    Stage(
        0.395,
        single=0.53,
        mixed=0.19,
        copying=0.06,
        system=0.13,
        multi_turn=0.06,
        stubs=0.72,
        bare=0.5,
        plain=0.1,
    ),
    Stage(
        0.564,
        single=0.50,
        mixed=0.16,
        copying=0.06,
        system=0.15,
        multi_turn=0.09,
        stubs=0.70,
        bare=0.4,
        plain=0.1,
    ),
    Stage(
        0.868,
        single=0.50,
        mixed=0.25,
        copying=0.03,
        system=0.11,
        multi_turn=0.08,
        stubs=0.85,
        bare=0.1,
        plain=0.1,
    ),
    Stage(
        1e9,
        single=0.55,
        mixed=0.27,
        copying=0.02,
        system=0.09,
        multi_turn=0.05,
        stubs=0.85,
        bare=0.1,
        plain=0.1,
    ),
)
