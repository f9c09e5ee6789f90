#!/usr/bin/env bash
# Print the path of libfaketime, which gives a program another time of day; fetched from Debian's package if missing.
set -euo pipefail
for found in /usr/lib/*-linux-gnu/faketime/libfaketime.so.1; do [ -e "$found" ] && { echo "$found"; exit 0; }; done
place=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/libfaketime.so.1
[ -e "$place" ] && { echo "$place"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
{
  apt-get download -qq libfaketime ||
    { [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get download -qq libfaketime; } ||
    { echo "faketime: cannot download it; on Debian, as root: apt-get install libfaketime"; exit 1; }
  dpkg -x ./*.deb unpacked
} >&2
mkdir -p "$(dirname "$place")"
cp unpacked/usr/lib/*-linux-gnu/faketime/libfaketime.so.1 "$place.new" && mv "$place.new" "$place"
echo "$place"
