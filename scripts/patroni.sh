#!/usr/bin/env bash
# Print a folder with the programs `patroni` (from PyPI) and `etcd` (Debian's package) for the failover runs of the campaign.
# Both are unpacked into a folder of ours instead of installed, so no service is ever started. Needs scripts/setup.sh dev.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
lock=$root/requirements/patroni.txt
# Root's own folders are closed to the account that runs the servers: PostgreSQL refuses root.
if [ "$(id -u)" = 0 ]; then place=/var/lib/holdfast/patroni; else place=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/patroni; fi
python=/usr/bin/python3  # other Pythons are often in a folder of root's
[ -x "$python" ] || python=$(command -v python3)
wanted=$(cat "$lock" "$0" | cksum)
[ -f "$place/installed" ] && [ "$(cat "$place/installed")" = "$wanted" ] && { echo "$place"; exit 0; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
{
  if etcd=$(command -v etcd); then cp "$etcd" etcd; else
    "$root/scripts/unpack_packages.sh" "$work/unpacked" etcd-server
    mv unpacked/usr/bin/etcd etcd
  fi
  mkdir new new/lib
  "$root/.venv/bin/uv" pip install -q --python "$python" --target new/lib --require-hashes -r "$lock"
  mv etcd new/etcd
  printf '#!/bin/sh\nPYTHONPATH=%s/lib exec %s -m patroni "$@"\n' "$place" "$python" >new/patroni
  printf '%s\n' "$wanted" >new/installed
  chmod -R u=rwX,go=rX new
  chmod 755 new/patroni new/etcd
  mkdir -p "$(dirname "$place")"
  [ "$(id -u)" != 0 ] || chmod 755 "$(dirname "$place")"
  rm -rf "$place" && mv new "$place"
} >&2
echo "$place"
