#!/usr/bin/env bash
# PostgreSQL with fsync=off and full_page_writes=off, safely: all its processes are in one stream, so that the WAL is always ahead of the
# tables, and a page is written whole or not at all. A crash costs the last transactions (those of the last commit interval), never the
# database. What has to be durable at once is made so with `ccfs stream sync --id`.
. "$(dirname "$0")/lib.sh"
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
[ -n "$bin" ] && [ -x "$bin/pgbench" ] || { echo "skipped: needs postgresql (with pgbench)"; exit 0; }
needs runuser python3
start 1G
mkdir "$mnt/pg" "$place/socket"
chown postgres "$mnt/pg" "$place/socket"
as() { (cd / && runuser -u postgres -- "$@"); }
seconds=${SECONDS_EACH:-5}
# up DIR [OPTION...]: starts a server in a stream of its own; the stream's number in $id
up() {
    local data=$1 out
    shift
    id=$(as "$CCFS" stream new "$mnt")
    as "$CCFS" stream enter "$id" --on "$mnt" -- "$bin/pg_ctl" -s -w -t 120 -D "$data" -l "$place/socket/log" \
        -o "-k $place/socket -c listen_addresses='' $*" start
}
before_finish() { as "$bin/pg_ctl" -s -m immediate -D "$mnt/pg/data" stop >/dev/null 2>&1; }
sql() { as "$bin/psql" -h "$place/socket" -d postgres -AtXqc "$1"; }
bench() { as "$bin/pgbench" -h "$place/socket" -n -c 2 -T "$seconds" postgres 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/  \1 transactions a second/p'; }

as "$bin/initdb" -N -A trust -D "$mnt/pg/data" >/dev/null
up "$mnt/pg/data"
as "$bin/pgbench" -h "$place/socket" -i -q -s 2 postgres 2>/dev/null
measure "fsync=on" bench
plain=$flushes
as "$bin/pg_ctl" -s -w -D "$mnt/pg/data" stop
unsafe="-c fsync=off -c full_page_writes=off"
up "$mnt/pg/data" $unsafe
measure "fsync=off, in a stream" bench
fewer "$flushes" "$plain" "flushes"

# Numbered rows; now and then the stream is made durable, and the number noted. Then the daemon dies under the server.
sql 'CREATE TABLE n(i int PRIMARY KEY)'
forever() {
    i=0
    while i=$((i + 1)) && sql "INSERT INTO n VALUES($i)"; do
        if [ $((i % 10)) = 0 ]; then as "$CCFS" stream sync --id "$id" "$mnt" && echo "$i" >>"$place/synced"; fi
    done
}
: >"$place/synced"
(forever) >/dev/null 2>&1 &
job=$!
enough() { [ "$(wc -l <"$place/synced")" -ge 5 ]; }
wait_for enough
server=$(head -n 1 "$mnt/pg/data/postmaster.pid")
server="$server $(pgrep -P "$server" | tr '\n' ' ')"
pid=$(status mount.pid)
kill -9 "$pid"
# The server cannot go on without its files.
kill -9 "$job" $server 2>/dev/null || true
dead() { for each in $server "$pid" "$job"; do ! kill -0 "$each" 2>/dev/null || return 1; done; }
wait_for dead
wait_for "$CCFS" mount "$place/img" "$mnt"
rm -f "$mnt/pg/data/postmaster.pid"
up "$mnt/pg/data" $unsafe || { cat "$place/socket/log" >&2; exit 1; }
synced=$(tail -n 1 "$place/synced")
read -r rows last <<<"$(sql "SELECT count(*) || ' ' || coalesce(max(i), 0) FROM n")"
[ "$rows" = "$last" ] || { echo "$rows rows, the last one is $last: a gap" >&2; exit 1; }
[ "$rows" -ge "$synced" ] || { echo "$rows rows, $synced were synced" >&2; exit 1; }
as "$bin/pg_ctl" -s -w -D "$mnt/pg/data" stop
echo "after the crash: rows 1 to $rows, $synced were synced"
echo ok
