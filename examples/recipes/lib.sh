# Common to the recipes: a volume of its own below TMPDIR, gone at the end; needs root. CCFS names the program.
# A recipe prints what it counted, and ends with "ok" or a failure.
set -euo pipefail
CCFS=${CCFS:-ccfs}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mktemp -d "${TMPDIR:-/var/tmp}/ccfs-recipe-XXXXXX")
chmod 755 "$place"
mnt=$place/mnt
mkdir "$mnt"
PATH=$PATH:/usr/sbin:/sbin

needs() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || { echo "skipped: needs $program"; exit 0; }
    done
}

# A new volume. No commit by the clock, so that a crash costs as much as it can.
start() {
    "$CCFS" mkfs -s "$1" --sparse "$place/img" >/dev/null
    "$CCFS" mount -o commit=600 "$place/img" "$mnt"
}

# status FIELD: of the counters or the mount, e.g. counters.device_flushes
status() {
    "$CCFS" status --json "$mnt" | python3 -c 'import functools, json, sys
print(functools.reduce(lambda v, k: v[k], sys.argv[1].split("."), json.load(sys.stdin)))' "$1"
}

gone() { ! stat -f "$mnt" >/dev/null 2>&1; }

# The background job has ended.
ended() { ! kill -0 "$job" 2>/dev/null; }

# kill -9 of the daemon, and what a user does then. Loops in the background look for $place/crashed. A job ends with its machine: nothing
# of it goes on when the volume is there again.
crash() {
    local pid
    pid=$(status mount.pid)
    touch "$place/crashed"
    kill -9 "$pid"
    wait_for gone
    [ -z "${job-}" ] || wait_for ended
    # What the killed daemon was writing can hold the image for a moment.
    wait_for "$CCFS" mount -o commit=600 "$place/img" "$mnt"
}

# measure WHAT COMMAND...: flushes of the device and milliseconds of a command; the flushes in $flushes as well.
measure() {
    local what=$1 before start
    shift
    before=$(status counters.device_flushes) start=$(date +%s%N)
    "$@"
    took=$((($(date +%s%N) - start) / 1000000)) flushes=$(($(status counters.device_flushes) - before))
    printf '%-32s %6d flushes %8d ms\n' "$what" "$flushes" "$took"
}

# wait_for COMMAND...: until it succeeds; eight minutes at most, for slow machines.
wait_for() {
    local end=$((SECONDS + 480))
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "waited in vain for: $*" >&2; exit 1; }
        sleep 0.1
    done
}

# fewer A B WHY: a recipe that saves nothing has failed.
fewer() { [ "$1" -lt "$2" ] || { echo "$3: $1 is not less than $2" >&2; exit 1; }; }

finish() {
    local status=$?
    trap - EXIT
    [ -z "${job-}" ] || kill -9 "$job" 2>/dev/null || true
    local end=$((SECONDS + 60))
    while [ -n "$(jobs -r)" ] && [ $SECONDS -lt $end ]; do sleep 0.1; done
    ! declare -F before_finish >/dev/null || before_finish || true
    cd /
    if mountpoint -q "$mnt"; then timeout 120 "$CCFS" umount "$mnt" >/dev/null 2>&1 || umount -l "$mnt" || true; fi
    rm -rf "$place"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM
