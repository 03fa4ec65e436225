"""Weights between two trained ones: what tuning took away comes back sooner than what it gave goes.

    python -m training.tuning.blend --base DIR --tuned DIR --target DIR [--share 0.8]

Each weight is ``base + share * (tuned - base)``, as in Wortsman et al., "Robust fine-tuning of
zero-shot models" (2022).
"""

import argparse
from pathlib import Path

from safetensors.torch import load_file

from training.export import write_weights
from training.model import make_model
from training.tuning.tune import read_record

SHARE = 0.8


def blend(base: Path, tuned: Path, target: Path, share: float) -> None:
    """Writes a checkpoint with `share` of what tuning changed; 0 is the base, 1 the tuned one."""
    if not 0 <= share <= 1:
        raise SystemExit(f"error: a share of {share} is not between 0 and 1")
    old, new = (load_file(folder / "model.safetensors") for folder in (base, tuned))
    record = read_record(tuned)
    model = make_model(record["size"], seed=0)
    weights = {name: old[name].float().lerp(new[name].float(), share) for name in new}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    write_weights(model, target, {**record, "blended": share}, tuned)


def main() -> None:
    """Blends two checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="what tuning began with")
    parser.add_argument("--tuned", type=Path, required=True, help="what it gave")
    parser.add_argument("--target", type=Path, required=True, help="where weights go")
    parser.add_argument("--share", type=float, default=SHARE, help="of what tuning changed")
    args = parser.parse_args()
    blend(args.base, args.tuned, args.target, args.share)


if __name__ == "__main__":
    main()
