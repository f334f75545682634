#!/bin/sh
# Mercurial. usage: hg.sh setup|work|check|damage, in the directory to work in.
# Consistent: after removing locks and rolling back what was interrupted, as after any killed hg, the repository passes its
# own check, knows its working directory and takes a commit.
export HGRCPATH=/dev/null HGUSER=t LC_ALL=C HGPLAIN=1
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }

change() {
    for file in 1 2 3; do echo "file $file, version $1: $(seq 200)" >"file$file"; done
    hg commit -q -A -m "$2"
}

case $1 in
setup)
    set -e
    hg init repo
    cd repo
    change 0 "commit 0"
    ;;
work)
    set -e
    cd repo
    for i in 1 2; do
        change "$i" "commit $i"
        mark "commit $i"
    done
    ;;
check)
    cd repo || exit 1
    rm -f .hg/wlock .hg/store/lock
    [ ! -e .hg/store/journal ] || hg recover -q || exit 1
    hg verify -q || exit 1
    hg status -q >/dev/null || exit 1
    change 9 "commit after"
    ;;
damage) : >repo/.hg/store/00changelog.i && rm -f repo/.hg/store/undo* ;;
esac
