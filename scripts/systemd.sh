#!/usr/bin/env bash
# Print the path of systemd-analyze, installing it when root and missing. With --find, only look.
exec "$(dirname "$0")/apt_program.sh" "systemd-analyze" "systemd" "$@"
