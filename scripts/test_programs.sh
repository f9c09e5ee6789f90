#!/usr/bin/env bash
# Install the programs of the operating system that tests need, before the tests: no test waits for a download.
set -euo pipefail
cd "$(dirname "$0")"
for program in postgres15 chromium pgbouncer prometheus systemd kustomize curl; do
  printf '%-12s %s\n' "$program" "$(./$program.sh)"
done
