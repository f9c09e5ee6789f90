#!/usr/bin/env bash
# Everything that can be judged without running the product. Every check runs; the first failure is not the last told.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
try() {
  local title=$1 output
  shift
  if output=$("$@" 2>&1); then
    printf 'ok    %s\n' "$title"
  else
    printf 'FAIL  %s\n%s\n' "$title" "$output"
    failed=1
  fi
}
try "lint (ruff)" .venv/bin/ruff check .
try "format (ruff)" .venv/bin/ruff format --check .
try "import contract (import-linter)" .venv/bin/lint-imports
try "types (mypy strict)" .venv/bin/mypy
try "types (pyright strict)" .venv/bin/pyright
try "client.blocking is generated" .venv/bin/python scripts/generate_blocking.py --check
try "house rules" .venv/bin/python scripts/house.py
try "retired words" .venv/bin/python scripts/retired_words.py
try "reference docs are fresh" .venv/bin/python scripts/reference.py --check
try "diagrams are fresh" .venv/bin/python scripts/diagrams.py --check
exit $failed
