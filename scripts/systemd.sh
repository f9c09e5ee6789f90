#!/usr/bin/env bash
# Print the path of systemd-analyze, installing Debian's systemd when root and missing. With --find, only look.
set -euo pipefail
if command -v systemd-analyze; then exit; fi
if [ "${1:-}" = --find ] || [ "$(id -u)" != 0 ]; then
  echo "systemd: not installed; as root: apt-get install systemd" >&2
  exit 1
fi
exec 9>"/tmp/holdfast-apt-$(id -u).lock" && flock 9  # tests install packages side by side, which apt refuses
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends systemd; } >&2
command -v systemd-analyze
