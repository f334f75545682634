#!/usr/bin/env bash
# Mercurial, as it is: it hardly ever syncs, and relies on order. After a crash `hg recover` always works.
. "$(dirname "$0")/lib.sh"
needs hg python3
export HGRCPATH=/dev/null HGUSER=a
start 256M
mkdir "$mnt/repo"
cd "$mnt/repo"
hg init
echo 0 >file
hg add -q file
three() { for n in 1 2 3; do echo "$n" >>file; hg commit -m "$n"; done; }
measure "three commits" "$CCFS" stream run --sync -- bash -c "$(declare -f three); three"

forever() { while [ ! -e "$place/crashed" ] && echo x >>file && hg commit -m again && "$CCFS" stream sync . && echo a >>"$place/done"; do :; done; }
(forever) >/dev/null 2>&1 &
job=$!
enough() { [ "$(wc -l 2>/dev/null <"$place/done")" -ge 3 ]; }
wait_for enough 2>/dev/null
cd /
crash
wait "$job" || true
cd "$mnt/repo"
rm -f .hg/wlock .hg/store/lock
if [ -e .hg/store/journal ]; then hg recover -q; fi
hg verify -q
made=$(hg log -T x | wc -c)
[ "$made" -ge $((3 + $(wc -l <"$place/done"))) ] || { echo "$made commits: one that was acknowledged is missing" >&2; exit 1; }
echo "after the crash: $made commits, hg verify finds nothing"
echo ok
