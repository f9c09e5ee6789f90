#!/usr/bin/env bash
# Print the folder of prometheus and promtool, downloading Debian's package when missing. With --find, only look.
set -euo pipefail
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then dirname "$(command -v promtool)"; exit; fi
place=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/prometheus
if [ ! -d "$place" ]; then
  [ "${1:-}" != --find ] || exit 1
  "$(dirname "$0")/unpack_packages.sh" "$place" prometheus
fi
echo "$place/usr/bin"
