#!/usr/bin/env bash
# Print the path of Debian's Chromium, installing it when root and missing. With --find, only look.
exec "$(dirname "$0")/apt_program.sh" "chromium chromium-browser google-chrome" "chromium fonts-noto-core" "$@"
