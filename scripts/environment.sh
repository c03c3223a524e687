# Sourced by scripts/demo and scripts/test: makes .venv once, installs what is asked for, fast when nothing changed.
# Needs Python 3.11 or later and nothing else. SANDLOG_PYTHON names one, where the search finds the wrong one.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

find_python() {
    local candidate
    for candidate in ${SANDLOG_PYTHON:-} python3.13 python3.12 python3.11 python3.14 python3 python; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo "sandlog needs Python 3.11 or later with its venv module, and found none on PATH" >&2
    echo "(on Debian: apt-get install python3 python3-venv), or name one: SANDLOG_PYTHON=/path/to/python3 $0" >&2
    return 1
}

# install EXTRAS: `install` for what runs, `install [test]` for the checks too.
install() {
    local extras=${1:-} stamp wanted python
    stamp=.venv/installed${extras//[^a-z]/}
    if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(find_python) || exit 1
        echo "making .venv with $("$python" --version)" >&2
        rm -rf .venv
        "$python" -m venv .venv || exit 1
    fi
    wanted=$(cksum pyproject.toml)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "installing sandlog$extras and what it needs into .venv (once; takes a minute)" >&2
        if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$extras"; then
            echo "the installation failed; the lines above say why" >&2
            exit 1
        fi
        echo "$wanted" >"$stamp"
    fi
}
