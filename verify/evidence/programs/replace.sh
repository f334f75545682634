#!/bin/sh
# A package manager's way without sync calls: each file is written beside its place and renamed; the status file last.
# usage: replace.sh setup|work|check|damage [synced], in the directory to work in; synced: each file before its renaming, and the directory
# before and after the status file.
# Consistent: each file is whole, and no older than the version that the status file tells. Synced: and the status tells of every version
# that was answered for (exit code 3).
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }
body() { echo "begin $2"; seq -f "$1 version $2 line %g" 400; echo "end $2"; }

synced=$2
sync_if() { [ "$synced" != synced ] || sync "$@"; }

put() {
    body "$2" "$3" >"$1.new" && sync_if "$1.new" && mv "$1.new" "$1"
}

version() {
    for file in a b c d; do put "$file" "$file" "$1"; done
    # A file that this version brings.
    put "extra-$1" extra "$1"
    sync_if .
    put status status "$1"
    sync_if .
}

check_file() {
    read -r begin version <"$1" || { echo "error: $1 is empty or missing"; exit 1; }
    [ "$begin" = begin ] && [ "$(tail -n 1 "$1")" = "end $version" ] && [ "$(wc -l <"$1")" = 402 ] || { echo "error: $1 is damaged"; exit 1; }
    [ "$(body "${1%-*}" "$version" | cksum)" = "$(cksum <"$1")" ] || { echo "error: $1 has foreign content"; exit 1; }
    echo "$version" >checked
}

case $1 in
setup) version 0 ;;
work)
    for i in 1 2 3; do
        version "$i"
        mark "version $i"
        # As a package manager's triggers do: somebody else's file is synced.
        echo "$i" >other && sync other
    done
    ;;
check)
    check_file status
    status=$(cat checked)
    for file in a b c d; do
        check_file "$file"
        [ "$(cat checked)" -ge "$status" ] || { echo "error: $file is older than the status says"; exit 1; }
    done
    for i in $(seq 0 "$status"); do check_file "extra-$i"; done
    for file in extra-?; do check_file "$file"; done
    [ "$synced" = synced ] || exit 0
    [ "$status" -ge "$(grep -c '^version' "${CCFS_MARKS:-/dev/null}")" ] || { echo "error: a version that was answered for is lost"; exit 3; }
    ;;
damage) : >b ;;
esac
