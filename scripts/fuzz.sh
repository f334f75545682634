#!/usr/bin/env bash
# Fuzzes every target for FUZZ_SECONDS (600) with FUZZ_JOBS (1) processes each, from where the last run ended
# (verify/fuzz/work), keeps a minimised corpus in verify/fuzz/corpus/TARGET.tar.gz and adds a line per target to docs/fuzzing.md.
# usage: fuzz.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/../verify"
seconds=${FUZZ_SECONDS:-600} jobs=${FUZZ_JOBS:-1}
log=../docs/fuzzing.md
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(hostile_image log_recovery structures fuse_requests ioctls direct_memory)

command -v cargo-fuzz >/dev/null || env -u CARGO_TARGET_DIR cargo install --quiet --locked --debug cargo-fuzz
toolchain=$(sed -n 's/^channel = "\(.*\)"/\1/p' fuzz/rust-toolchain.toml)
rustup run "$toolchain" rustc --version >/dev/null 2>&1 || rustup toolchain install "$toolchain" --profile minimal
host=$(rustc -vV | sed -n 's/^host: //p')
build=$(realpath -m "${CARGO_TARGET_DIR:-../target}")/fuzz
fuzz() {
    env RUSTUP_TOOLCHAIN="$toolchain" CARGO_TARGET_DIR="$build" cargo fuzz "$1" --fuzz-dir fuzz --sanitizer none --target "$host" "${@:2}"
}

# Starts from what is known: the kept corpus and the seeds that the program makes.
cargo run --quiet --release -p ccfs-fuzzing --bin ccfs-fuzz-seeds -- fuzz/work/seeds
fuzz build
failed=0
for target in "${targets[@]}"; do
    mkdir -p "fuzz/work/$target" "fuzz/corpus/$target" "fuzz/artifacts/$target"
    # Unpacked for the run, and packed again with the same bytes for the same inputs.
    kept=fuzz/corpus/$target
    tar -xzf "$kept.tar.gz" -C "$kept"
    out=fuzz/work/$target.log
    before=$(ls "fuzz/artifacts/$target" | wc -l)
    echo "== $target: $seconds s in $jobs processes"
    # A machine that does other things gives less than a core a process: what is written down is processor time.
    used=$( (TIMEFORMAT='%U %S'; time fuzz run "$target" "fuzz/work/$target" "$kept" "fuzz/work/seeds/$target" -- \
        -max_total_time="$seconds" -fork="$jobs" -ignore_crashes=1 -ignore_timeouts=1 -ignore_ooms=1 \
        -timeout="${FUZZ_TIMEOUT:-30}" -rss_limit_mb=3072 -max_len=16384 >"$out" 2>&1 || true) 2>&1 | awk '{ printf "%d", $1 + $2 }')
    tail -n 3 "$out"
    found=$(($(ls "fuzz/artifacts/$target" | wc -l) - before))
    [ "$found" = 0 ] || failed=1
    # The smallest set of inputs with the same coverage, the kept ones first.
    fuzz run "$target" "$kept" "fuzz/work/$target" -- -merge=1 -max_len=16384 >>"$out" 2>&1 || true
    (cd "$kept" && find . -type f -printf '%P\n' | LC_ALL=C sort |
        tar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644 -cf - -T - | gzip -9n) >"$kept.tar.gz.new"
    mv "$kept.tar.gz.new" "$kept.tar.gz"
    last=$(grep -E '^#[0-9]+: cov: ' "$out" | tail -n 1)
    runs=$(sed -n 's/^#\([0-9]*\):.*/\1/p' <<<"$last") cov=$(sed -n 's/.*cov: \([0-9]*\) .*/\1/p' <<<"$last")
    count=$(ls "$kept" | wc -l)
    rm -r "$kept"
    echo "| $(date -u +%F) | $target | $used | ${runs:-?} | ${cov:-?} | $count | $found |" >>"$log"
done
du -sh fuzz/corpus
[ "$failed" = 0 ] || { echo "findings in fuzz/artifacts; cargo fuzz run TARGET FILE shows one"; exit 1; }
