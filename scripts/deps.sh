#!/usr/bin/env bash
# Installs what is missing, and only that. usage: deps.sh build|run|check|test|deb|dist|recipes|suites|targets|packages NAME...
#   build  what compiling needs          run   what mounting needs
#   deb    what `make deb` needs          dist  what `make dist` needs: debootstrap; the rest is in its chroot
#   check  what `make check` needs: e2fsprogs, rustfmt, clippy
#   test   what `make test` needs: the above, the packages of verify/tests/packages.txt, rustfmt, clippy, cargo-deny
set -euo pipefail
cd "$(dirname "$0")/.."

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif have sudo; then sudo "$@"
    else
        echo "this needs root, and there is no sudo: $*" >&2
        return 1
    fi
}

# Installs the packages named; quiet, and without questions.
install() {
    [ $# -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "missing, and there is no apt-get to install them: $*" >&2
        return 1
    fi
    echo "installing: $*"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0)
    as_root "${apt[@]}" install --no-install-recommends "$@" >/tmp/ccfs-apt.$$ 2>&1 ||
        { as_root "${apt[@]}" update >/dev/null 2>&1 &&
          as_root "${apt[@]}" install --no-install-recommends "$@" >/tmp/ccfs-apt.$$ 2>&1; } ||
        { cat /tmp/ccfs-apt.$$ >&2; rm -f /tmp/ccfs-apt.$$; return 1; }
    rm -f /tmp/ccfs-apt.$$
}

have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

build() {
    if ! have cargo; then
        echo "Rust is missing; see https://rustup.rs" >&2
        return 1
    fi
    have cc || install gcc libc6-dev
}

# What every test of a volume needs.
volumes() {
    have mke2fs && have e2fsck && have debugfs || install e2fsprogs
}

run() {
    local missing=()
    have mke2fs && have e2fsck || missing+=(e2fsprogs)
    have blkid || missing+=(util-linux)
    have umount || missing+=(mount)
    install "${missing[@]}"
    if [ ! -e /dev/fuse ] && ! as_root modprobe fuse 2>/dev/null; then
        echo "/dev/fuse is missing: this kernel has no FUSE, or this container may not use it" >&2
        return 1
    fi
}

# Of the packages named, those that are not there.
packages() {
    local missing=() name
    for name in "$@"; do
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
    done
    install "${missing[@]}"
}

# What only the tests need.
test_packages() {
    local list=verify/tests/packages.txt
    [ -e "$list" ] || return 0
    packages $(sed 's/#.*//' "$list")
}

# What `make deb` needs.
deb() {
    local missing=()
    have python3 || missing+=(python3)
    have dpkg-shlibdeps || missing+=(dpkg-dev)
    have objdump || missing+=(binutils)
    install "${missing[@]}"
}

# What `make dist` and `make dist-try` need. That of `make deb` is for --here; the chroot has its own.
dist() {
    deb
    local missing=()
    have debootstrap || missing+=(debootstrap)
    have curl || missing+=(curl)
    have unshare || missing+=(util-linux)
    have xz || missing+=(xz-utils)
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
    install "${missing[@]}"
}

# What only `make recipes` needs.
recipes() {
    local missing=()
    have hg || missing+=(mercurial)
    have mmdebstrap || missing+=(mmdebstrap)
    ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1 || missing+=(postgresql)
    install "${missing[@]}"
}

# What scripts/direct-suites.sh needs: what the sources of other programs are fetched, compiled and tested with.
suites() {
    local missing=()
    build
    recipes
    have dpkg-source && have make || missing+=(dpkg-dev make)
    [ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)
    [ -e /usr/include/openssl/sha.h ] || missing+=(libssl-dev)
    [ -e /usr/include/tcl8.6/tcl.h ] || missing+=(tcl-dev)
    have debootstrap || missing+=(debootstrap)
    have fusermount3 || missing+=(fuse3)
    have rsync || missing+=(rsync)
    have npm || missing+=(npm)
    /usr/bin/python3 -c 'import test.test_os, ensurepip' 2>/dev/null || missing+=(python3-venv "libpython$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')-testsuite")
    install "${missing[@]}"
}

# What `make test-aarch64` needs: the oldest Rust, compilers and C libraries of the other targets, and an emulator.
targets() {
    build
    local missing=() target oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
    rustup run "$oldest" rustc --version >/dev/null 2>&1 || rustup toolchain install "$oldest" --profile minimal
    for target in aarch64-unknown-linux-gnu x86_64-unknown-linux-musl; do
        [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || rustup target add "$target"
    done
    have aarch64-linux-gnu-gcc && [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
    have qemu-aarch64 || missing+=(qemu-user)
    have musl-gcc || missing+=(musl-tools)
    install "${missing[@]}"
}

formatters() {
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
}

cargo_tools() {
    formatters
    # Unoptimised: compiling it takes longer than running it. Its own folder: our target may be on a cache.
    cargo deny --version >/dev/null 2>&1 || env -u CARGO_TARGET_DIR cargo install --quiet --locked --debug cargo-deny
}

case "${1:-}" in
    build) build ;;
    run) run ;;
    check) build; volumes; formatters ;;
    test) build; run || true; test_packages; cargo_tools ;;
    deb) deb ;;
    dist) dist ;;
    recipes) recipes ;;
    suites) suites ;;
    packages) packages "${@:2}" ;;
    targets) targets ;;
    *) echo "usage: $0 build|run|check|test|deb|dist|recipes|suites|targets|packages NAME..." >&2; exit 2 ;;
esac
