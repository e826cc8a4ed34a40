#!/usr/bin/env bash
# Runs the go command, after seeing to it that it is there and new enough, and
# without cgo where that would fail.
set -euo pipefail
top=$(dirname "$0")/..

# Where the Go project's own archive is unpacked; sudo leaves it out of PATH.
PATH=$PATH:/usr/local/go/bin
need=$(awk '$1 == "go" { print $2 }' "$top/go.mod")
get="install Go $need or later from the archive that the Go project offers on its site (Debian 12's package golang is too old), and put its bin directory on PATH"

if ! type -P go >/dev/null; then
  echo "there is no go command: $get" >&2
  exit 1
fi
# Go from 1.21 on fetches the version that go.mod wants, if it can and may.
have=$(cd "$top" && go env GOVERSION 2>/dev/null) ||
  have=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
case $have in
  go1*)
    if [ "$(printf '%s\n' "$need" "${have#go}" | sort -V | head -n 1)" != "$need" ]; then
      echo "${have/#go/Go } is too old: $get" >&2
      exit 1
    fi
    ;;
esac

# NBD is spoken by the C library libnbd; without its header the rest is built.
if [ -z "${CGO_ENABLED:-}" ] && ! echo '#include <libnbd.h>' | "${CC:-gcc}" -E - >/dev/null 2>&1; then
  export CGO_ENABLED=0
  if [ "$1" = build ]; then
    echo "building without NBD: for that, install a C compiler and libnbd (Debian: gcc libnbd-dev)" >&2
  fi
fi
exec go "$@"
