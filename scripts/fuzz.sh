#!/usr/bin/env bash
# Runs each fuzz test for $FUZZTIME.
set -euo pipefail
cd "$(dirname "$0")/.."
go=$PWD/scripts/go.sh

"$go" list -f '{{.Dir}}' ./... | while read -r dir; do
  { grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go || true; } | while read -r _ name; do
    echo "== $name in ${dir#"$PWD"/}"
    (cd "$dir" && "$go" test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-1m}" . </dev/null)
  done
done
