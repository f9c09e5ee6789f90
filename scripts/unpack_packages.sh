#!/usr/bin/env bash
# Download Debian packages and unpack them into a new folder, which is there as a whole or not at all.
# Nothing is installed, so no service is ever started.
# usage: unpack_packages.sh FOLDER PACKAGE...
set -euo pipefail
folder=$1
shift
mkdir -p "$(dirname "$folder")"
exec 9>"/tmp/holdfast-apt-$(id -u).lock" && flock 9  # tests install packages side by side, which apt refuses
[ ! -d "$folder" ] || exit 0  # another process was faster
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
{
  apt-get download -qq "$@" || { [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get download -qq "$@"; } ||
    { echo "cannot download $*; on Debian, as root: apt-get install $*"; exit 1; }
  for package in ./*.deb; do dpkg -x "$package" unpacked; done
  chmod -R u=rwX,go=rX unpacked
  rm -rf "$folder.new" && mv unpacked "$folder.new" && mv -T "$folder.new" "$folder"
} >&2
