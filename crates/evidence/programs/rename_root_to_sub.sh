#!/bin/sh
# Files are moved from the root to a directory. usage: rename_root_to_sub.sh setup|work|check|damage
# Consistent: each is in one of the two places, whole, and where it was synced to.
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }
all=$(seq 50)
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
    for i in $all; do
        there=0
        for file in "f$i" "sub/f$i"; do
            [ -e "$file" ] || continue
            there=$((there + 1))
            read -r line <"$file" && [ "$line" = "file $i $fill" ] || { echo "error: $file is damaged"; exit 1; }
        done
        [ "$there" = 1 ] || { echo "error: file $i is in $there places"; exit 1; }
        [ "$i" -gt "${answered:-0}" ] || [ -e "sub/f$i" ] || { echo "error: a synced move is lost"; exit 1; }
    done
    ;;
damage) rm -f f3 sub/f3 ;;
esac
