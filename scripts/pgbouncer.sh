#!/usr/bin/env bash
# Print the path of a PgBouncer program; `--find` prints one only when it is there already.
# Debian's packages are unpacked into a folder of ours instead of installed, so no service is ever started.
set -euo pipefail
for found in "$(command -v pgbouncer || true)" /usr/sbin/pgbouncer; do
  [ -n "$found" ] && [ -x "$found" ] && { echo "$found"; exit 0; }
done
# Root's own folders are closed to the account that the tests run it as: PgBouncer refuses root.
if [ "$(id -u)" = 0 ]; then place=/var/lib/holdfast/pgbouncer; else place=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/pgbouncer; fi
[ -x "$place/pgbouncer" ] && { echo "$place/pgbouncer"; exit 0; }
[ "${1:-}" = --find ] && exit 1

exec 9>"/tmp/holdfast-apt-$(id -u).lock" && flock 9  # tests install packages side by side, which apt refuses
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
{
  apt-get download -qq pgbouncer libc-ares2 libevent-2.1-7 ||
    { [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get download -qq pgbouncer libc-ares2 libevent-2.1-7; } ||
    { echo "pgbouncer: cannot download it; on Debian, as root: apt-get install pgbouncer"; exit 1; }
  for package in ./*.deb; do dpkg -x "$package" unpacked; done
} >&2
cat >unpacked/pgbouncer <<'RUN'
#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$(echo "$here"/usr/lib/*-linux-gnu) exec "$here/usr/sbin/pgbouncer" "$@"
RUN
chmod -R u=rwX,go=rX unpacked
chmod 755 unpacked/pgbouncer
mkdir -p "$(dirname "$place")"
[ "$(id -u)" != 0 ] || chmod 755 "$(dirname "$place")"
rm -rf "$place.new" && mv unpacked "$place.new" && { mv -T "$place.new" "$place" 2>/dev/null || rm -rf "$place.new"; }
echo "$place/pgbouncer"
