#!/usr/bin/env bash
# Print the path of curl, installing it when root and missing. With --find, only look.
exec "$(dirname "$0")/apt_program.sh" "curl" "curl" "$@"
