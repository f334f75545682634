#!/usr/bin/env bash
# A volume on Ceph: a cluster of one node on loopback, a host that dies and another one that takes its volume over and goes on with its
# program, and a golden image that several read and one changes a copy of. Hosts are PID and mount namespaces here.
. "$(dirname "$0")/lib.sh"
needs ceph ceph-mon ceph-osd monmaptool rbd unshare python3
here_dir=$place/ceph
mkdir -p "$here_dir"/{mon,osd,run}
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
fsid=$(cat /proc/sys/kernel/random/uuid) osd=$(cat /proc/sys/kernel/random/uuid)
export CEPH_CONF=$here_dir/ceph.conf
cat >"$CEPH_CONF" <<CONF
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$port
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
public network = 127.0.0.0/8
ms bind ipv6 = false
mon data avail crit = 1
mon data avail warn = 1
mon data = $here_dir/mon
osd data = $here_dir/osd
run dir = $here_dir/run
pid file = $here_dir/run/\$name.pid
admin socket = $here_dir/run/\$name.\$pid.asok
log file = $here_dir/run/\$name.log
CONF
daemons=()
before_finish() {
    [ -z "${first-}" ] || kill -9 "$first" 2>/dev/null || true
    umount -l "$place/golden" 2>/dev/null || true
    kill -9 "${daemons[@]}" 2>/dev/null || true
}
begun=$SECONDS
monmaptool --create --addv a "[v2:127.0.0.1:$port]" --fsid "$fsid" "$here_dir/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$here_dir/monmap"
ceph-mon -f -i a >/dev/null 2>&1 &
daemons+=($!)
ceph osd new "$osd" >/dev/null
ceph-osd -i 0 --mkfs --osd-uuid "$osd" 2>/dev/null
ceph-osd -f -i 0 >/dev/null 2>&1 &
daemons+=($!)
ceph osd pool create rbd 8 8 2>/dev/null
rbd create --size 256 rbd/volume
echo "the cluster is there after $((SECONDS - begun)) s"
store=rbd:rbd/volume:conf=$CEPH_CONF
"$CCFS" mkfs "$store" >/dev/null

# program FIRST: numbers, each in a file of its own, the last synced one in $place/synced.
cat >"$place/program" <<'PROGRAM'
n=$2
while [ ! -e "$1/stop" ]; do
    echo "$n" >"$1/mnt/$n" && sync "$1/mnt/$n" || exit 1
    echo "$n" >"$1/synced.new" && mv "$1/synced.new" "$1/synced"
    n=$((n + 1))
done
PROGRAM

# Host A mounts it, and works until it dies.
unshare -m -p -f --mount-proc --kill-child sh -c '"$1" mount "$2" "$3/mnt" && exec sh "$3/program" "$3" 0' - \
    "$CCFS" "$store" "$place" >/dev/null 2>&1 &
first=$!
some() { [ -e "$place/synced" ] && [ "$(cat "$place/synced")" -ge 50 ]; }
wait_for some
kill -9 "$first"
wait "$first" 2>/dev/null || true
first=
synced=$(cat "$place/synced")

# Host B (this one) takes it over. The cluster shuts A out first, whatever has become of it.
begun=$(date +%s%N)
"$CCFS" mount --take-over "$store" "$mnt" 2>/dev/null
took=$((($(date +%s%N) - begun) / 1000000))
echo "taken over after $took ms; $synced files had been synced"
[ "$took" -lt 10000 ]
next=0
while [ -e "$mnt/$next" ]; do next=$((next + 1)); done
[ "$next" -gt "$synced" ]
[ "$(find "$mnt" -maxdepth 1 -name '[0-9]*' | wc -l)" = "$next" ]
sh "$place/program" "$place" "$next" &
job=$!
more() { [ "$(cat "$place/synced")" -ge $((next + 20)) ]; }
wait_for more
touch "$place/stop"
wait "$job"
job=
"$CCFS" umount "$mnt" >/dev/null

# A golden image: read by many, and a copy that is changed.
rbd snap create rbd/volume@golden 2>/dev/null
rbd snap protect rbd/volume@golden
golden=rbd:rbd/volume@golden:conf=$CEPH_CONF
mkdir "$place/golden"
"$CCFS" mount -o ro "$golden" "$mnt" 2>/dev/null
unshare -m -p -f --mount-proc sh -c 'umount "$3"; "$1" mount -o ro "$2" "$3" && cat "$3/0" && "$1" umount "$3" >/dev/null' - \
    "$CCFS" "$golden" "$mnt" 2>/dev/null | grep -qx 0
[ "$(cat "$mnt/0")" = 0 ]
"$CCFS" umount "$mnt" >/dev/null
rbd clone rbd/volume@golden rbd/copy
"$CCFS" rm "rbd:rbd/copy:conf=$CEPH_CONF:/0"
[ "$("$CCFS" cat "$golden:/0")" = 0 ]
"$CCFS" fsck -fn "$store" >/dev/null 2>&1
# The end waits for what runs in the background.
before_finish
echo ok
