# Sourced by samples/run and tests/run: makes .venv from the constraints file; $1 names the extras to install.
# On a bare Debian the module venv is a package of its own; it is installed where that is possible.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
debian_packages() {
    as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
make_venv() {
    python=$(command -v python3.11 || command -v python3)
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        debian_packages python3-venv
    fi
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    wanted=$(cat pyproject.toml constraints.txt | cksum)-$1
    if [ "$(cat .venv/installed 2>/dev/null || true)" != "$wanted" ]; then
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".$1"
        echo "$wanted" >.venv/installed
    fi
}
