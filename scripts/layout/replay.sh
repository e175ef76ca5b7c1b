#!/usr/bin/env bash
# The layout step on the branch that is checked out: two commits a folder (moves, then contents). See README.md.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
[ -z "$(git status --porcelain)" ] || { echo "replay.sh: commit or stash first" >&2; exit 1; }
[ "$(git branch --show-current)" != main ] || { echo "replay.sh: make a branch first: git switch -c layout" >&2; exit 1; }
for folder in rewards tasks robot vlrl; do
    .venv/bin/python scripts/layout/restructure.py . --only "$folder" --commit
done
