#!/bin/sh
# The guest's first program: mounts the host's files under an overlay, and goes there.
# All that needs programs is done here, where they are in memory: over 9p each costs an emulated machine half a second.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/modules/$module" || echo "guest: insmod $module failed" >/dev/console
done </modules/order
read -r line </proc/cmdline
for word in $line; do
    case $word in
        guest.here=*) guest=${word#*=} ;;
        guest.kernel=*) kernel=${word#*=} ;;
        guest.run=*) run=${word#*=} ;;
    esac
done
read -r _ _ version _ </proc/version
options=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o $options,cache=loose,ro host /host &&
    mount -t ext4 /dev/vda /scratch && mkdir /scratch/upper /scratch/work &&
    mount -t overlay -o lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work root /new &&
    mkdir -p /new/scratch /new/proc /new/sys /new/dev /new/run /new/lib/modules "/new$run" /dev/pts /dev/shm &&
    mount -t 9p -o $options,cache=none run "/new$run" &&
    mount -t tmpfs -o mode=755 run /new/run &&
    mount -t devpts -o mode=620,gid=5 pts /dev/pts &&
    mount -t tmpfs shm /dev/shm &&
    mount -t fusectl fusectl /sys/fs/fuse/connections &&
    mount -n --move /scratch /new/scratch && mount -n --move /proc /new/proc &&
    mount -n --move /sys /new/sys && mount -n --move /dev /new/dev &&
    ln -sfn "$kernel/lib/modules/$version" "/new/lib/modules/$version" &&
    stty -F /new/dev/ttyS1 raw &&
    exec switch_root /new "$guest/second.sh" "$run"
echo "guest: no root" >/dev/console
