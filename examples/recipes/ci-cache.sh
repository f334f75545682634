#!/usr/bin/env bash
# A CI cache: jobs unpack into a temporary directory and publish it by a rename. No syncs, jobs do not wait for each other, and whatever has
# its name after a crash or a cancelled job is whole.
. "$(dirname "$0")/lib.sh"
needs tar sha256sum python3
start 512M
mkdir "$place/tree" "$mnt/cache"
for n in $(seq 300); do seq "$n" $((n * 9)) >"$place/tree/$n"; done
(cd "$place/tree" && sha256sum -- * >"$place/sums" && cp "$place/sums" .sums)
tar -C "$place/tree" -cf "$place/tree.tar" .

# store KEY [sync]: as a job does it; the second form as it has to be done elsewhere.
store() {
    mkdir "$mnt/cache/$1.new"
    tar -C "$mnt/cache/$1.new" -xf "$place/tree.tar"
    if [ "${2-}" ]; then find "$mnt/cache/$1.new" -exec sync {} +; fi
    mv "$mnt/cache/$1.new" "$mnt/cache/$1"
    if [ "${2-}" ]; then sync "$mnt/cache"; fi
}
export -f store
export place mnt
in_stream() { "$CCFS" stream run --on "$mnt" -- bash -euc 'store "$@"' - "$@"; }
five() { for n in 1 2 3 4 5; do in_stream "$1-$n" ${2-}; done; }
measure "5 entries, synced before renames" five a sync
plain=$flushes
measure "5 entries" five b
fewer "$flushes" "$plain" "flushes"

# Four jobs, each in its stream; a commit now and then, as the clock would make one.
jobs_forever() { for j in 1 2 3 4; do (n=0; while [ ! -e "$place/crashed" ] && n=$((n + 1)) && in_stream "job-$j-$n"; do :; done) & done; wait; }
(jobs_forever) >/dev/null 2>&1 &
job=$!
several() { [ "$(find "$mnt/cache" -maxdepth 1 -name 'job-*' ! -name '*.new' | wc -l)" -ge 8 ]; }
wait_for several
"$CCFS" stream sync --all "$mnt"
more() { [ "$(find "$mnt/cache" -maxdepth 1 -name 'job-*' ! -name '*.new' | wc -l)" -ge 12 ]; }
wait_for more
crash
wait "$job" || true
entries=0
for entry in "$mnt"/cache/*; do
    case $entry in *.new) continue ;; esac
    (cd "$entry" && sha256sum --quiet -c "$place/sums") || { echo "$entry is not whole" >&2; exit 1; }
    entries=$((entries + 1))
done
[ "$entries" -ge 8 ]
echo "after the crash: $entries entries, all whole"
echo ok
