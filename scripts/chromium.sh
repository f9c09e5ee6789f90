#!/usr/bin/env bash
# Print the path of Debian's Chromium, installing it when root and missing. With --find, only look.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  if command -v "$name"; then exit; fi
done
if [ "${1:-}" = --find ] || [ "$(id -u)" != 0 ]; then
  echo "chromium: not installed; as root: apt-get install chromium" >&2
  exit 1
fi
exec 9>"/tmp/holdfast-apt-$(id -u).lock" && flock 9  # tests install packages side by side, which apt refuses
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-noto-core; } >&2
command -v chromium
