#!/usr/bin/env bash
# Measures hashfs against its peers, and writes docs/performance.md; then looks
# that a million opens leave no memory behind. Arguments go to the harness:
# -quick tries it out and writes nothing. BENCHDIR is where the data is made,
# NBDCOPY an nbdcopy with --blkhash (1.24 or later).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# What is measured against, and what measures, as COMMAND:PACKAGE.
bench_tools=(
  "${run_tools[@]}"
  openssl:openssl
  b3sum:b3sum
  qemu-nbd:qemu-utils
  nbdcopy:libnbd-bin
  nbdkit:nbdkit
  fio:fio
  perf:linux-perf
  /usr/bin/time:time # the shell's own does not measure memory
)
provide "${bench_tools[@]}"

mkdir -p build/bench
scripts/go.sh build -o build/bench/ ./cmd/hashfs/internal/bench ./fs/internal/loopback
scripts/go.sh test -c -o build/bench/nbdsrc.test ./nbdsrc
[ $# -gt 0 ] || set -- -o docs/performance.md
build/bench/bench -hashfs build/hashfs -loopback build/bench/loopback \
  -nbdsrc build/bench/nbdsrc.test -dir "${BENCHDIR:-}" "$@"

case " $* " in
  *" -quick "*) ;;
  *)
    say "== memory after 10^6 opens in blocks/"
    scripts/go.sh test -count=1 -timeout 30m ./integration -run '^TestCost_opens' -cost.opens 1000000
    ;;
esac
