#!/usr/bin/env bash
# Prints the folder of a virtual environment with the published opensandbox server, SDK and command line, and nothing else, on stdout:
#
#   SANDLOG_REAL_CLIENT="$(tests/realclient/environment.sh)"
#   export SANDLOG_REAL_CLIENT     # on a line of its own, or a failure goes unnoticed
#
# Made once for each content of requirements.txt and each Python, in a cache folder. SANDLOG_PYTHON names the Python.
set -euo pipefail
exec 3>&1 >&2 # what the commands below print is progress; only the answer goes to 3

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
say() { printf 'realclient: %s\n' "$*"; }
die() { say "$*"; exit 1; }
complete() { [[ -x $1/bin/opensandbox-server && -x $1/bin/osb && -f $1/complete ]]; }

find_python() {
  local candidate
  for candidate in ${SANDLOG_PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "needs Python 3.11 or later with its venv module; SANDLOG_PYTHON names one"
}

python="$(find_python)"
key="$({ cat "$here/requirements.txt"; "$python" -VV; uname -sm; } | cksum | tr ' ' -)"
cache="${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME}/.cache}/sandlog/realclient"
[[ $cache == /* ]] || die "XDG_CACHE_HOME=$XDG_CACHE_HOME is not an absolute path"
folder="$cache/$key"

# One at a time, where there is flock. An interrupted installation has no mark and is begun anew.
mkdir -p "$cache"
if command -v flock >/dev/null; then
  exec 9>"$folder.lock"
  flock 9
fi
if ! complete "$folder"; then
  say "installing the published server and SDK into $folder (once; takes a minute)"
  rm -rf "$folder"
  "$python" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$here/requirements.txt" ||
    die "pip failed; the lines above say why"
  "$folder/bin/python" -m pip check --quiet --disable-pip-version-check || die "the pinned versions do not fit each other"
  : >"$folder/complete"
fi
complete "$folder" || die "$folder is not whole"
printf '%s\n' "$folder" >&3
