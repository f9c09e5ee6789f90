#!/usr/bin/env bash
# Print the command that builds Kustomize overlays: kustomize, or kubectl, which contains it. With --find, only look.
# Debian has it from trixie on; its package is unpacked into a folder of ours instead of installed.
set -euo pipefail
if command -v kustomize >/dev/null; then echo "kustomize build"; exit; fi
if command -v kubectl >/dev/null; then echo "kubectl kustomize"; exit; fi
place=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/kustomize
[ -x "$place" ] && { echo "$place build"; exit; }
[ "${1:-}" = --find ] && exit 1
command -v apt-get >/dev/null || { echo "kustomize: not installed, and apt-get is missing" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
mkdir -p lists/partial cache/archives/partial
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >sources.list
options=(-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache")
{ apt-get "${options[@]}" update -qq && apt-get "${options[@]}" download -qq kustomize && dpkg -x ./*.deb unpacked; } >&2
mkdir -p "$(dirname "$place")"
mv unpacked/usr/bin/kustomize "$place"
echo "$place build"
