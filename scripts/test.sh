#!/usr/bin/env bash
# Everything that CI checks. Prints how long each part took; goes on after a failure and tells all at the end.
# usage: test.sh [check]    check: what comes before every commit: format, clippy, and the tests that mount nothing and are short
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
times=()
why=()
told=$(mktemp)
trap 'rm -f "$told"' EXIT

# part NAME COMMAND...
part() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    # What failed is told once more at the end: in between there is much to read.
    if ! "$@" </dev/null 2>&1 | tee "$told"; then
        failed+=("$name")
        why+=("$(grep -E -A 4 ' panicked at |^error' "$told" | grep -vE '^(stack backtrace:|note:|--$| +[0-9]+: | +at )' | head -n 40)")
    fi
    times+=("$(printf '%4d s  %s' $((SECONDS - start)) "$name")")
}

# Packages whose tests mount nothing: they only compute, so they run beside the others, and give way to them.
computing='/(command|crash|device|engine|ext4|faults|fuzzing|image|log)/Cargo.toml'

# Suites that wait for others most of the time (servers, hosts that are frozen, connections that break): beside all others.
waiting='/remote/Cargo.toml|/ccfs/Cargo.toml.*	store$'

# Suites that call sync(2), which commits on every mount of the machine: beside those that mount nothing.
syncing='/(ccfs|tests)/Cargo.toml.*	(sentinel|sync_calls)$'

# Test programs of these packages that take long, measure, or mount with the kernel's ext4: `make check` leaves them out. All of
# those of crash, faults and fuzzing take long.
long=' stress throughput fsync_devices image_kernel image_speed dir_scale '

# built ARGS...: builds tests of the workspace, and prints manifest, program, kind and name of each suite. Always of the whole workspace:
# with fewer packages cargo builds many anew, with other features.
built() {
    cargo test --quiet --release --workspace --no-run --message-format=json-render-diagnostics "$@" |
        jq -r 'select(.executable and .profile.test) | [.manifest_path, .executable, .target.kind[0], .target.name] | @tsv'
}

# lane LOG COMMAND...: runs the suites that stdin names (manifest, program), each with COMMAND, and shows one when it has ended. Lanes can
# share what they read.
lane() {
    local all=$1 manifest program log begun used status=0
    local TIMEFORMAT='%0R s; of processors %0U s, %0S s in the kernel'
    shift
    log=$(mktemp)
    while { flock 9 && IFS=$'\t' read -r manifest program _; } 9<"$all"; do
        [ -n "$manifest" ] || continue
        begun=$SECONDS
        echo "     Running $program" >"$log"
        used=$({ time { (cd "$(dirname "$manifest")" && exec "$@" "$program") </dev/null >>"$log" 2>&1; }; } 2>&1) || status=1
        [ $((SECONDS - begun)) -lt 20 ] || echo "     $used" >>"$log"
        {
            flock 9
            grep -vE '^(test .* \.\.\. ok|running [0-9]+ tests?)?$' "$log"
            cat "$log" >>"$all"
        } 9<"$all"
    done
    rm -f "$log"
    return "$status"
}

# beside LOG FIRST SUITES [WAITING [BEFORE]]: runs lists of suites beside each other: those of the first niced, and when they are done some
# of the second, so that no processor rests. Before the second and those that wait come those of `BEFORE`.
beside() {
    local log=$1 before=$1.before main=$BASHPID second waits suites status=0
    exec {suites}<<<"$3"
    (
        lane "$log" nice -n 15 <<<"$2" {suites}<&- || status=1
        until [ -e "$before" ]; do
            kill -0 "$main" 2>/dev/null || exit 1
            sleep 0.1
        done
        lane "$log" env <&"$suites" {suites}<&- || status=1
        exit "$status"
    ) &
    second=$!
    trap 'trap - INT TERM; kill 0' INT TERM
    lane "$log" env <<<"${5:-}" {suites}<&- || status=1
    touch "$before" || { kill "$second"; status=1; }
    lane "$log" env <<<"${4:-}" {suites}<&- &
    waits=$!
    lane "$log" env <&"$suites" {suites}<&- || status=1
    wait "$second" || status=1
    wait "$waits" || status=1
    rm -f "$before"
    return "$status"
}

# Sums up closing lines.
counts() {
    awk '/^test result:/ { suites++; ok += $4; bad += $6; ignored += $8 }
         END { printf "tests: %d passed, %d failed, %d ignored in %d suites\n", ok, bad, ignored, suites }' "$1"
}

