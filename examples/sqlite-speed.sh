#!/usr/bin/env bash
# COMMITs a second of SQLite (synchronous=FULL): on ext4, on ccfs, and on ccfs with the extension. Rounds alternate; medians.
#
# usage: sqlite-speed.sh EXT4-DIR CCFS-DIR [COMMITS [ROUNDS]]
# Needs a C compiler and libsqlite3-dev. Both directories should be on the same disk: docs/recipes.md shows such a pair.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ext4=${1:?usage: sqlite-speed.sh EXT4-DIR CCFS-DIR [COMMITS [ROUNDS]]}
ccfs=${2:?usage: sqlite-speed.sh EXT4-DIR CCFS-DIR [COMMITS [ROUNDS]]}
commits=${3:-1000} rounds=${4:-5}
build=$(mktemp -d)
trap 'rm -rf "$build" "$ext4/sqlite-speed" "$ccfs/sqlite-speed"' EXIT
include=-I$here/../crates/libccfs/include
cc -O2 "$include" -o "$build/commits" "$here/sqlite-commits.c" -lsqlite3 -lpthread
cc -O2 "$include" -fPIC -shared -o "$build/ccfs_vfs.so" "$here"/../sqlite/*.c

# one DIR ARGUMENT...: commits a second
one() {
    local dir=$1/sqlite-speed
    shift
    rm -rf "$dir"
    mkdir "$dir"
    "$build/commits" --quiet --commits "$commits" "$@" "$dir" | cut -d' ' -f1
}
median() { sort -n | sed -n "$(((rounds + 1) / 2))p"; }

printf '%-10s %12s %12s %12s\n' journal 'ext4' 'ccfs' 'extension'
for journal in delete truncate persist wal; do
    for ((i = 0; i < rounds; i++)); do
        one "$ext4" --journal "$journal" >>"$build/ext4"
        one "$ccfs" --journal "$journal" >>"$build/ccfs"
        one "$ccfs" --journal "$journal" --extension "$build/ccfs_vfs.so" >>"$build/extension"
    done
    printf '%-10s %12s %12s %12s\n' "$journal" "$(median <"$build/ext4")" "$(median <"$build/ccfs")" "$(median <"$build/extension")"
    rm "$build/ext4" "$build/ccfs" "$build/extension"
done
