#!/usr/bin/env bash
# Install the locked requirements of a part into .venv: "run" (demo, dev), "dev" (tests and checks) or "docs" (the site).
# A stamp file records what is installed, so a repeated call returns in milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:?usage: scripts/setup.sh run|dev|docs}
python=${PYTHON:-python3}
venv=.venv
lock=requirements/$part.txt

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
step() { printf 'setup: %s\n' "$*" >&2; }

wanted=$(cat "$lock" requirements/uv.txt pyproject.toml scripts/setup.sh | cksum)
stamp=$venv/.installed-$part
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x "$venv/bin/holdfast" ] && exit 0

command -v "$python" >/dev/null || fail "$python not found. Install Python 3.11 or newer (Debian: apt-get install python3), or set PYTHON=/path/to/python3."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "Holdfast needs Python 3.11 or newer; $python is $("$python" -V). Set PYTHON=/path/to/a/newer/python3."

create_venv() {
  "$python" -m venv "$venv" >/dev/null 2>&1 && return
  rm -rf "$venv"
  # Debian ships venv as a separate package, which root can install.
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "installing python3-venv with apt-get"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv; } >/dev/null 2>&1 || true
    "$python" -m venv "$venv" && return
  fi
  fail "cannot create a virtual environment with $python. On Debian: apt-get install python3-venv, then run make again."
}

[ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || { rm -rf "$venv"; step "creating $venv"; create_venv; }
step "installing uv (the installer)"
"$venv/bin/python" -m pip --disable-pip-version-check -qq install --require-hashes -r requirements/uv.txt
step "installing $(grep -cE '^[a-zA-Z0-9._-]+(\[.*\])?==' "$lock") locked packages of \"$part\" into $venv"
# uv prints its own progress on a terminal and a summary elsewhere.
"$venv/bin/uv" pip install --python "$venv/bin/python" --require-hashes -r "$lock" 2>&1 | { grep -vE '^ [+~-] ' || true; } >&2
"$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --no-build-isolation -e .
printf '%s\n' "$wanted" >"$stamp"
step "done"
