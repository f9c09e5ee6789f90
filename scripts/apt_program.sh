#!/usr/bin/env bash
# Print the path of the first of some programs, installing Debian packages when root and none is there.
# usage: apt_program.sh "NAMES" "PACKAGES" [--find]   (--find: only look)
set -euo pipefail
names=$1 packages=$2
find_program() {
  for name in $names; do
    if command -v "$name"; then return; fi
  done
  return 1
}
if find_program; then exit; fi
if [ "${3:-}" = --find ] || [ "$(id -u)" != 0 ]; then
  echo "${names%% *}: not installed; as root: apt-get install $packages" >&2
  exit 1
fi
exec 9>"/tmp/holdfast-apt-$(id -u).lock" && flock 9  # tests install packages side by side, which apt refuses
# shellcheck disable=SC2086
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages; } >&2
find_program
