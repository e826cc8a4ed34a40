#!/usr/bin/env bash
# Checks what needs no running: formatting, go vet, shell scripts, go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
go=scripts/go.sh

find_admin_tools
"$go" version
unformatted=$("$("$go" env GOROOT)/bin/gofmt" -l .)
[ -z "$unformatted" ] || die "not formatted by gofmt: ${unformatted//$'\n'/ }"
"$go" vet ./...
"$go" vet -tags hashfs_mutants ./hasher
# Without cgo, and for another architecture: what has assembly has a twin.
CGO_ENABLED=0 GOARCH=arm64 "$go" vet ./...
"$go" mod tidy -diff
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
mkdir "$generated/hasher" "$generated/man"
cp go.mod go.sum "$generated"
cp -r hasher/internal "$generated/hasher"
for p in sha256lanes blake3x16; do
  "$go" -C "$generated/hasher/internal/$p" generate
  diff -r "hasher/internal/$p" "$generated/hasher/internal/$p" || die "hasher/internal/$p is not what its generator writes: go generate ./hasher/..."
done
if [ -n "$(type -P shellcheck)" ]; then
  shellcheck -x scripts/*.sh .ci/run
elif [ "${CI:-}" = true ]; then
  die "shellcheck is missing"
else
  say "shellcheck is not installed: shell scripts are not checked"
fi
if [ -n "$(type -P mandoc)" ]; then
  pages=$generated/man
  "$go" run ./cmd/hashfs/internal/gendocs -man "$pages"
  # Less than an error is the style of cobra's generator.
  mandoc -T lint -W error "$pages"/*.1
elif [ "${CI:-}" = true ]; then
  die "mandoc is missing"
fi
say "lint: all is well"
