#!/bin/sh
# SQLite. usage: sqlite.sh setup|work|check|damage [delete|extra|wal], in the directory to work in; extra: a rollback journal and
# synchronous=EXTRA.
# Consistent: the database is sound, each transaction is there whole, it takes another one, and none is lost that was answered
# for (exit code 3). With a rollback journal and synchronous=FULL the last one may be: the journal's removal is not synced.
kind=${2:-delete}
mode=$kind synchronous=FULL
[ "$kind" != extra ] || mode=delete synchronous=EXTRA
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }

case $1 in
setup)
    set -e
    sqlite3 -bail db >/dev/null <<SQL
PRAGMA journal_mode=$mode; PRAGMA synchronous=$synchronous;
CREATE TABLE meta(rows INTEGER, sum INTEGER); INSERT INTO meta VALUES(0, 0);
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT); CREATE INDEX tk ON t(k);
SQL
    ;;
work)
    {
        echo "PRAGMA journal_mode=$mode; PRAGMA synchronous=$synchronous; PRAGMA wal_autocheckpoint=20;"
        for i in $(seq 12); do
            echo "BEGIN;"
            for j in 1 2 3; do echo "INSERT INTO t(k, v) VALUES($((i * 7 % 5)), hex(zeroblob($((i * 97 % 900)))));"; done
            echo "UPDATE meta SET rows = rows + 3, sum = sum + 3 * $((i * 7 % 5));"
            echo "COMMIT;"
            [ -z "$CCFS_CRASH_MARK" ] || echo ".shell \"$CCFS\" crash mark \"transaction $i\""
        done
    } | sqlite3 -bail db >/dev/null
    ;;
check)
    said=$(sqlite3 -bail db 'PRAGMA integrity_check;') || { echo "error: $said"; exit 1; }
    [ "$said" = ok ] || { echo "error: integrity_check: $said"; exit 1; }
    wrong=$(sqlite3 -bail db 'SELECT count(*) FROM meta WHERE rows != (SELECT count(*) FROM t) OR sum != (SELECT coalesce(sum(k),0) FROM t);') || exit 1
    [ "$wrong" = 0 ] || { echo "error: a transaction is there in part"; exit 1; }
    there=$(sqlite3 -bail db 'SELECT rows / 3 FROM meta;') || exit 1
    answered=$(grep -c '^transaction' "${CCFS_MARKS:-/dev/null}")
    [ "$kind" != delete ] || there=$((there + 1))
    sqlite3 -bail db "INSERT INTO t(k, v) VALUES(0, 'after'); UPDATE meta SET rows = rows + 1;" || exit 1
    [ "$there" -ge "$answered" ] || { echo "error: a transaction that was answered for is lost"; exit 3; }
    ;;
damage)
    rm -f db-wal db-shm
    dd if=/dev/zero of=db bs=4096 seek=1 count=2 conv=notrunc 2>/dev/null
    ;;
esac
