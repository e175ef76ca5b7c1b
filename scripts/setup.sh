#!/usr/bin/env bash
# Makes .venv from pyproject.toml with the versions of requirements.lock. Does nothing when nothing changed.
# EXTRAS: which optional parts to install besides (default: test), e.g. EXTRAS=test,robot,sim
# TORCH: what torch is built for, from PyTorch's own index: cpu, cu130, ... (default: as the package index has it)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly UV_VERSION=0.13.8
readonly EXTRAS="${EXTRAS:-test}"
readonly TORCH="${TORCH:-}"
readonly STAMP=.venv/setup.stamp
# uv waits half a minute by default, which is short for the large CUDA wheels on a slow line
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}" PIP_DISABLE_PIP_VERSION_CHECK=1

usable() { # is $1 a Python >= 3.12 (with the modules $2)? Run it: pyenv has shims for versions that are not selected
    "$1" -c "import sys${2:+, $2}; sys.exit(sys.version_info < (3, 12))" >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in python3.12 python3.13 python3 python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
        if usable "$candidate" "venv, ensurepip"; then echo "$candidate" && return; fi
    done
    echo "setup: no Python >= 3.12 found; get one with \`uv python install 3.12\`, \`pyenv install 3.12\` or your system's packages (python3.12 and python3.12-venv)" >&2
    return 1
}

stamp() { # what the environment hangs on; its place too, as its scripts name it
    echo "$PWD"
    { echo "$EXTRAS $TORCH" && .venv/bin/python --version && cat pyproject.toml requirements.lock scripts/setup.sh; } | cksum
}

make_venv() {
    if command -v uv >/dev/null && uv venv --quiet --seed --clear --python 3.12 .venv; then return; fi
    local python
    python="$(find_python)"
    rm -rf .venv && "$python" -m venv .venv
}

find_uv() { # uv is many times faster than pip, but not needed
    if command -v uv; then return; fi
    if .venv/bin/python -m pip install --quiet "uv==$UV_VERSION" >&2; then echo .venv/bin/uv; fi
}

install() {
    local uv index
    uv="$(find_uv)"
    # uv does not read pip's configuration
    index="${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}"
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"; fi
    if [ -n "$TORCH" ]; then export UV_TORCH_BACKEND="$TORCH"; fi
    if [ -n "$uv" ]; then
        # modules are compiled once here, not at every start where nothing may be written beside them
        if "$uv" pip install --compile-bytecode --python .venv/bin/python --constraint requirements.lock --editable ".[$EXTRAS]"; then return; fi
        echo "setup: uv could not install" >&2
    fi
    if [ -n "$TORCH" ]; then # pip would take the gigabytes of CUDA that were not asked for
        echo "setup: TORCH=$TORCH needs uv and PyTorch's own index (docs/install.md); without TORCH, torch comes with CUDA" >&2
        return 1
    fi
    .venv/bin/python -m pip install --constraint requirements.lock --editable ".[$EXTRAS]"
}

usable .venv/bin/python || rm -rf .venv
if [ -f "$STAMP" ]; then
    if [ "$(cat "$STAMP")" = "$(stamp)" ]; then exit 0; fi
    if [ "$(head -n 1 "$STAMP")" != "$PWD" ]; then rm -rf .venv; fi
fi
rm -f "$STAMP"
[ -d .venv ] || make_venv
install
stamp >"$STAMP"
.venv/bin/vlrl doctor >&2 || true # it says itself what is wrong and how to mend it
echo "setup: .venv is ready; run .venv/bin/vlrl, or 'source .venv/bin/activate' first" >&2
