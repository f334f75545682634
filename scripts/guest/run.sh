#!/usr/bin/env bash
# Runs a command under another kernel: boots it in qemu over this machine's own files.
#
#   run.sh [-t SECONDS] [-m MIB] [-k 'KERNEL PARAMETERS'] KERNEL COMMAND [ARGUMENT...]
#
# KERNEL is a Debian suite whose kernel is taken (bookworm, trixie, ...), or its newest of a version (bookworm/6.1;
# kernels.sh lists what there is, kernel.sh fetches it once), or a folder that holds `vmlinuz` and `lib/modules`.
# COMMAND runs as root, in this working directory, with this PATH, HOME and all variables CCFS_*. It sees the files of
# this machine as they are; what it writes goes to an overlay, and is gone with the guest. What differs for it:
#   TMPDIR, CCFS_TEST_DIR   /scratch, an ext4 of 8 GiB on a disk of its own (for images: overlays are no place for loop devices)
#   GUEST_DISK  /dev/vdb, an empty disk of 8 GiB (for volumes on block devices)
#   GUEST_CUT_DISK  /dev/vdc, an empty disk of $GUEST_CUT_BYTES, if the host's $GUEST_CUT names a folder: there, in
#               `log`, is every write and flush of that disk, as dm-log-writes has it (for states after a power cut)
# FUSE, loop devices and the kernel's FUSE over io_uring are switched on. There is no network.
#
# Standard output is the command's output (both streams), standard error is the kernel's console. The exit code is the
# command's; 124: killed after SECONDS (default 120); 125: the guest ended without one (a kernel panic, no memory, a
# fault of qemu); 126: no kernel or no qemu. Nothing is left behind: the disks are deleted files, and qemu dies with us.
# CCFS_GUEST_ACCEL (default tcg) is qemu's accelerator.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
seconds=120 memory=1024 parameters=
while getopts t:m:k: option; do
    case $option in
        t) seconds=$OPTARG ;;
        m) memory=$OPTARG ;;
        k) parameters=$OPTARG ;;
        *) exit 126 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 126; }
kernel=$1
shift

qemu=qemu-system-$(uname -m)
command -v "$qemu" >/dev/null || { echo "guest: $qemu is missing (Debian: qemu-system-x86)" >&2; exit 126; }
cache=$(realpath -m "${CARGO_TARGET_DIR:-$here/../../target}")/guest
mkdir -p "$cache"
if [ ! -d "$kernel" ]; then
    kernel=$("$here/kernel.sh" "$kernel" "$cache") || exit 126
fi
kernel=$(realpath "$kernel")
initramfs=$("$here/initramfs.sh" "$kernel") || exit 126

# The disks' first states. qemu writes to files that it has deleted.
disk=$cache/scratch.ext4
if [ ! -e "$disk" ]; then
    truncate -s 8G "$disk.$$"
    mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1 "$disk.$$"
    mv "$disk.$$" "$disk"
fi
empty=$cache/empty.disk
[ -e "$empty" ] || truncate -s 8G "$empty"

# Runs that were killed leave their folder; the next run removes it.
for old in "$cache"/run.*; do
    [ -d "$old" ] && [ ! -d "/proc/${old##*.}" ] && rm -rf "$old"
done
run=$cache/run.$$
mkdir -p "$run"
trap 'rm -rf "$run"' EXIT
trap 'exit 125' HUP INT TERM
{
    echo "export PATH=$(printf %q "$PATH") HOME=$(printf %q "${HOME:-/root}") TMPDIR=/scratch GUEST_DISK=/dev/vdb"
    for name in $(compgen -e | grep ^CCFS_ || true); do printf 'export %s=%q\n' "$name" "${!name}"; done
    echo 'export CCFS_TEST_DIR=/scratch'
    [ -z "${GUEST_CUT:-}" ] || echo 'export GUEST_CUT_DISK=/dev/vdc'
    printf 'cd %q\n' "$PWD"
    printf '%q ' "$@"
    echo
} >"$run/command"

cut=()
if [ -n "${GUEST_CUT:-}" ]; then
    truncate -s 0 "$GUEST_CUT/log"
    truncate -s "$GUEST_CUT_BYTES" "$GUEST_CUT/disk"
    cut=(-blockdev "node-name=cut,driver=blklogwrites,log-sector-size=512,file.driver=file,file.filename=$GUEST_CUT/disk,log.driver=file,log.filename=$GUEST_CUT/log"
        -device virtio-blk-pci,drive=cut)
fi

# A child that outlives us would keep the machine busy: each dies with its parent.
code=0
setpriv --pdeathsig TERM timeout -k 5 "$seconds" setpriv --pdeathsig KILL \
    "$qemu" -accel "${CCFS_GUEST_ACCEL:-tcg}" -cpu max -smp 2 -m "$memory" -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$kernel/vmlinuz" -initrd "$initramfs" \
    -append "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic no_timer_check mitigations=off net.ifnames=0 guest.here=$here guest.kernel=$kernel guest.run=$run $parameters" \
    -chardev "file,id=console,path=/dev/fd/3,append=on" -serial chardev:console \
    -chardev stdio,id=output,signal=off -serial chardev:output \
    -drive "file=$disk,format=raw,if=none,id=scratch,snapshot=on,cache=unsafe" -device virtio-blk-pci,drive=scratch \
    -drive "file=$empty,format=raw,if=none,id=empty,snapshot=on,cache=unsafe" -device virtio-blk-pci,drive=empty \
    "${cut[@]}" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=run,path=$run,security_model=none" \
    -device virtio-9p-pci,fsdev=run,mount_tag=run \
    -device virtio-rng-pci </dev/null 3> >(cat >&2) || code=$?

if [ -s "$run/code" ]; then
    exit "$(cat "$run/code")"
fi
case $code in
    124 | 137) echo "guest: killed after $seconds seconds" >&2; exit 124 ;;
    *) echo "guest: ended without an exit code (qemu: $code)" >&2; exit 125 ;;
esac
