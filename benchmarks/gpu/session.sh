#!/bin/sh
# Everything that wants a GPU, in three runs of at most 8 minutes each:
#     sh benchmarks/gpu/session.sh RESULTS_FOLDER first|second|third|PART ...
# first: tokens against the CPU's, and of recorded passes against eager ones; second: models against
# the roofline, the sealed prediction and transformers; third: kernels one by one. By default all.
# A part that fails, or takes longer than its limit, does not stop the others; each writes a row as
# soon as it has it. `python -m benchmarks.gpu.page` makes a page of benchmarks/gpu/results.
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH=src:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
"$python" -c 'import msgspec, numpy, psutil, safetensors, tokenizers, torch, triton
import sys; sys.exit(not torch.cuda.is_available() and "PyTorch sees no GPU")' || exit 2
results=${1:-benchmarks/gpu/results}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- first second third
parts=
for each in "$@"; do
    case $each in
    first) parts="$parts kernels correctness" ;;
    second) parts="$parts speed models" ;;
    third) parts="$parts products attention latents draws rounded recurrent memory" ;;
    *) parts="$parts $each" ;;
    esac
done
# Seconds; those of a run are 470 at most.
limit_of() {
    case $1 in
    kernels) echo 240 ;;
    correctness | models) echo 220 ;;
    speed) echo 240 ;;
    products) echo 80 ;;
    attention) echo 110 ;;
    *) echo 55 ;;
    esac
}
# Tests side by side, where pytest can do that: most of the time goes into compiling.
workers=${WORKERS:-$("$python" -c 'import xdist' 2>/dev/null && echo 8)}
mkdir -p "$results"
status=0
for part in $parts; do
    echo "== $part, $(date +%T)"
    case $part in
    kernels)
        # Apart from the other tests' settings: a GPU's machine need not have all they import.
        set -- -m pytest -q -c /dev/null --rootdir=. --confcutdir=tests/layers/gpu \
            --import-mode=importlib -p no:cacheprovider ${workers:+-n "$workers"} \
            --ignore=tests/layers/gpu/test_offline.py tests/layers/gpu
        ;;
    *) set -- -m "benchmarks.gpu.$part" --results "$results" ;;
    esac
    # As if by Ctrl-C, so that a part can tell what it has; what does not end then is ended.
    timeout -s INT -k 10 "$(limit_of "$part")" "$python" "$@" || {
        status=$?
        echo "== $part: exit status $status"
    }
done
[ "$status" -eq 0 ]
