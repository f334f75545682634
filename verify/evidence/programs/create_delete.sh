#!/bin/sh
# Files are created and synced, and deleted again. usage: create_delete.sh setup|work|check|damage [FILES]
# Consistent: what was synced is there and whole, what was deleted before a sync is not.
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }
count=${2:-40}
all=$(seq "$count")
fill=$(printf %05000d 0)
case $1 in
setup) mkdir dir ;;
work)
    for i in $all; do
        echo "file $i $fill" >"dir/f$i" && sync "dir/f$i" dir
        mark "created $i"
        [ "$i" -lt 3 ] || { rm "dir/f$((i - 2))" && sync dir && mark "deleted $((i - 2))"; }
    done
    ;;
check)
    marks=${CCFS_MARKS:-damage-marks}
    created=$(sed -n 's/^created //p' "$marks" | tail -n 1)
    deleted=$(sed -n 's/^deleted //p' "$marks" | tail -n 1)
    for i in $all; do
        file=dir/f$i
        if [ -e "$file" ]; then
            [ "$i" -gt "${deleted:-0}" ] || { echo "error: a deleted file is there"; exit 1; }
            [ "$i" -le "${created:-0}" ] || continue
            read -r line <"$file" && [ "$line" = "file $i $fill" ] || { echo "error: $file is damaged"; exit 1; }
        elif [ "$i" -le "${created:-0}" ] && [ "$((i + 2))" -gt "${created:-0}" ]; then
            echo "error: a synced file is lost"
            exit 1
        fi
    done
    ;;
damage)
    : >"dir/f$count"
    echo "created $count" >damage-marks
    ;;
esac
