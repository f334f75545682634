#!/usr/bin/env bash
# Makes what a release has, from the last commit: Debian packages, a tarball, checksums, a software bill of materials. Built in a chroot
# of the oldest distribution that is promised, with everything pinned: the same commit gives the same bytes on every machine.
# usage: dist.sh [--twice] [--here] [OUT-DIR]
#   --twice   build it two times from nothing, and compare the bytes
#   --here    without a chroot, with the compilers of this machine: other bytes, but no root and no download of a distribution
# OUT-DIR: by default target/dist. The chroot and what was downloaded stay in OUT-DIR-cache.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/packaging/chroot.sh"

# The oldest promised one; its first release, which never changes any more.
SUITE=jammy
PACKAGES=(gcc libc6-dev libsqlite3-dev dpkg-dev binutils xz-utils python3)
RUST=1.95.0
HOST=x86_64-unknown-linux-gnu
RUST_SHA256="
rustc    8426a3d170a5879f5682f5fbdd024a1779b3951e7baba685af2d6dc32a6dfc15
cargo    e74edd2cf7d0f1f1383b4f00eb90c843750bc489e2ccf7214e6476678a907425
rust-std 047ea7098803d3500fa1072e9cee5392697e21525559e4458128a2bf874aa382"

inside= here= twice= out=
[ "${1:-}" != inside ] || { inside=1; shift; }
args=("$@")
for arg in "$@"; do
    case $arg in
        --twice) twice=1 ;;
        --here) here=1 ;;
        -*) echo "usage: dist.sh [--twice] [--here] [OUT-DIR]" >&2; exit 2 ;;
        *) out=$arg ;;
    esac
done
out=$(realpath -m "${out:-${CARGO_TARGET_DIR:-$top/target}/dist}")
cache=$out-cache
git=(git -c safe.directory="$top" -C "$top")
[ -n "$here$inside" ] || in_namespaces "${args[@]}"
[ "$(uname -m)" = x86_64 ] || [ -n "$here" ] || { echo "only on x86_64; --here builds for this machine" >&2; exit 1; }

# What is released is a commit.
commit=$("${git[@]}" rev-parse HEAD)
epoch=$("${git[@]}" log -1 --format=%ct)
[ -z "$("${git[@]}" status --porcelain --untracked-files=no)" ] || echo "what is not committed is left out" >&2
mkdir -p "$out" "$cache"

# The toolchain, unpacked into a root.
rust_into() {
    local root=$1 name sum file
    [ ! -e "$root/opt/rust/.made-of-$RUST" ] || return 0
    rm -rf "$root/opt/rust"
    while read -r name sum; do
        [ -n "$name" ] || continue
        file=$name-$RUST-$HOST.tar.xz
        fetch "https://static.rust-lang.org/dist/$file" "$cache/$file" "$sum"
        mkdir -p "$root/opt/unpacked"
        tar -xJf "$cache/$file" -C "$root/opt/unpacked" --strip-components=1
        chroot "$root" sh /opt/unpacked/install.sh --prefix=/opt/rust --disable-ldconfig >/dev/null
        rm -r "$root/opt/unpacked"
    done <<<"$RUST_SHA256"
    touch "$root/opt/rust/.made-of-$RUST"
}

# sources DIR: those of the commit.
sources() {
    rm -rf "$1"
    mkdir -p "$1"
    "${git[@]}" archive "$commit" | tar -x -C "$1"
}

# once OUT: from nothing to all files.
once() {
    local to=$1 root=$cache/$SUITE work
    rm -rf "$to"
    mkdir -p "$to"
    if [ -n "$here" ]; then
        work=$cache/here
        sources "$work/src"
        rm -rf "$work/target"
        "$work/src/packaging/build.sh" "$work/src" "$work/target" "$to" "$commit" "$epoch"
        rm -rf "$work"
        return
    fi
    work=$root/build
    sources "$work/src"
    rm -rf "$work/target" "$work/out"
    mkdir -p "$work/target" "$work/out"
    enter "$root" CARGO_HOME=/build/cargo PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin ${CARGO_BUILD_JOBS:+CARGO_BUILD_JOBS=$CARGO_BUILD_JOBS} \
        CARGO_NET_OFFLINE=true /build/src/packaging/build.sh /build/src /build/target /build/out "$commit" "$epoch"
    cp "$work"/out/* "$to/"
    rm -rf "$work/target" "$work/src" "$work/out"
}

if [ -z "$here" ]; then
    bootstrap $SUITE "$cache/$SUITE" "$cache" release "${PACKAGES[@]}"
    rust_into "$cache/$SUITE"
    # Dependencies, by the checksums of Cargo.lock. The pinned cargo runs on this machine, since names are resolved here.
    sources "$cache/fetched"
    CARGO_HOME=$cache/$SUITE/build/cargo "$cache/$SUITE/opt/rust/bin/cargo" fetch --quiet --locked --target $HOST \
        --manifest-path "$cache/fetched/Cargo.toml"
    rm -rf "$cache/fetched"
fi
once "$cache/first"
if [ -n "$twice" ]; then
    once "$cache/second"
    if ! diff -r "$cache/first" "$cache/second" >&2; then
        echo "two builds differ: $cache/first and $cache/second" >&2
        exit 1
    fi
    rm -rf "$cache/second"
    echo "two builds gave the same bytes" >&2
fi
rm -f "$out"/*
mv "$cache"/first/* "$out/"
rmdir "$cache/first"
[ -z "${SUDO_UID:-}" ] || chown -R "$SUDO_UID:${SUDO_GID:-0}" "$out"
ls -l "$out" >&2
