#!/usr/bin/env bash
# Tries what `make dist` made in a chroot of each distribution that is promised, as a user would, and writes the table of it.
# usage: try.sh DIST-DIR [RESULT [SUITE...]]      RESULT: by default docs/results/DATE-install.md
# The kernel is that of this machine; it needs root, /dev/fuse and loop devices. The roots stay in DIST-DIR-cache.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/packaging/chroot.sh"
usage="usage: try.sh DIST-DIR [RESULT [SUITE...]]"
[ "${1:-}" = inside ] || in_namespaces "$@"
shift
dist=$(realpath "${1:?$usage}")
result=${2:-$top/docs/results/$(date -u +%F)-install.md}
suites=("${@:3}")
[ $# -ge 3 ] || suites=(bookworm trixie jammy noble)
cache=$dist-cache
[ -e "$dist/SHA256SUMS" ] || { echo "$dist has no release; make one: make dist" >&2; exit 1; }
tarball=$(basename "$dist"/ccfs-*.tar.xz)

# Each step is a column: its name, and what is run in the chroot, in a folder with the files of the release.
STEPS=(checksums install version mkfs "put, get, ls" "mount, write, umount, fsck" "LABEL=" library remove tarball)
step() {
    case $1 in
        checksums) echo 'sha256sum -c SHA256SUMS' ;;
        install) echo 'apt-get -q -y install ./ccfs_*.deb' ;;
        version) echo 'ccfs --version' ;;
        mkfs) echo 'ccfs mkfs -s 64M -L try-ccfs disk.img' ;;
        put*) echo 'echo text >f; ccfs put f disk.img:/f; ccfs get disk.img:/f g; cmp f g; ccfs ls disk.img | grep -x f' ;;
        mount*)
            echo 'mkdir mnt; mount -t ccfs "$PWD/disk.img" mnt; cmp f mnt/f; echo more >mnt/g; ccfs status mnt; umount mnt'
            echo 'ccfs fsck -fn disk.img; ccfs cat disk.img:/g | grep -x more'
            ;;
        LABEL=)
            echo 'loop=$(losetup --find --show disk.img); trap "losetup -d $loop" EXIT; ccfs mount LABEL=try-ccfs mnt; cmp f mnt/f'
            echo 'ccfs umount LABEL=try-ccfs; e2fsck -fn "$loop"'
            ;;
        library) echo 'apt-get -q -y install ./libccfs1_*.deb ./libccfs-dev_*.deb; ldconfig -p | grep -F libccfs.so.1' ;;
        remove) echo 'apt-get -q -y purge ccfs libccfs1 libccfs-dev; [ -z "$(find /usr /etc /var/lib/systemd -name "*ccfs*")" ]' ;;
        tarball)
            echo 'tar -xf ccfs-*.tar.xz; cd ccfs-*-linux; scripts/install.sh install bin/ccfs; scripts/install-libs.sh lib'
            echo '/usr/local/bin/ccfs --version; ldconfig -p | grep -F /usr/local/lib/libccfs.so.1'
            echo 'scripts/install.sh uninstall bin/ccfs; [ -z "$(find /usr /etc /sbin/ -name "*ccfs*")" ]'
            ;;
    esac
}

# try SUITE: its row, in $row.
try() {
    local root=$cache/try-$1 column log name
    bootstrap "$1" "$root" "$cache" updates xz-utils
    rm -rf "$root/try"
    mkdir "$root/try"
    cp "$dist"/* "$root/try/"
    name=$(. "$root/etc/os-release" && echo "$PRETTY_NAME")
    row="| $name | $(enter "$root" dpkg-query -W -f '${Version}' libc6) |"
    for column in "${STEPS[@]}"; do
        log=$cache/try-$1.${column%%[, =]*}.log
        if enter "$root" sh -euc "cd /try; $(step "$column")" >"$log" 2>&1; then
            row+=" yes |"
        else
            row+=" **no** |"
            failed=1
            echo "$name, $column:" >&2
            tail -n 20 "$log" >&2
        fi
    done
    rm -rf "$root/try"
    enter "$root" apt-get -q -y autoremove --purge >/dev/null 2>&1 || true
}

failed=0
{
    for suite in "${suites[@]}"; do
        try "$suite"
        rows+=("$row")
    done
} </dev/null
columns=$(printf ' %s |' "${STEPS[@]}")
lines=$(printf -- '---|%.0s' "${STEPS[@]}")
processors="$(nproc) processors ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p))"
cat >"$result" <<END
# The release in chroots of distributions

Command: \`make dist\`, then \`make dist-try\`, which makes this file. \`packaging/try.sh\` has what each
column runs.
Files: \`$tarball\` and the packages beside it, of commit $(sed -n '1s/.*commit //p' "$dist"/*.build.txt | cut -c1-12).
Date: $(date -u +%F). Machine: Linux $(uname -r), $processors.

Each root was made by debootstrap (\`--variant=minbase\`), with the updates of its distribution. The
kernel is that of the machine. So the table shows that the packages can be installed there, and that
the programs work with the libraries and tools of that distribution. What is known of kernels is in
[kernels.md](../kernels.md).

| distribution | glibc |$columns
|---|---|$lines
$(printf '%s\n' "${rows[@]}")
END
[ -z "${SUDO_UID:-}" ] || chown "$SUDO_UID:${SUDO_GID:-0}" "$result"
cat "$result"
exit $failed
