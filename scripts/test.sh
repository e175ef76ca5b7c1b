#!/usr/bin/env bash
# The tests. By default those that are quick: side by side. With SLOW=1 all others: the slow ones side
# by side, then those that race a clock, by themselves. Arguments go to pytest: scripts/test.sh -k jigsaw
set -euo pipefail
cd "$(dirname "$0")/.."
# one process more than cores: a test that waits, for a process or a time-out, leaves its core to another
processes="$(($(nproc) + 1))"                  # counted here: nproc heeds OMP_NUM_THREADS
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # the processes share the cores
unset PYTHONDONTWRITEBYTECODE                  # hundreds of processes would compile the same files

codes=()
run() { # a group of tests; 5: nothing was chosen
    local code=0
    .venv/bin/python -m pytest "$@" || code=$?
    codes+=("$code")
}
if [ -z "${SLOW:-}" ]; then
    run -m "not slow and not alone" --numprocesses "$processes" --dist loadfile "$@"
else
    run -m "slow and not alone" --numprocesses "$processes" --dist loadfile "$@"
    run -m alone "$@"
fi
for code in "${codes[@]}"; do
    if [ "$code" != 0 ] && [ "$code" != 5 ]; then exit "$code"; fi
done
