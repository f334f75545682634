#!/usr/bin/env bash
# Fetches the newest kernel of a Debian suite, once; prints the folder that holds `vmlinuz` and `lib/modules`.
# usage: kernel.sh SUITE CACHE    (CACHE/SUITE is the folder; remove it to fetch a newer kernel)
#
# A package list of its own: this machine's apt, its sources and what is installed are not touched.
# CCFS_GUEST_MIRROR (default http://deb.debian.org) has /debian and /debian-security.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

suite=$1 cache=$2
folder=$cache/$suite
exec 9>"$cache/lock"
flock 9
if [ -e "$folder/vmlinuz" ]; then
    echo "$folder"
    exit
fi

work=$cache/fetch
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/none" "$work/debs" "$work/root"
mirror=${CCFS_GUEST_MIRROR:-http://deb.debian.org}
signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
echo "deb $signed $mirror/debian $suite main" >"$work/sources.list"
case $suite in
    *-* | sid | unstable | testing) ;;
    *) echo "deb $signed $mirror/debian-security $suite-security main" >>"$work/sources.list" ;;
esac
: >"$work/status"
options=(-o Dir::State="$work/state" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache"
    -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts="$work/none"
    -o Dir::Etc::Preferences="$work/none/none" -o Dir::Etc::PreferencesParts="$work/none"
    -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::http::Timeout=30)
architecture=$(dpkg --print-architecture)

failed() {
    echo "guest: no kernel of Debian $suite: $1" >&2
    exit 1
}

apt-get "${options[@]}" -qq update >"$work/log" 2>&1 || { cat "$work/log" >&2; failed "apt-get update"; }
# linux-image-amd64 names linux-image-VERSION-amd64, and where modules are a package of their own, that.
packages=("linux-image-$architecture")
for ((i = 0; i < ${#packages[@]}; i++)); do
    while read -r name; do
        case " ${packages[*]} " in *" $name "*) ;; *) packages+=("$name") ;; esac
    done < <(apt-cache "${options[@]}" depends "${packages[i]}" 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-\(image\|modules\|binary\|base\)-[^ ]*\)$/\1/p')
done
(cd "$work/debs" && apt-get "${options[@]}" -qq download "${packages[@]}" >"$work/log" 2>&1) ||
    { cat "$work/log" >&2; failed "apt-get download ${packages[*]}"; }
for package in "$work"/debs/*.deb; do
    dpkg-deb -x "$package" "$work/root"
done
[ -d "$work/root/lib" ] || ln -s usr/lib "$work/root/lib"
version=$(ls "$work/root/lib/modules")
# Newer packages have the kernel beside its modules.
for vmlinuz in "$work/root/boot/vmlinuz-$version" "$work/root/lib/modules/$version/vmlinuz"; do
    [ ! -e "$vmlinuz" ] || mv "$vmlinuz" "$work/vmlinuz"
done
[ -e "$work/vmlinuz" ] || failed "no vmlinuz of $version in ${packages[*]}"
depmod -b "$work/root" "$version"
rm -rf "$folder" "$folder.new"
mkdir -p "$folder.new/lib/modules"
mv "$work/root/lib/modules/$version" "$folder.new/lib/modules/"
mv "$work/vmlinuz" "$folder.new/"
mv "$folder.new" "$folder"
echo "$folder"
