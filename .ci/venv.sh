# Sourced by samples/run and tests/run: makes .venv with the versions of constraints.txt.
# PYTHON names the interpreter for a new .venv; the first of python3.11 and python3 is the default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Installs packages of the system as root; otherwise prints the command. $1 says what they are for.
system_packages() {
    local purpose=$1
    shift
    local command="apt-get install --yes --no-install-recommends $*"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "Missing system packages, needed for $purpose: $*. Install them with: sudo $command" >&2
        return 1
    fi
    echo "Installing system packages, needed for $purpose: $command" >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $command -qq >/dev/null
}

# $@: what pip installs, e.g. --editable . --group dev
make_venv() {
    local python=${PYTHON:-$(command -v python3.11 || command -v python3)}
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        system_packages "Python's module venv" python3-venv || exit 1
    fi
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    local wanted
    wanted=$(cat pyproject.toml constraints.txt | cksum)-$*
    if [ "$(cat .venv/installed 2>/dev/null || true)" != "$wanted" ]; then
        echo "Installing Python packages into .venv (about a minute)" >&2
        .venv/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1' # knows dependency groups
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$@"
        echo "$wanted" >.venv/installed
    fi
}
