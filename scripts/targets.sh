#!/usr/bin/env bash
# ccfs for other targets and compilers, on this machine: it is compiled with the oldest Rust of Cargo.toml, for aarch64, where its tests
# run under qemu-user, and for musl. Goes on after a failure.
# usage: targets.sh [check]    check: compile, run nothing
set -uo pipefail
cd "$(dirname "$0")/.."

ARM=aarch64-unknown-linux-gnu
MUSL=x86_64-unknown-linux-musl
# What Cargo.toml promises.
OLDEST=$(sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
# Programs that tests start (e2fsck, debugfs) are this machine's own: they run as they are.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
export CC_x86_64_unknown_linux_musl=musl-gcc

# Packages whose tests compute.
TESTED=(device ext4 image log engine client caller offline)
# Of these only the unit tests: the others of fuse mount, for which qemu-user lacks ioctls and more; the explorations of crash are the
# same code on every machine, and take hours there.
UNIT_TESTED=(fuse crash)

failed=()
part() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    "$@" </dev/null || failed+=("$name")
    printf '%4d s  %s\n' $((SECONDS - start)) "$name"
}

# Tests that qemu-user cannot run: `NAME  WHY` a line, blank lines and comments aside.
skipped() { sed -e 's/#.*//' -e '/^ *$/d' scripts/targets-skipped.txt; }

arm_test() { cargo test --quiet --release --no-fail-fast --target "$ARM" "$@"; }

arm_tests() {
    local skip=() name why status=0
    while read -r name why; do
        echo "skipped: $name: $why"
        skip+=(--skip "$name")
    done < <(skipped)
    arm_test "${TESTED[@]/#/-pccfs-}" --tests -- "${skip[@]}" || status=1
    arm_test "${UNIT_TESTED[@]/#/-pccfs-}" --lib -- "${skip[@]}" || status=1
    return "$status"
}

scripts/deps.sh targets || exit 1
part "check with Rust $OLDEST" cargo "+$OLDEST" check --quiet --workspace --all-targets --locked
part "check for aarch64" cargo check --quiet --workspace --all-targets --target "$ARM"
part "check for musl" cargo check --quiet --workspace --bins --lib --target "$MUSL"
[ "${1:-}" = check ] || part "tests for aarch64" arm_tests
if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
