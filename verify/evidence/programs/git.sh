#!/bin/sh
# Git in its default configuration. usage: git.sh setup|work|check|damage [synced], in the directory to work in; synced: core.fsync=all.
# Consistent: after removing locks, as one does after any killed git, the repository passes its own check and takes a commit.
# Synced: and no commit is lost that was answered for (exit code 3), but for the last one: a branch's renaming is not synced.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null LC_ALL=C
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
[ "$2" != synced ] || export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.fsync GIT_CONFIG_VALUE_0=all
mark() { [ -z "$CCFS_CRASH_MARK" ] || "$CCFS" crash mark "$1"; }

change() {
    for file in 1 2 3 4; do echo "file $file, version $1: $(seq 200)" >"file$file"; done
    git add -A && git commit -q -m "$2"
}

case $1 in
setup)
    set -e
    git -c init.defaultBranch=main init -q repo
    cd repo
    git config gc.auto 0
    change 0 "commit 0"
    ;;
work)
    set -e
    cd repo
    for i in 1 2 3; do
        change "$i" "commit $i"
        mark "commit $i"
    done
    ;;
check)
    cd repo || exit 1
    find .git -name '*.lock' -delete
    git fsck --full --strict --no-dangling --no-progress || exit 1
    git log --format=%s >../log || exit 1
    # What is there is a prefix of the commits.
    count=$(wc -l <../log)
    i=$((count - 1))
    while read -r subject; do
        [ "$subject" = "commit $i" ] || { echo "error: the log has '$subject' in place of 'commit $i'"; exit 1; }
        i=$((i - 1))
    done <../log
    [ "$count" -ge 1 ] || { echo "error: the first commit is lost"; exit 1; }
    git status --porcelain >/dev/null && change 9 "commit $count" || exit 1
    [ "$2" = synced ] || exit 0
    [ "$count" -ge "$(grep -c '^commit' "${CCFS_MARKS:-/dev/null}")" ] || { echo "error: a commit that was answered for is lost"; exit 3; }
    ;;
damage)
    object=$(find repo/.git/objects -type f -size +0 | sort | head -1)
    chmod u+w "$object" && : >"$object"
    ;;
esac