# The short tests of `computing`, the unit tests of the program, and the rules of the house.
short_tests() {
    local programs=() file name suites log status=0
    for file in crates/{device,engine,ext4,image,log}/tests/*.rs; do
        name=$(basename "$file" .rs)
        [[ $long == *" $name "* ]] || programs+=(--test "$name")
    done
    # Other packages have test programs of the same names.
    suites=$(built --lib --bins --test style "${programs[@]}" | awk -F '\t' -v computing="$computing" '
        $3 == "test" ? $1 ~ "/crates/(device|engine|ext4|image|log)/" || $4 == "style" \
                     : $1 ~ computing || $1 ~ "/ccfs/Cargo.toml"') || return
    log=$(mktemp)
    beside "$log" "" "$suites" || status=1
    counts "$log"
    rm -f "$log"
    return "$status"
}

# run_suites SUITES: those that only compute beside the others; sums up their closing lines.
run_suites() {
    local log status=0
    log=$(mktemp)
    beside "$log" "$(grep -E "$computing" <<<"$1")" "$(grep -vE "$computing|$waiting|$syncing" <<<"$1")" \
        "$(grep -E "$waiting" <<<"$1")" "$(grep -E "$syncing" <<<"$1")" || status=1
    counts "$log"
    rm -f "$log"
    return "$status"
}

# All tests.
tests() {
    local suites status=0
    suites=$(built) || return
    run_suites "$suites" || status=1
    cargo test --quiet --release --workspace --doc || status=1
    return "$status"
}

# Mounts take io_uring by themselves where it is to be had; these tests go by /dev/fuse as well.
over_dev_fuse() {
    CCFS_TEST_TRANSPORT=dev cargo test --quiet --release --workspace --test mounted --test ioctls --test status_dir --test streams --test kill9
}

# Mounts as before Linux 6.18, where sync calls come by way of the mount's loop device: kills, signals, namespaces.
as_before_linux_6_18() {
    # Of the whole workspace, as they were built: with fewer packages cargo builds many anew, with other features.
    CCFS_TEST_OLD_KERNEL=1 cargo test --quiet --release --workspace --test life --test stop --test namespace &&
        CCFS_TEST_OLD_KERNEL=1 cargo test --quiet --release --workspace --test sync_calls -- --skip under_linux_6_1 --skip ext4
}

# Volumes have a log; these tests take volumes on transactional flash, which commit without one. `make test-flash` runs all that can.
on_flash() {
    local names='atomic|barriers|bounds|counters|damaged|faults|groups|limits|numbers_and_order|smoke|trees|watch|mounted|posix|kill9|exercise'
    local suites
    suites=$(built | awk -F '\t' -v names="^($names)\$" '$3 == "test" && $4 ~ names && $1 !~ "/(crash|faults)/Cargo.toml"') || return
    CCFS_TEST_BACKEND=flash CCFS_TEST_ROUNDS=9 run_suites "$suites"
}

doc() { RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --quiet --release --workspace --no-deps; }

# clippy as everything else is built: what proc macros and build scripts make is made once.
lint() { cargo clippy --quiet --release --workspace --all-targets -- -D warnings; }

# What comes before every commit.
check() {
    part "install what is missing" scripts/deps.sh check
    part "format" cargo fmt --all --check
    part "clippy" lint
    part "short tests" short_tests
}

everything() {
    if [ "$(id -u)" != 0 ]; then
        echo "skipped: tests that mount volumes: they need root"
    elif [ ! -e /dev/fuse ]; then
        echo "skipped: tests that mount volumes: there is no /dev/fuse"
    elif [ ! -e /dev/loop-control ]; then
        echo "skipped: tests that need loop devices: there is no /dev/loop-control"
    fi

    part "install what is missing" scripts/deps.sh test
    part "format" cargo fmt --all --check
    part "clippy" lint
    part "licenses and sources of dependencies" cargo deny --log-level error check licenses bans sources
    part "documentation" doc
    part "build" cargo build --quiet --release --workspace --all-targets
    part "tests" tests
    part "tests over /dev/fuse" over_dev_fuse
    part "tests as before Linux 6.18" as_before_linux_6_18
    part "tests on flash" on_flash
    # A sample, each of another kind; `make fish` looks for all of them.
    part "planted bugs are found" cargo run --quiet --release -p ccfs-crash --features planted --bin ccfs-crash-explore -- \
        --bugs skipped-flush,stale-checksum,dependency-name,dropped-deps,early-block-reuse,wrong-version,home-before-log,field-order,shared-flush-early
}

case "${1:-}" in
    check) check ;;
    '') everything ;;
    *) echo "usage: $0 [check]" >&2; exit 2 ;;
esac
printf '%s\n' "== time" "${times[@]}" "$(printf '%4d s  all' $SECONDS)"
if [ ${#failed[@]} -gt 0 ]; then
    for i in "${!failed[@]}"; do printf 'FAILED: %s\n%s\n' "${failed[i]}" "${why[i]}"; done
    exit 1
fi
echo "all passed"
