#!/usr/bin/env bash
# Makes the first root of a guest, once a kernel: a shell, insmod, mount and the modules that it needs to start with.
# usage: initramfs.sh KERNEL    (the folder of kernel.sh; prints the file's name)
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernel=$1
version=$(ls "$kernel/lib/modules")
# Made anew when it would differ.
name=$kernel/initramfs-$(cat "$here/initramfs.sh" "$here/first.sh" | sha256sum | cut -c1-16)
if [ -e "$name" ]; then
    echo "$name"
    exit
fi

root=$(mktemp -d "$kernel/initramfs.XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,lib,proc,sys,dev,modules,host,scratch,new}
for program in sh mount mkdir ln insmod stty switch_root; do
    path=$(realpath "$(command -v $program)")
    cp "$path" "$root/bin/$(basename "$path")"
    [ "$(basename "$path")" = $program ] || ln -s "$(basename "$path")" "$root/bin/$program"
    # Libraries at the very paths that the loader looks at.
    for library in $(ldd "$path" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
done
# In the order in which they are needed; `builtin` is in the kernel.
for module in virtio_pci virtio_blk 9pnet_virtio 9p overlay ext4 fuse loop; do
    modprobe -d "$kernel" -S "$version" --show-depends $module
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r path; do
    cp "$path" "$root/modules/"
    basename "$path" >>"$root/modules/order"
done
cp "$here/first.sh" "$root/init"
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet) >"$name.$$"
mv "$name.$$" "$name"
echo "$name"
