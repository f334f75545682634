#!/bin/sh
# An editor's save with a backup: the old file becomes the backup, the new one is written and synced, the backup is removed.
# usage: editor.sh setup|work|check|damage, in the directory to work in.
# Consistent: the text, or else its backup, is whole, and no save that was answered for is lost (exit code 3).
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }
body() { echo "begin $1"; seq -f "version $1 line %g" 600; echo "end $1"; }

save() {
    mv text text~ && body "$1" >text && sync text && rm text~
}

whole() {
    [ -s "$1" ] && read -r begin version <"$1" && [ "$begin" = begin ] && [ "$(body "$version" | cksum)" = "$(cksum <"$1")" ]
}

case $1 in
setup) body 0 >text ;;
work)
    for i in 1 2 3 4 5 6; do
        save "$i"
        mark "saved $i"
    done
    ;;
check)
    if ! whole text; then
        whole text~ || { echo "error: neither the text nor its backup is whole"; exit 1; }
    fi
    answered=$(grep -c '^saved' "${CCFS_MARKS:-/dev/null}")
    [ "$version" -ge "$answered" ] || { echo "error: a save that was answered for is lost"; exit 3; }
    ;;
damage) : >text && rm -f text~ ;;
esac
