#!/usr/bin/env bash
# ThreadSanitizer over the engine's threads: streams, syncs, commits, apply and checkpoints at once. Part of `make soak`.
# Needs the pinned nightly (that of fuzzing) with its sources, which rustup brings. Where it cannot, Helgrind looks instead (slower, and it knows nothing of
# atomics, so only its reports of lock order and of misused locks count).
set -euo pipefail
cd "$(dirname "$0")/.."
NIGHTLY=${CCFS_NIGHTLY:-nightly-2026-05-20}
TARGET=$(rustc -vV | sed -n 's/^host: //p')
# Debuggable and fast enough; nothing else of the caller's flags, which may not suit another compiler.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/tsan" CARGO_PROFILE_RELEASE_OPT_LEVEL=1

if rustup toolchain install "$NIGHTLY" --profile minimal --component rust-src >/dev/null 2>&1 &&
    version=$(rustc "+$NIGHTLY" --version 2>/dev/null); then
    echo "ThreadSanitizer, $version"
    export RUSTFLAGS="-Zsanitizer=thread" TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
    cargo "+$NIGHTLY" test --quiet --release -Zbuild-std --target "$TARGET" -p ccfs-engine --test stress -- threads_ nobody_succeeds
    cargo "+$NIGHTLY" test --quiet --release -Zbuild-std --target "$TARGET" -p ccfs-crash --test threads -- crashes_of_concurrent_streams
    echo "no data race"
    exit
fi
echo "rustup cannot install $NIGHTLY here: no ThreadSanitizer; Helgrind runs instead"
if ! command -v valgrind >/dev/null; then
    echo "skipped: valgrind is not installed (apt-get install valgrind)"
    exit
fi
program=$(cargo test --release --no-run --message-format=json -p ccfs-engine --test stress 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*stress-[^"]*\)".*/\1/p')
log=$(mktemp)
valgrind --tool=helgrind --history-level=none --log-file="$log" "$program" threads_4k
if grep -E 'lock order|unlocked|exiting thread still holds' "$log"; then
    echo "Helgrind's report: $log"
    exit 1
fi
rm -f "$log"
echo "no misused lock"
