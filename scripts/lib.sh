# Functions that the scripts share. Sourced by bash, from the top of the tree.
# shellcheck shell=bash

# What it takes to build hashfs, to run it, and to test it, as COMMAND:PACKAGE of
# Debian 12. A path is looked for as it is.
# shellcheck disable=SC2034 # used by who sources this
build_tools=(
  /etc/ssl/certs/ca-certificates.crt:ca-certificates # the go command fetches modules
  gcc:gcc
  /usr/include/stdio.h:libc6-dev
  /usr/include/libnbd.h:libnbd-dev # with libnbd0, which the program loads
)
run_tools=(
  fusermount3:fuse3
)
# shellcheck disable=SC2034
test_tools=(
  "${build_tools[@]}"
  "${run_tools[@]}"
  git:git
  make:make
  shellcheck:shellcheck
  mandoc:mandoc
  man:man-db
  busybox:busybox
  python3:python3
  jq:jq
  rsync:rsync
  tar:tar
  diff:diffutils
  cmp:diffutils
  find:findutils
  getfattr:attr
  qemu-img:qemu-utils
  qemu-io:qemu-utils
  qemu-nbd:qemu-utils
  qemu-system-x86_64:qemu-system-x86
  nbdkit:nbdkit
  nbdinfo:libnbd-bin
  nbdcopy:libnbd-bin
  certtool:gnutls-bin
  psktool:gnutls-bin
  losetup:mount
  findmnt:util-linux
  mkfs.ext4:e2fsprogs
  mkfs.xfs:xfsprogs
  xfs_io:xfsprogs
  mkfs.btrfs:btrfs-progs
  setpriv:util-linux
  unshare:util-linux
  nsenter:util-linux
  flock:util-linux
  modprobe:kmod
  depmod:kmod
  e2fsck:e2fsprogs
  debugfs:e2fsprogs
  qemu-aarch64-static:qemu-user-static
)

say() { printf '%s\n' "$*"; }

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# find_admin_tools makes the tools of administrators found that are not on an
# ordinary user's PATH.
find_admin_tools() { PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; }

# missing_packages prints the packages, in one line, of those of the given
# COMMAND:PACKAGE that are not there.
missing_packages() {
  local tool name
  local -A missing=()
  for tool in "$@"; do
    name=${tool%:*}
    case $name in
      /*) [ -e "$name" ] && continue ;;
      *) [ -n "$(type -P "$name")" ] && continue ;;
    esac
    missing[${tool##*:}]=1
  done
  printf '%s\n' "${!missing[@]}" | sort | paste -sd ' '
}

# install_packages installs Debian packages, and says so.
install_packages() {
  [ $# -gt 0 ] || return 0
  [ -n "$(type -P apt-get)" ] ||
    die "not there: $* (names of Debian packages): there is no apt-get here to install them, do so by hand"
  say "installing by apt-get: $*"
  local log
  log=$(mktemp)
  if ! { DEBIAN_FRONTEND=noninteractive apt-get update &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "apt-get could not install: $*"
  fi
  rm -f "$log"
}

# provide sees to the given COMMAND:PACKAGE: root installs what is not there,
# others are told in one line.
provide() {
  local missing
  find_admin_tools
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  if is_root; then
    # shellcheck disable=SC2086 # a list of words
    install_packages $missing
  else
    say "needs root: apt-get install $missing; going on without"
  fi
}
