#!/usr/bin/env bash
# Runs all the tests. Root installs what they need and runs all of them; an
# ordinary user runs what he can.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
go=scripts/go.sh

# How long each of the two model tests runs.
model_time=${MODEL_TIME:-30s}

"$go" version
provide "${test_tools[@]}"
if is_root; then
  # Nothing is missing now, so nothing may be skipped.
  export CI=true
else
  say "needs root: most tests that mount, and those with loop devices and other file systems; they are skipped (go test -v names each)"
fi

race=-race
if [ "$("$go" env CGO_ENABLED)" = 0 ]; then
  race=
  say "needs root: gcc and libnbd-dev; without them there is no race detector, and no NBD"
fi

# stage runs a part, and goes on when it fails.
failed=()
stage() {
  say "== $1"
  "${@:2}" || failed+=("$1")
}

rest=$("$go" list ./... | grep -v -e '/hasher$' -e '/integration$')
stage "formatting, go vet, scripts, man pages" scripts/lint.sh
# shellcheck disable=SC2086 # lists of words
stage "unit tests" "$go" test $race -timeout 10m $rest
if [ -n "$race" ]; then
  stage "the binding of libnbd, under the address sanitizer, for C's memory" \
    "$go" test -asan -timeout 10m ./nbdsrc
fi
if [ -n "$(type -P qemu-aarch64-static)" ]; then
  stage "digests and blocks, on an emulated arm64" \
    env CGO_ENABLED=0 GOARCH=arm64 "$go" test -exec qemu-aarch64-static -timeout 10m ./hasher/... ./blockcache
else
  say "qemu-user-static is not installed: nothing is tried on arm64"
fi
# shellcheck disable=SC2086
stage "digests, with the model test" "$go" test $race -timeout 10m ./hasher -model.time "$model_time"
stage "the rules of digests, each broken in turn: the model test must notice" \
  "$go" test -tags hashfs_mutants -timeout 15m -run '^TestMutants$' ./hasher
stage "the program, on real mounts" "$go" test -count=1 -timeout 15m ./integration
[ ${#failed[@]} -eq 0 ] || die "failed: $(printf '%s; ' "${failed[@]}")"
