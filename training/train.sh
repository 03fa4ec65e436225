#!/bin/sh
# Makes pilot and pilot-draft from the question bank and measures both. On 2 cores training pilot
# took 62 minutes and its draft 3; measuring comes on top, some 5 minutes for both. Stopped, it goes
# on from the last checkpoint when called again. A new start: remove training/runs.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
weights=src/twostroke/pilot/weights
export OMP_WAIT_POLICY=PASSIVE PYTHONUNBUFFERED=1
# glibc's allocator takes a sixth of the time, all of it on one core: tcmalloc, where it is there.
for library in /usr/lib/*/libtcmalloc_minimal.so.4; do
  if [ -e "$library" ]; then export LD_PRELOAD="$library"; fi
done
[ -d training/runs/bank ] || "$python" -m training.prepare
same='import sys; from pathlib import Path; from training.bank import load_bank as load
sys.exit(load().digest != load(Path("training/runs/bank")).digest)'
"$python" -c "$same" || {
  echo "error: training/runs was begun with another bank than training/bank" >&2
  echo "hint: remove training/runs to train on the bank as it is now" >&2
  exit 1
}
"$python" -m training.train --size pilot
"$python" -m training.export --size pilot --target training/runs/untuned
untuned=training/runs/untuned
"$python" -m training.tuning.tune --base $untuned --target training/runs/tuned
"$python" -m training.tuning.blend --base $untuned --tuned training/runs/tuned \
  --target training/runs/blended
"$python" -m training.tuning.tune --base $untuned --start training/runs/blended \
  --checkpoint training/runs/tuning-again.pt --million-tokens 1.6 --kept 4 --peak-lr 2e-4 \
  --seed 5 --target training/runs/tuned-again
"$python" -m training.tuning.blend --base $untuned --tuned training/runs/tuned-again \
  --share 0.87 --target "$weights/pilot"
"$python" -m training.tuning.heads
"$python" -m training.train --size draft
"$python" -m training.export --size draft
"$python" -m training.evaluate
"$python" -m training.evaluate --model "$weights/pilot-draft"
"$python" -m training.tuning.evaluate
