#!/usr/bin/env bash
# An image build: mmdebstrap makes a Debian system on ccfs, without a sync, and it becomes the lower layer of a container. Needs a Debian
# mirror (MIRROR, default that of this machine).
. "$(dirname "$0")/lib.sh"
needs mmdebstrap tar python3
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
start 2G
mkdir "$mnt/layers" "$place/merged"
before_finish() { umount -l "$place/merged" 2>/dev/null; }
debian() { mmdebstrap --quiet --mode=root --variant=essential "$suite" "$1.new" ${MIRROR:+"$MIRROR"} >"$place/out" 2>&1 || { cat "$place/out" >&2; exit 1; }; mv "$1.new" "$1"; }
export -f debian
export place suite
measure "mmdebstrap" bash -euc 'debian "$@"' - "$mnt/layers/plain"
plain=$flushes
in_stream() { "$CCFS" stream run --on "$mnt" --ignore-fsync --sync -- bash -euc 'debian "$@"' - "$@"; }
measure "mmdebstrap, in a stream" in_stream "$mnt/layers/debian"
fewer "$flushes" "$plain" "flushes"

crash
# What the command answered for is there: it had ended with a sync of its stream.
[ "$(chroot "$mnt/layers/debian" dpkg-query -W | wc -l)" -ge 20 ]
chroot "$mnt/layers/debian" dpkg --audit
mkdir "$mnt/upper" "$mnt/work"
mount -t overlay overlay -o "lowerdir=$mnt/layers/debian,upperdir=$mnt/upper,workdir=$mnt/work" "$place/merged"
chroot "$place/merged" sh -euc 'echo hello >/root/file; rm /etc/issue; dpkg -V base-files 2>&1 | grep -q issue'
umount "$place/merged"
[ "$(cat "$mnt/upper/root/file")" = hello ] && [ -c "$mnt/upper/etc/issue" ]
echo "after the crash: the system is whole, and a container runs over it"
echo ok
