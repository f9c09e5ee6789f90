#!/usr/bin/env bash
# Run the unit and engine tests on newer Pythons: scripts/python_versions.sh [3.13] [3.14] [-- pytest arguments]
#
# Each Python comes from the Debian release that ships it, in a debootstrap folder below the user's cache. Needs root
# (chroot, mounts) and apt-get. The checkout is copied, so tests see committed files only. A compiler is installed for
# packages that have no wheel for the newest Python, such as pocketsphinx.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A suites=([3.13]=trixie [3.14]=forky)
versions=() tests=(tests/unit tests/engine -m "not long")
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then shift; tests=("$@"); break; fi
  versions+=("$1"); shift
done
[ ${#versions[@]} -gt 0 ] || versions=(3.13 3.14)
[ "$(id -u)" = 0 ] || { echo "python_versions: needs root for chroot and mounts" >&2; exit 1; }
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -qq -y debootstrap; } >&2
scripts/setup.sh dev
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast
mkdir -p "$cache"

make_root() { # suite, folder
  [ -x "$2/usr/bin/python3" ] && return
  # Releases newer than this debootstrap are bootstrapped like sid.
  [ -e "/usr/share/debootstrap/scripts/$1" ] || ln -s sid "/usr/share/debootstrap/scripts/$1"
  echo "python_versions: installing Debian $1 into the cache" >&2
  debootstrap --variant=minbase --include=python3,python3-venv,python3-dev,gcc,g++,ca-certificates,git "$1" "$2" >"$2.log" 2>&1 ||
    { tail -5 "$2.log" >&2; exit 1; }
}

run_tests() { # version, folder
  local root=$2 status=0
  rm -rf "$root/holdfast" && git clone -q . "$root/holdfast"
  cp .venv/bin/uv "$root/usr/local/bin/uv"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev" && mount --make-rslave "$root/dev"
  trap 'umount -R "$root/dev" "$root/proc"' EXIT
  chroot "$root" /bin/bash -ec '
    cd /holdfast
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
    python3 -m venv .venv
    uv pip install -q --python .venv/bin/python --require-hashes -r requirements/dev.txt
    uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .
    .venv/bin/python -V
    .venv/bin/pytest -q -n auto --dist worksteal "$@"' bash "${tests[@]}" || status=$?
  umount -R "$root/dev" "$root/proc"
  trap - EXIT
  echo "python_versions: Python $1 ended with exit code $status" >&2
  return $status
}

failed=0
for version in "${versions[@]}"; do
  suite=${suites[$version]:-}
  [ -n "$suite" ] || { echo "python_versions: no Debian release is known for Python $version" >&2; exit 2; }
  make_root "$suite" "$cache/debian-$suite"
  run_tests "$version" "$cache/debian-$suite" || failed=1
done
exit $failed
