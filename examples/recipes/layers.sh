#!/usr/bin/env bash
# Container layers: overlayfs whose upper and lower directories are on ccfs, each container in a stream of its own. A layer that is
# published by a rename is whole after a crash, without any sync.
. "$(dirname "$0")/lib.sh"
needs tar python3
start 256M
layers=$mnt/layers
mkdir -p "$layers/base/etc" "$layers/base/usr" "$place/merged"
for n in $(seq 200); do seq "$n" >"$layers/base/usr/$n"; done
echo base >"$layers/base/etc/name"

before_finish() { umount -l "$place/merged" 2>/dev/null; }
# build NAME COMMAND: runs over the base, its changes become the layer NAME.
build() {
    mkdir -p "$layers/$1.new" "$layers/$1.work"
    mount -t overlay overlay -o "lowerdir=$layers/base,upperdir=$layers/$1.new,workdir=$layers/$1.work" "$place/merged"
    (cd "$place/merged" && sh -euc "$2")
    umount "$place/merged"
    mv "$layers/$1.new" "$layers/$1"
    rm -rf "$layers/$1.work"
}
export -f build
export layers place
# The whole job in one stream, the rename included: order is a stream's.
container() { "$CCFS" stream run --on "$mnt" --ignore-fsync -- bash -euc 'build "$@"' - "$@"; }
work='rm usr/7; echo changed >etc/name; mkdir new; for n in $(seq 300); do echo $n >new/$n; sync new/$n; done; mv new made'
if ! (container probe true) 2>"$place/why"; then
    echo "skipped: no overlayfs here: $(cat "$place/why")"
    exit 0
fi
measure "a layer of 300 synced files" container first "$work"
[ "$flushes" -lt 100 ] || { echo "$flushes flushes: syncs were not ignored" >&2; exit 1; }
[ "$(cat "$layers/first/etc/name")" = changed ] && [ -c "$layers/first/usr/7" ] && [ "$(ls "$layers/first/made" | wc -l)" = 300 ]

# A crash among the builds: a layer has its name only if it is whole.
forever() { n=0; while [ ! -e "$place/crashed" ] && n=$((n + 1)) && container "build-$n" "$work" && echo a >>"$place/done"; do :; done; }
(forever) >/dev/null 2>&1 &
job=$!
begun() { [ "$(wc -l 2>/dev/null <"$place/done")" -ge 2 ]; }
wait_for begun 2>/dev/null
"$CCFS" stream sync --all "$mnt" # something survives, and the job is in the middle of the next layer
crash
wait "$job" || true
umount -l "$place/merged" 2>/dev/null || true
found=0
for layer in "$layers"/build-*; do
    case $layer in *.new | *.work) continue ;; esac
    [ -d "$layer" ] || continue
    [ "$(ls "$layer/made" | wc -l)" = 300 ] && [ -c "$layer/usr/7" ] || { echo "$layer is not whole" >&2; exit 1; }
    for n in 1 150 300; do [ "$(cat "$layer/made/$n")" = "$n" ]; done
    found=$((found + 1))
done
[ "$found" -ge 2 ]
echo "after the crash: $found published layers, all whole"
echo ok
