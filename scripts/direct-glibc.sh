#!/usr/bin/env bash
# `ccfs direct` with the C library and the tools of each distribution that is promised: tests as they were built here, in chroots.
# usage: direct-glibc.sh [SUITE...]
# The kernel is that of this machine; it needs root, and where tests mount /dev/fuse and loop devices. The roots stay in
# CARGO_TARGET_DIR/direct-roots, 700 MB each.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/packaging/chroot.sh"
if [ "${1:-}" != inside ]; then
    "$top/scripts/deps.sh" test
    "$top/scripts/deps.sh" dist
    in_namespaces "$@"
fi
shift
target=$(realpath "${CARGO_TARGET_DIR:-$top/target}")
suites=("$@")
[ $# -gt 0 ] || suites=(bookworm trixie jammy noble)
# What the tests of unmodified programs start.
PACKAGES=(gcc g++ libc6-dev binutils make git gdb strace python3 sqlite3 rsync jq e2fsprogs fuse3 procps psmisc attr acl xz-utils valgrind bash dash util-linux)

# Programs: cargo's list of what it built. (With the features of the whole workspace, as `make test` has them.)
cd "$top"
built=$(cargo test --quiet --release --workspace --no-run --message-format=json-render-diagnostics --test same --test unmodified |
    jq -r 'select(.executable and .profile.test) | [.target.name, .manifest_path, .executable] | @tsv')
program() {
    awk -F '\t' -v name="$1" -v package="/$2/Cargo.toml" '$1 == name && index($2, package) { print $3 }' <<<"$built"
}
same=$(program same crates/preload)
unmodified=$(program unmodified verify/tests)
"$top/packaging/glibc.sh" 2.34 "$same" "$unmodified" "$target"/release/{ccfs,libccfs_direct.so} >/dev/null

# run ROOT DIR PROGRAM [ARGUMENT...]: a test program, in the folder of its package.
run() {
    local root=$1 dir=$2
    shift 2
    enter "$root" env -C "$dir" CI=1 CCFS_BIN="$target/release/ccfs" CCFS_LOG_KMSG=/dev/null timeout -k 10 900 "$@"
}

try() {
    local root=$target/direct-roots/$1 place
    mkdir -p "$target/direct-roots"
    bootstrap "$1" "$root" "$target/direct-roots" updates "${PACKAGES[@]}" || return
    # Its root is a mount, as some programs expect, with the mounts that are in it by now; and all is at the same paths as here, since
    # they are built into the programs.
    mount --rbind "$root" "$root"
    for place in "$top" "$target"; do
        mkdir -p "$root$place"
        mountpoint -q "$root$place" || mount --bind "$place" "$root$place"
    done
    echo "== $(. "$root/etc/os-release" && echo "$PRETTY_NAME"), glibc $(enter "$root" dpkg-query -W -f '${Version}' libc6)"
    run "$root" "$top/crates/preload" "$same" --show-output &&
        run "$root" "$top/verify/tests" "$unmodified"
}

failed=()
for suite in "${suites[@]}"; do
    (try "$suite") </dev/null || failed+=("$suite")
done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
