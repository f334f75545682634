#!/bin/sh
# Files are created and synced, and deleted again. usage: ... setup|work|check|damage
# Consistent: what was synced is there and whole, what was deleted before a sync is not, the rest is whole or absent.
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }
body() { seq -f "file $1 line %g" 300; }
case $1 in
setup) mkdir dir ;;
work)
    for i in 1 2 3 4 5 6 7 8; do
        body "$i" >"dir/f$i" && sync "dir/f$i" && sync dir
        mark "created $i"
        [ "$i" -lt 3 ] || { rm "dir/f$((i - 2))" && sync dir && mark "deleted $((i - 2))"; }
    done
    ;;
check)
    marks=${CCFS_MARKS:-damage-marks}
    for i in 1 2 3 4 5 6 7 8; do
        file=dir/f$i
        if [ -e "$file" ]; then
            if grep -q "^deleted $i\$" "$marks"; then echo "error: a deleted file is there"; exit 1; fi
            grep -q "^created $i\$" "$marks" || continue
            [ "$(body "$i" | cksum)" = "$(cksum <"$file")" ] || { echo "error: $file is damaged"; exit 1; }
        elif grep -q "^created $i\$" "$marks" && ! grep -q "^created $((i + 2))\$" "$marks"; then
            echo "error: a synced file is lost"
            exit 1
        fi
    done
    ;;
damage)
    : >dir/f8
    echo "created 8" >damage-marks
    ;;
esac
