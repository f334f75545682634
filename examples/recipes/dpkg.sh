#!/usr/bin/env bash
# dpkg in an image build or on a device: `ccfs stream run --ignore-fsync --sync` instead of force-unsafe-io or eatmydata. No sync while it
# works, one at the end; a crash in the middle leaves a database that dpkg can go on with, as its own syncs would.
. "$(dirname "$0")/lib.sh"
needs dpkg dpkg-deb python3
export DEBIAN_FRONTEND=noninteractive
# Packages of nothing, 40 files each.
mkdir "$place/debs"
for n in 1 2 3 4 5 6 7 8; do
    tree=$place/build
    mkdir -p "$tree/DEBIAN" "$tree/usr/share/sample-$n"
    printf 'Package: sample-%s\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: sample\n' $n >"$tree/DEBIAN/control"
    for f in $(seq 40); do seq $((f * 50)) >"$tree/usr/share/sample-$n/$f"; done
    dpkg-deb --root-owner-group -b "$tree" "$place/debs/sample-$n.deb" >/dev/null
    rm -r "$tree"
done
# A root without a system: only dpkg's own database.
root() {
    mkdir -p "$mnt/$1/var/lib/dpkg/info" "$mnt/$1/var/lib/dpkg/updates" "$mnt/$1/var/lib/dpkg/triggers"
    touch "$mnt/$1/var/lib/dpkg/status" "$mnt/$1/var/lib/dpkg/available"
}
into() { local root=$mnt/$1; shift; "$@" dpkg --root="$root" --log=/dev/null --force-script-chrootless,bad-path -i "$place"/debs/*.deb >"$place/out" 2>&1 || { cat "$place/out" >&2; exit 1; }; }

start 256M
root plain
measure "dpkg -i" into plain
plain=$flushes
root ours
in_stream=("$CCFS" stream run --on "$mnt" --ignore-fsync --sync --)
measure "dpkg -i, in a stream" into ours "${in_stream[@]}"
fewer "$flushes" "$plain" "flushes"
diff -r "$mnt/plain/usr" "$mnt/ours/usr"

# A crash in the middle: no file of the database is empty or half, and the same command goes on from there.
root crash
again() { while [ ! -e "$place/crashed" ] && into crash "${in_stream[@]}" && echo a >>"$place/done" && "$CCFS" stream sync "$mnt"; do :; done; }
(again) >/dev/null 2>&1 &
job=$!
begun() { [ -s "$place/done" ]; }
wait_for begun
crash
wait "$job" || true
dpkg --root="$mnt/crash" --audit >"$place/audit" 2>&1 || { cat "$place/audit" >&2; exit 1; }
into crash "${in_stream[@]}"
[ "$(dpkg-query --admindir="$mnt/crash/var/lib/dpkg" -W -f '${Status}\n' | grep -c '^install ok installed$')" = 8 ]
diff -r "$mnt/plain/usr" "$mnt/crash/usr"
echo "after the crash: dpkg goes on, all 8 packages are whole"
echo ok
