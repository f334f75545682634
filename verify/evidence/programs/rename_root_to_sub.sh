#!/bin/sh
# Files are moved from the root to a directory. usage: rename_root_to_sub.sh setup|work|check|damage [FILES]
# Consistent: each is in one of the two places, whole, and where it was synced to.
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }
count=${2:-50}
all=$(seq "$count")
fill=$(printf %05000d 0)
case $1 in
setup)
    mkdir sub
    for i in $all; do echo "file $i $fill" >"f$i"; done
    sync f* .
    ;;
work)
    for i in $all; do
        mv "f$i" "sub/f$i"
        # A sync now and then, so that moves wait for each other in between.
        [ $((i % 3)) != 0 ] || { sync "sub/f$i" sub . && mark "moved $i"; }
    done
    ;;
check)
    answered=$(sed -n 's/^moved //p' "${CCFS_MARKS:-/dev/null}" | tail -n 1)
    set -- $(find . -name 'f[0-9]*')
    # One process for all files: each has one line, which names it.
    awk -v count="$count" -v answered="${answered:-0}" -v fill="$fill" '
        function bad(text) { print "error: " text; wrong = 1; exit 1 }
        { n = FILENAME; sub(/.*f/, "", n) }
        FNR > 1 || $0 != "file " n " " fill { bad(FILENAME " is damaged") }
        { places[n]++; below[n] = FILENAME ~ /\/sub\//; read++ }
        END {
            if (wrong) exit 1
            if (read != ARGC - 1) bad("a file is empty")
            for (n = 1; n <= count; n++) {
                if (places[n] != 1) bad("file " n " is in " places[n] + 0 " places")
                if (n <= answered && !below[n]) bad("a synced move is lost")
            }
        }' "$@" </dev/null
    ;;
damage) rm -f f3 sub/f3 ;;
esac
