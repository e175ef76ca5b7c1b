#!/usr/bin/env bash
# The tests: first all that may run side by side, one process a core, then those that race a clock, by themselves.
# Arguments go to pytest both times: scripts/test.sh -k jigsaw
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # the processes share the cores

nothing=0
run() { # pytest says 5 where nothing was chosen
    local code=0
    .venv/bin/python -m pytest "$@" || code=$?
    if [ "$code" = 5 ]; then nothing=$((nothing + 1)); elif [ "$code" != 0 ]; then exit "$code"; fi
}
run -m "not alone" --numprocesses auto --dist loadfile "$@"
run -m alone "$@"
if [ "$nothing" = 2 ]; then exit 5; fi
