#!/usr/bin/env bash
# The mesobenchmark of the AdvFS paper: a std::map in an O_ATOMIC file beside SQLite, LevelDB and Kyoto Cabinet; milliseconds an operation.
#
# usage: mesobenchmark.sh DIR [TRANSACTIONS]
# DIR: on a ccfs volume that is mounted with atomic_files=on. Needs libccfs, a C++ compiler, libsqlite3-dev, libleveldb-dev, and for Kyoto Cabinet
# libkyotocabinet-dev. CCFS_LIB: where libccfs.so is, if it is not installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: mesobenchmark.sh DIR [TRANSACTIONS]}
build=$(mktemp -d)
work=$(mktemp -d "$dir/mesobenchmark.XXXXXX")
trap 'rm -rf "$build" "$work"' EXIT
stores=(map sqlite leveldb)
libraries=(-lccfs -lsqlite3 -lleveldb -lpthread)
if [ -n "${CCFS_LIB:-}" ]; then
    libraries=("-L$CCFS_LIB" "-Wl,-rpath,$CCFS_LIB" "${libraries[@]}")
fi
if [ -e /usr/include/kchashdb.h ]; then
    stores+=(kyoto)
    libraries+=(-lkyotocabinet -DWITH_KYOTO)
else
    echo "without Kyoto Cabinet: libkyotocabinet-dev is not installed" >&2
fi
c++ -O2 -std=c++17 -Wall "-I$here/../crates/libccfs/include" -o "$build/mesobenchmark" "$here/mesobenchmark.cc" "${libraries[@]}"
printf '%-8s %9s %9s %9s\n' 'ms' insert replace delete
for store in "${stores[@]}"; do
    mkdir "$work/$store"
    "$build/mesobenchmark" "$store" "$work/$store" ${2:-}
    rm -rf "${work:?}/$store"
done
