#!/bin/sh
# A file is moved from the root to a directory. usage: ... setup|work|check|damage
# Consistent: it is in one of the two places, whole, and where it was synced to.
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }
body() { seq -f "file $1 line %g" 300; }
case $1 in
setup)
    mkdir sub
    for i in 1 2 3 4 5 6 7 8; do body "$i" >"f$i" && sync "f$i"; done
    ;;
work)
    for i in 1 2 3 4 5 6 7 8; do
        mv "f$i" "sub/f$i"
        sync "sub/f$i" && sync sub .
        mark "moved $i"
    done
    ;;
check)
    answered=$(grep -c '^moved' "${CCFS_MARKS:-/dev/null}")
    for i in 1 2 3 4 5 6 7 8; do
        there=0
        for file in "f$i" "sub/f$i"; do
            [ -e "$file" ] || continue
            there=$((there + 1))
            [ "$(body "$i" | cksum)" = "$(cksum <"$file")" ] || { echo "error: $file is damaged"; exit 1; }
        done
        [ "$there" = 1 ] || { echo "error: file $i is in $there places"; exit 1; }
        [ "$i" -gt "$answered" ] || [ -e "sub/f$i" ] || { echo "error: a synced move is lost"; exit 1; }
    done
    ;;
damage) rm -f f3 sub/f3 ;;
esac
