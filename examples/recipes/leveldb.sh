#!/usr/bin/env bash
# LevelDB with WriteOptions::sync = false: what survives is a prefix, and streamsync makes it durable where it has to be.
. "$(dirname "$0")/lib.sh"
needs g++ python3
[ -e /usr/include/leveldb/db.h ] || { echo "skipped: needs libleveldb-dev"; exit 0; }
g++ -O1 -I"$here/../../crates/libccfs/include" -o "$place/leveldb-order" "$here/leveldb-order.cc" -lleveldb
start 256M
measure "1000 puts, sync = true" "$place/leveldb-order" sync "$mnt/plain" 1000
plain=$flushes
ours() { "$place/leveldb-order" stream "$mnt/ours" 1000 >/dev/null; }
measure "1000 puts, streamsync each 100" ours
fewer "$flushes" "$plain" "flushes"

: >"$place/log"
"$place/leveldb-order" stream "$mnt/crash" 100000000 >>"$place/log" 2>/dev/null &
job=$!
enough() { [ "$(grep -c synced "$place/log" 2>/dev/null)" -ge 30 ]; } 2>/dev/null
wait_for enough
crash
wait "$job" || true
"$place/leveldb-order" check "$mnt/crash" "$(sed -n 's/^synced //p' "$place/log" | tail -n 1)"
echo ok
