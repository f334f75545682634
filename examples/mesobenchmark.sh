#!/usr/bin/env bash
# The mesobenchmark of the AdvFS paper (FAST'15, Table 1): a std::map in an O_ATOMIC file beside SQLite, LevelDB and Kyoto Cabinet, on ext4 and on ccfs.
# Milliseconds an operation, medians of the rounds, beside the paper's figures. `make mesobenchmark` builds all that it needs and runs it.
#
# usage: mesobenchmark.sh [TRANSACTIONS [ROUNDS]]      (3000, 3)
# Makes two volumes below TMPDIR (/var/tmp), which are gone at the end; needs root, a C++ compiler, libsqlite3-dev, libleveldb-dev and
# libkyotocabinet-dev. CCFS: the program. CCFS_LIB: where libccfs.so is, if it is not installed.
. "$(dirname "$0")/recipes/lib.sh"
transactions=${1:-3000} rounds=${2:-3}
examples=$here/..
needs g++
for header in sqlite3.h leveldb/db.h kchashdb.h; do
    [ -e "/usr/include/$header" ] || { echo "skipped: needs /usr/include/$header (libsqlite3-dev, libleveldb-dev, libkyotocabinet-dev)"; exit 0; }
done
flags=("-I$examples/../crates/libccfs/include" -lccfs -lsqlite3 -lleveldb -lkyotocabinet -lpthread)
if [ -n "${CCFS_LIB:-}" ]; then
    mkdir "$place/lib"
    ln -s "$CCFS_LIB/libccfs.so" "$place/lib/libccfs.so"
    ln -s "$CCFS_LIB/libccfs.so" "$place/lib/libccfs.so.1"
    flags+=("-L$place/lib" "-Wl,-rpath,$place/lib")
fi
g++ -O2 -std=c++17 -Wall -o "$place/mesobenchmark" "$examples/mesobenchmark.cc" "${flags[@]}"

# Both on loop devices over files that lie on the disk in full.
before_finish() { [ -z "${ext4-}" ] || umount "$ext4" || umount -l "$ext4"; }
fallocate -l 256M "$place/ext4.img"
mke2fs -q -F -t ext4 -E lazy_itable_init=0 "$place/ext4.img"
mkdir "$place/ext4"
wait_for mount -o loop "$place/ext4.img" "$place/ext4"
ext4=$place/ext4
"$CCFS" mkfs -s 256M "$place/img" >/dev/null
"$CCFS" mount -o atomic_files=on "$place/img" "$mnt"

# one SYSTEM STORE: a line "SYSTEM STORE insert replace delete" for the results
one() {
    local dir=$ext4
    [ "$1" = ext4 ] || dir=$mnt
    mkdir "$dir/store"
    echo "$1 $("$place/mesobenchmark" "$2" "$dir/store" "$transactions")" >>"$place/results"
    rm -r "$dir/store"
}
for _ in $(seq "$rounds"); do
    for store in plain-map sqlite leveldb kyoto; do
        one ext4 $store
        one ccfs $store
    done
    one ccfs map
done

# median SYSTEM STORE COLUMN
median() { awk -v s="$1" -v t="$2" -v c="$3" '$1 == s && $2 == t { print $c }' "$place/results" | sort -n | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "-" }'; }
# row NAME STORE PAPER...: the paper's figures are those of its workstation with an SSD
row() {
    local name=$1 store=$2 system column line
    shift 2
    line="| $name"
    for system in ext4 ccfs; do
        for column in 3 4 5; do line+=" | $(median $system "$store" $column)"; done
    done
    printf '%s' "$line"
    printf ' | %s' "$@"
    printf ' |\n'
}
echo "$transactions transactions each, medians of $rounds rounds, milliseconds an operation, $(nproc) processors, Linux $(uname -r)"
echo
echo "| store | ext4: insert | replace | delete | ccfs: insert | replace | delete | paper: insert | replace | delete |"
echo "|---|---|---|---|---|---|---|---|---|---|"
row "std::map in an O_ATOMIC file" map 1.655 2.022 2.395
row "the same map, msync of a plain file (a crash can tear it)" plain-map - - -
row "Kyoto Cabinet" kyoto 4.088 2.590 4.007
row "SQLite" sqlite 2.374 2.611 2.435
row "LevelDB" leveldb 0.641 0.640 0.633
echo ok
