#!/usr/bin/env bash
# The tests: first all that may run side by side, one process a core, then those that race a clock, by themselves.
# Arguments go to pytest both times: scripts/test.sh -k jigsaw
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # the processes share the cores

together=0 alone=0
.venv/bin/python -m pytest -m "not alone" --numprocesses auto --dist loadfile "$@" || together=$?
.venv/bin/python -m pytest -m alone "$@" || alone=$?
case "$together $alone" in # 5: nothing was chosen
"0 5" | "5 0") exit 0 ;;
"0 "*) exit "$alone" ;;
*) exit "$together" ;;
esac
