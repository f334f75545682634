#!/usr/bin/env bash
# Git through the wrapper examples/ccfs-git: a commit costs one sync, and a crash at any instant leaves a sound repository.
. "$(dirname "$0")/lib.sh"
needs git python3
export CCFS GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
wrapper=$here/../ccfs-git
commits=10 files=20

# history GIT: commits with files, each one safe against power loss as Git understands it.
history() {
    for ((n = 1; n <= commits; n++)); do
        for ((f = 0; f < files; f++)); do echo "$n $f" >"file-$f"; done
        "$@" -c core.fsync=all add -A
        "$@" -c core.fsync=all commit -q -m "commit $n"
    done
}

start 256M
mkdir "$mnt/plain" "$mnt/ours"
cd "$mnt/plain" && git init -q -b main
measure "git, core.fsync=all" history git
plain=$flushes
cd "$mnt/ours" && git init -q -b main
measure "the wrapper" history "$wrapper"
fewer "$flushes" "$plain" "flushes"

# A crash in a row of commits: those that were acknowledged are there, and nothing is damaged.
forever() { while [ ! -e "$place/crashed" ] && echo x >>again && "$wrapper" add again && "$wrapper" commit -q -m again && echo a >>"$place/done"; do :; done; }
(forever) >/dev/null 2>&1 &
job=$!
enough() { [ "$(wc -l 2>/dev/null <"$place/done")" -ge 5 ]; }
wait_for enough 2>/dev/null
cd /
crash
wait "$job" || true
cd "$mnt/ours"
rm -f .git/index.lock .git/HEAD.lock .git/refs/heads/main.lock
git fsck --full --strict
made=$(git rev-list --count HEAD)
[ "$made" -ge $((commits + $(wc -l <"$place/done"))) ] || { echo "$made commits: one that was acknowledged is missing" >&2; exit 1; }
git status --porcelain >/dev/null
echo "after the crash: $made commits, git fsck finds nothing"
echo ok
