#!/usr/bin/env bash
# Fetches a kernel of a Debian suite, once; prints the folder that holds `vmlinuz` and `lib/modules`.
# usage: kernel.sh SUITE[/MAJOR.MINOR] CACHE    (the suite's default kernel, or its newest of that version)
#
# CACHE/SUITE or CACHE/SUITE-MAJOR.MINOR is the folder; remove it to fetch a newer kernel.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/apt.sh"
suite=${1%%/*} cache=$(realpath -m "$2") wanted=
[ "$suite" = "$1" ] || wanted=${1#*/}
folder=$cache/${1/\//-}
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ -e "$folder/vmlinuz" ]; then
    echo "$folder"
    exit
fi

work=$cache/fetch
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/debs" "$work/root"
architecture=$(dpkg --print-architecture)

failed() {
    echo "guest: no kernel of Debian $1: $2" >&2
    exit 1
}

private_apt "$suite" "$work" || failed "$suite" "apt-get update"
first=linux-image-$architecture
if [ -n "$wanted" ]; then
    first=$(kernels_listed "$architecture" | sed -n "s/^$wanted //p")
    [ -n "$first" ] || failed "$suite" "it has no $wanted"
fi
# linux-image-amd64 names linux-image-VERSION-amd64, and where modules are a package of their own, that.
packages=("$first")
for ((i = 0; i < ${#packages[@]}; i++)); do
    while read -r name; do
        case " ${packages[*]} " in *" $name "*) ;; *) packages+=("$name") ;; esac
    done < <(apt-cache "${apt[@]}" depends "${packages[i]}" 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-\(image\|modules\|binary\|base\)-[^ ]*\)$/\1/p')
done
(cd "$work/debs" && apt-get "${apt[@]}" -qq download "${packages[@]}" >"$work/log" 2>&1) ||
    { cat "$work/log" >&2; failed "$suite" "apt-get download ${packages[*]}"; }
for package in "$work"/debs/*.deb; do
    dpkg-deb -x "$package" "$work/root"
done
[ -d "$work/root/lib" ] || ln -s usr/lib "$work/root/lib"
version=$(ls "$work/root/lib/modules")
# Newer packages have the kernel beside its modules.
for vmlinuz in "$work/root/boot/vmlinuz-$version" "$work/root/lib/modules/$version/vmlinuz"; do
    [ ! -e "$vmlinuz" ] || mv "$vmlinuz" "$work/vmlinuz"
done
[ -e "$work/vmlinuz" ] || failed "$suite" "no vmlinuz of $version in ${packages[*]}"
depmod -b "$work/root" "$version"
rm -rf "$folder" "$folder.new"
mkdir -p "$folder.new/lib/modules"
mv "$work/root/lib/modules/$version" "$folder.new/lib/modules/"
mv "$work/vmlinuz" "$folder.new/"
mv "$folder.new" "$folder"
echo "$folder"
