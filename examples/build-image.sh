#!/bin/sh
# ci: yes
# Builds a volume image without root and without a mount: a small tree, owned by root, reproducible in content.
# usage: build-image.sh [IMAGE]        (CCFS: the program, if it is not in the PATH)
set -eu
ccfs=${CCFS:-ccfs}
image=${1:-image.img}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

mkdir -p "$tree/etc/app" "$tree/usr/bin"
echo 'answer = 42' >"$tree/etc/app/config"
printf '#!/bin/sh\necho hello\n' >"$tree/usr/bin/hello"
chmod 755 "$tree/usr/bin/hello"
ln -s hello "$tree/usr/bin/greet"

"$ccfs" mkfs --sparse -s 32M -L example "$image"
"$ccfs" put --owner 0:0 "$tree/." "$image"
"$ccfs" mkdir -p "$image:/var/lib/app"
"$ccfs" tree "$image"
"$ccfs" cat "$image:/etc/app/config"
# Also after a crash half way: the volume is recovered, if need be, and is plain ext4.
"$ccfs" release "$image"
