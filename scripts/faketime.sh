#!/usr/bin/env bash
# Print the path of libfaketime, which gives a program another time of day; fetched from Debian's package if missing.
set -euo pipefail
place=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/faketime
find_library() {
  for library in /usr/lib/*-linux-gnu/faketime/libfaketime.so.1 "$place"/usr/lib/*-linux-gnu/faketime/libfaketime.so.1; do
    if [ -e "$library" ]; then echo "$library"; return; fi
  done
  return 1
}
find_library && exit
"$(dirname "$0")/unpack_packages.sh" "$place" libfaketime
find_library
