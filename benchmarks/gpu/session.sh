#!/bin/sh
# Everything that wants a GPU: correctness against the CPU, then speed against the roofline and
# transformers. A part that fails does not stop the others. Each part alone, or all:
#     sh benchmarks/gpu/session.sh [RESULTS_FOLDER] [PART ...]
# Parts: kernels, correctness, products, attention, latents, draws, rounded, recurrent, memory,
# speed.
set -u
cd "$(dirname "$0")/../.."
results=${1:-benchmarks/gpu/results}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- kernels correctness products attention latents draws rounded \
    recurrent memory speed
python=${PYTHON:-python3}
export PYTHONPATH=src:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$results"
status=0
for part in "$@"; do
    echo "== $part, $(date +%T)"
    case $part in
    kernels)
        # Apart from the other tests' settings: a GPU's machine need not have all they import.
        "$python" -m pytest -q -c /dev/null --rootdir=. --confcutdir=tests/layers/gpu \
            --import-mode=importlib -p no:cacheprovider ${WORKERS:+-n "$WORKERS"} tests/layers/gpu
        ;;
    *) "$python" -m "benchmarks.gpu.$part" --results "$results" ;;
    esac || status=1
done
exit $status
