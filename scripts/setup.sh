#!/usr/bin/env bash
# Make .venv hold what the named part needs: "run" (demo, dev) or "dev" (tests and checks).
# Does nothing, in milliseconds, when it already does: a stamp remembers what was installed.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:?usage: scripts/setup.sh run|dev}
python=${PYTHON:-python3}
venv=.venv
lock=requirements/$part.txt

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

want=$(cat "$lock" pyproject.toml scripts/setup.sh | cksum)
stamp=$venv/.installed-$part
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x "$venv/bin/holdfast" ] && exit 0

command -v "$python" >/dev/null || fail "no $python found. Install Python 3.11 or newer (Debian: apt-get install python3), or set PYTHON=/path/to/python3."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "Holdfast needs Python 3.11 or newer; $python is $("$python" -V). Set PYTHON=/path/to/a/newer/python3."

make_venv() {
  "$python" -m venv "$venv" >/dev/null 2>&1 && return
  rm -rf "$venv"
  # Debian splits venv into a package of its own; root can have it installed at once.
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv; } >/dev/null 2>&1 || true
    "$python" -m venv "$venv" && return
  fi
  fail "cannot make a virtual environment with $python. On Debian: apt-get install python3-venv, then run make again."
}

[ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || { rm -rf "$venv"; make_venv; }
printf 'setup: installing what "%s" needs into %s (once)\n' "$part" "$venv" >&2
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }
pip install --require-hashes -r "$lock"
pip install --no-deps --no-build-isolation -e .
printf '%s\n' "$want" >"$stamp"
