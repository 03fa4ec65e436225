#!/bin/sh
# Everything that wants a GPU, in one call: correctness against the CPU, then speed against the
# roofline and transformers. By default, on cuda, into benchmarks/gpu/results:
#     sh benchmarks/gpu/session.sh [DEVICE] [RESULTS_FOLDER]
set -eu
cd "$(dirname "$0")/../.."
device=${1:-cuda}
results=${2:-benchmarks/gpu/results}
python=${PYTHON:-python3}
export PYTHONPATH=src:. PYTHONUNBUFFERED=1
"$python" -m benchmarks.gpu.correctness --device "$device" --results "$results"
"$python" -m benchmarks.gpu.speed --device "$device" --results "$results"
