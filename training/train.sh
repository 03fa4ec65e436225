#!/bin/sh
# Makes pilot and pilot-draft from the question bank and measures both. On 2 cores training pilot
# took 62 minutes and its draft 3; measuring comes on top, some 5 minutes for both. Stopped, it goes
# on from the last checkpoint when called again. A new start: remove training/runs.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
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
"$python" -m training.export --size pilot
"$python" -m training.train --size draft
"$python" -m training.export --size draft
"$python" -m training.evaluate
"$python" -m training.evaluate --model src/twostroke/pilot/weights/pilot-draft
