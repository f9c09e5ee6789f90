#!/usr/bin/env bash
# Print the command that builds Kustomize overlays: kustomize, or kubectl, which contains it. With --find, only look.
# Debian has it from trixie on: its package is taken from there, from the mirror that apt uses.
set -euo pipefail
if command -v kustomize >/dev/null; then echo "kustomize build"; exit; fi
if command -v kubectl >/dev/null; then echo "kubectl kustomize"; exit; fi
place=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/kustomize
if [ ! -d "$place" ]; then
  [ "${1:-}" != --find ] || exit 1
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$') ||
    { echo "kustomize: not installed, and apt knows no mirror of Debian" >&2; exit 1; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$work/sources.list"
  cat >"$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
CONF
  APT_CONFIG=$work/apt.conf apt-get update -qq >&2
  APT_CONFIG=$work/apt.conf "$(dirname "$0")/unpack_packages.sh" "$place" kustomize
fi
echo "$place/usr/bin/kustomize build"
