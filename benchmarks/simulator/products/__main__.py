"""Judges products in few bits, experts and latent attention; writes docs/validation/products.md.

    python -m benchmarks.simulator.products

Single-threaded, five minutes. Skips, and says so, where the public measurements are absent.
"""

from __future__ import annotations

import json
import sys
from itertools import chain

import cyclopts

from benchmarks.environment import ROOT
from benchmarks.simulator.data import DATA, present
from benchmarks.simulator.environment import environment
from benchmarks.simulator.products.judged import judged
from benchmarks.simulator.products.sheets import sheets_alone
from benchmarks.simulator.tables import by_model, figures_table

PAGE = ROOT / "docs" / "validation" / "products.md"
RECORD = ROOT / "benchmarks" / "results" / "products.json"
INTRODUCTION = """# Validation of the cost model: few bits, experts, latent attention

Written by `python -m benchmarks.simulator.products`; do not edit.
{environment}.
Other kernels: [kernels.md](kernels.md). Whole servers: [servers.md](servers.md).

Measured times are public: kernels as NVIDIA's AI Configurator project recorded them under vLLM and
under TensorRT-LLM (Apache-2.0; none of it is in this repository). An error is
`|estimated / measured - 1|`. Coefficients were fitted to other shapes than those that are judged.

- Products are those of models (`kernels.MODELS`) on 1, 2, 4 and 8 devices. Those in fp8 blocks are
  TensorRT-LLM's: vLLM's were timed with the host's share (60 to 300 us up to 2,048 rows).
- Experts are those of deployments on 16 devices at most, with a gate; the busiest device, where
  loads differ. `benchmarks/simulator/products/rows.py` says what is left out, and why.
- Latent attention includes its projections. Batches above 32 prompts are judged, not fitted.
- How large the errors were before: [the lab](../lab/cost-model.md#experts-and-few-bits).
"""


def main() -> int:
    """Judge all products, write their report."""
    if not present():
        print(f"skipped: no measurements at {DATA}", file=sys.stderr)
        return 0
    results = []
    for result in chain(judged(), sheets_alone()):
        print(f"{result.name}: {result.statistic} {result.value:.1%}", file=sys.stderr)
        results.append(result)
    lines = [INTRODUCTION.format(environment=environment()), *figures_table(results), ""]
    PAGE.write_text("\n".join([*lines, *by_model(results)]), encoding="utf-8")
    record = [
        {
            "what": each.name,
            "kept out": each.split,
            "rows": len(each.pairs),
            each.statistic: each.value,
            "target": each.target,
        }
        for each in results
    ]
    text = json.dumps({"environment": environment(), "results": record}, indent=1)
    RECORD.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
