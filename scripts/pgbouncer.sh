#!/usr/bin/env bash
# Print the path of a PgBouncer program, downloading Debian's packages when missing. With --find, only look.
set -euo pipefail
for program in "$(command -v pgbouncer || true)" /usr/sbin/pgbouncer; do
  [ -n "$program" ] && [ -x "$program" ] && { echo "$program"; exit 0; }
done
# Root's own folders are closed to the account that the tests run it as: PgBouncer refuses root.
if [ "$(id -u)" = 0 ]; then parent=/var/lib/holdfast; else parent=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast; fi
place=$parent/pgbouncer
if [ ! -x "$place/pgbouncer" ]; then
  [ "${1:-}" != --find ] || exit 1
  "$(dirname "$0")/unpack_packages.sh" "$place" pgbouncer libc-ares2 libevent-2.1-7
  [ "$(id -u)" != 0 ] || chmod 755 "$parent"
  cat >"$place/pgbouncer.$$" <<'RUN'
#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$(echo "$here"/usr/lib/*-linux-gnu) exec "$here/usr/sbin/pgbouncer" "$@"
RUN
  chmod 755 "$place/pgbouncer.$$"
  mv "$place/pgbouncer.$$" "$place/pgbouncer"
fi
echo "$place/pgbouncer"
