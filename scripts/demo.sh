#!/usr/bin/env bash
# Builds hashfs, and shows it at work on a sample image: its checksum before and
# after a write through the mount. Everything is in a temporary directory, and is
# taken away again, whatever ends this script.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

hashfs=$PWD/build/hashfs
dir=

cleanup() {
  # A second signal must not break this off.
  trap '' INT TERM HUP
  # A mount that is left keeps the directory: nothing in it may be deleted.
  if [ -n "$dir" ] && { ! mounted || "$hashfs" umount --lazy "$dir/mount/point"; }; then
    rm -rf "$dir"
  fi
}

mounted() { grep -qF " $dir/mount/point " /proc/self/mountinfo; }

# show runs a command line, and prints it first.
show() {
  printf '\n$ %s\n' "$1"
  eval "$1"
}

# why_not says why this user cannot mount; it prints nothing if he can.
why_not() {
  if [ ! -e /dev/fuse ]; then
    echo "there is no /dev/fuse: root loads it by modprobe fuse"
  elif is_root; then
    :
  elif [ -z "$(type -P fusermount3)" ]; then
    echo "an ordinary user needs fusermount3: root installs the package fuse3"
  elif ! [ -r /dev/fuse ] || ! [ -w /dev/fuse ]; then
    echo "/dev/fuse is not open to ordinary users here: run make demo as root"
  fi
}

make_image() {
  truncate -s 1G disk.img
  local offset
  for offset in 0 100 500; do
    dd if=/dev/urandom of=disk.img bs=1M count=8 seek=$offset conv=notrunc status=none
  done
}

without_mount() {
  show 'hashfs sum disk.img'
  show 'hashfs sum --tag disk.img | tee list'
  show 'hashfs sum --check list'
}

with_mount() {
  mkdir -p mount/point
  show 'hashfs mount --writable --log-file log disk.img mount/point'
  show 'ls -l mount/point/disk'
  show 'cat mount/point/disk/checksum'
  show 'hashfs sum disk.img'
  show 'head -n 2 mount/point/disk/digests'
  show 'cat mount/point/disk/map'

  before=$(cat mount/point/disk/checksum)
  show 'echo "a write through the mount" | dd of=mount/point/disk/image bs=4k seek=50000 conv=notrunc status=none'
  show 'cat mount/point/disk/checksum'
  after=$(cat mount/point/disk/checksum)
  show 'hashfs umount mount/point'
  show 'hashfs sum disk.img'

  [ "$before" != "$after" ] || die "the checksum did not change"
  [ "$(hashfs sum disk.img)" = "$after  disk.img" ] || die "the checksum is not that of the file"
}

trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

provide "${build_tools[@]}" "${run_tools[@]}"
make -s build/hashfs
dir=$(cd "$(mktemp -d)" && pwd -P)
mkdir "$dir/bin"
ln -s "$hashfs" "$dir/bin/hashfs"
PATH=$dir/bin:$PATH
cd "$dir"
say "a sample image of 1 GiB with 24 MiB of data in it: $dir/disk.img"
make_image
reason=$(why_not)
if [ -n "$reason" ]; then
  say "needs root, the part with a mount: $reason"
  without_mount
else
  with_mount
fi
printf '\nall of it is cleaned up\n'
