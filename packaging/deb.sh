#!/usr/bin/env bash
# Builds Debian packages of what was built with dpkg-deb: the program (ccfs), the C library (libccfs1), and what programs are built with
# (libccfs-dev). Prints their files, one a line.
# usage: deb.sh PROGRAM OUT-DIR [VERSION [PACKAGE...]]
# Beside PROGRAM are libccfs.so and libccfs.a, and ccfs-bench, ccfs-bench-work, ccfs-crash and libccfs_direct.so if they were
# built. DEB_LEVEL: of compression, 0 to 9.
# NOTICES: a file with the licences of what is in the programs (packaging/sbom.py makes it). Another VERSION than that of the sources is
# for tests. The same programs and SOURCE_DATE_EPOCH give the same bytes.
set -euo pipefail
usage="usage: deb.sh PROGRAM OUT-DIR [VERSION [PACKAGE...]]"
top=$(cd "$(dirname "$0")/.." && pwd)
program=${1:?$usage} out=${2:?$usage}
upstream=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
version=${3:-$upstream-1}
[ $# -le 3 ] || packages=("${@:4}")
[ $# -gt 3 ] || packages=(ccfs libccfs1 libccfs-dev)
arch=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
# Who builds it says so as dch(1) wants it.
maintainer="${DEBFULLNAME:-ccfs maintainers} <${DEBEMAIL:-ccfs@users.noreply.github.com}>"
# Same input, same package: dpkg-deb takes it for the times of files.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}
date=$(date -R -u -d "@$SOURCE_DATE_EPOCH")
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
homepage=$(sed -n 's/^repository = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)

# begin PACKAGE: an empty root in $root, with what every package has.
begin() {
    root=$work/$1
    doc=$root/usr/share/doc/$1
    mkdir -p "$root/DEBIAN"
    # mktemp's directory is private, the package's root is not.
    chmod 755 "$root"
    install -d "$doc" "$root/usr/share/lintian/overrides"
    gzip -9 -n -c "$top/CHANGELOG.md" >"$doc/changelog.gz"
    gzip -9 -n >"$doc/changelog.Debian.gz" <<END
ccfs ($version) unstable; urgency=medium

  * Upstream version $upstream; see changelog.gz.

 -- $maintainer  $date
END
    [ -z "${NOTICES:-}" ] || gzip -9 -n -c "$NOTICES" >"$doc/THIRD-PARTY.gz"
    cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ccfs

Files: *
Copyright: 2026 The ccfs authors
License: Apache-2.0 or MIT

License: Apache-2.0
 On Debian systems, the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.

License: MIT
$(sed -e '1,/^Copyright/d' -e 's/^$/./' -e 's/^/ /' "$top/LICENSE-MIT" | sed '1{/^ \.$/d}')
END
    echo "$1: initial-upload-closes-no-bugs" >"$root/usr/share/lintian/overrides/$1"
}

# size_kib: of what is installed, as dpkg-gencontrol(1) counts: `du` tells what the file system of this machine makes of it.
size_kib() {
    find "$root" -mindepth 1 -path "$root/DEBIAN" -prune -o -printf '%y %s\n' |
        awk '$1 == "f" { sum += int(($2 + 1023) / 1024); next } { sum++ } END { print sum + 0 }'
}

# needs FILE...: which versions of libraries they need, from their symbols.
needs() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: ccfs\n\nPackage: ccfs\nArchitecture: any\n' >"$work/shlibs/debian/control"
    local found
    found=$(cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info "$@" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
    echo "${found:-libc6}"
}

# control PACKAGE SECTION DEPENDS [FIELD...] <DESCRIPTION
control() {
    local name=$1 section=$2 depends=$3
    shift 3
    {
        printf '%s\n' "Package: $name" "Source: ccfs" "Version: $version" "Architecture: $arch" "Maintainer: $maintainer" \
            "Installed-Size: $(size_kib)" "Depends: $depends" "$@" \
            "Section: $section" "Priority: optional"
        [ -z "$homepage" ] || echo "Homepage: $homepage"
        cat
    } | if [ "$name" = ccfs ]; then grep -v '^Source:'; else cat; fi >"$root/DEBIAN/control"
}

# finish PACKAGE: from its root to its file.
finish() {
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    chmod 644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control"
    dpkg-deb --root-owner-group --build -Zxz "-z${DEB_LEVEL:-6}" "$root" "$out/$1_${version}_$arch.deb" >&2
    echo "$out/$1_${version}_$arch.deb"
}

package_ccfs() {
    begin ccfs
    export DESTDIR=$root PREFIX=/usr SBIN=/usr/sbin UNITDIR=/lib/systemd/system ZSHDIR=/usr/share/zsh/vendor-completions
    "$top/scripts/install.sh" install "$program"
    local made=("$root"/usr/bin/*)
    [ ! -d "$root/usr/lib/ccfs" ] || made+=("$root"/usr/lib/ccfs/*.so)
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "${made[@]}"
    # Relative links, as Debian wants them.
    for helper in mount.ccfs mkfs.ccfs fsck.ccfs mount.fuse.ccfs mount.fuseblk.ccfs umount.fuse.ccfs umount.fuseblk.ccfs; do ln -sf "../bin/ccfs" "$root/usr/sbin/$helper"; done
    gzip -9 -n "$root"/usr/share/man/man[578]/*.[578]
    install -m 644 "$top/SECURITY.md" "$doc/"

    cat >"$root/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
# Mounted volumes go on being served by the program that mounted them; nothing is restarted. The unit is a template that starts nothing by
# itself, so there is nothing to enable.
if [ "$1" = configure ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
END
    cat >"$root/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ]; then
    # Volumes stay usable without the program: their daemons go on until they are unmounted with umount(8).
    if grep -qE ' - (fuseblk|fuse)\.ccfs ' /proc/self/mountinfo 2>/dev/null; then
        echo "ccfs: volumes are mounted; umount(8) brings them to rest also without this package" >&2
    fi
fi
END
    cat >"$root/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
    # Made by the administrator for ccfs@.service; what is in it stays.
    rmdir "$DPKG_ROOT/etc/ccfs" 2>/dev/null || true
    # Plans of `ccfs direct`, which are made anew where they are missing.
    rm -rf "$DPKG_ROOT/var/cache/ccfs/direct"
    rmdir "$DPKG_ROOT/var/cache/ccfs" 2>/dev/null || true
fi
END
    chmod 755 "$root"/DEBIAN/p*
    control ccfs admin "$(needs "${made[@]}"), e2fsprogs, mount" "Recommends: fuse3" "Suggests: libccfs-dev, libnbd0, librbd1" <<'END'
Description: file system that keeps every application's updates in order
 ccfs mounts plain ext4 volumes through FUSE and keeps the updates of every
 application in the order in which they were made, also across a crash. A
 program that never calls fsync still finds, after a power cut, a prefix of
 its updates.
 .
 This package has the program, the helpers for mount(8), mkfs(8) and
 fsck(8), a systemd unit template, crash exploration of any program, and
 the benchmark.
END
    finish ccfs
}

# All that install-libs.sh installs, once, in $libs.
build_libs() {
    libs=$work/libs lib=/usr/lib/$multiarch
    [ ! -d "$libs" ] || return 0
    DESTDIR=$libs PREFIX=/usr LIBDIR=$lib "$top/scripts/install-libs.sh" "$(dirname "$program")" >&2
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$libs$lib"/libccfs.so.1 "$libs$lib"/ccfs/*.so
    # What a linker does not need, and machine-independent code of the compiler's own.
    strip --strip-debug "$libs$lib/libccfs.a"
    chmod 644 "$libs$lib/libccfs.so.1" "$libs$lib"/ccfs/*.so
}

package_libccfs1() {
    build_libs
    begin libccfs1
    install -d "$root$lib"
    cp -P "$libs$lib/libccfs.so.1" "$root$lib/"
    # For programs of other packages, and for the linker's cache.
    echo "libccfs 1 libccfs1 (>= $upstream)" >"$root/DEBIAN/shlibs"
    echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
    chmod 644 "$root/DEBIAN/shlibs" "$root/DEBIAN/triggers"
    control libccfs1 libs "$(needs "$root$lib/libccfs.so.1")" "Multi-Arch: same" <<'END'
Description: streams of the ccfs file system (shared library)
 A program tells ccfs with a few calls which of its updates belong together;
 they keep their order across a crash without any sync. On other file systems
 the calls do nothing.
END
    finish libccfs1
}

package_libccfs-dev() {
    build_libs
    begin libccfs-dev
    install -d "$root$lib/pkgconfig" "$root/usr/include" "$root/usr/share/man"
    cp -P "$libs$lib/libccfs.so" "$libs$lib/libccfs.a" "$root$lib/"
    cp -P "$libs$lib/pkgconfig/ccfs.pc" "$root$lib/pkgconfig/"
    cp "$libs/usr/include/ccfs.h" "$root/usr/include/"
    cp -r "$libs/usr/share/man/man3" "$root/usr/share/man/"
    gzip -9 -n "$root"/usr/share/man/man3/*.3
    install -d "$doc/examples"
    install -m 644 "$top/examples/ordered.c" "$top/examples/ordered.cc" "$doc/examples/"
    local extension=
    if [ -d "$libs$lib/ccfs" ]; then
        cp -r "$libs$lib/ccfs" "$root$lib/"
        extension=", $(needs "$root$lib/ccfs/ccfs_vfs.so")"
    fi
    control libccfs-dev libdevel "libccfs1 (= $version)$extension" "Multi-Arch: same" <<'END'
Description: streams of the ccfs file system (for building programs)
 A program tells ccfs with a few calls which of its updates belong together;
 they keep their order across a crash without any sync. On other file systems
 the calls do nothing.
 .
 This package has the header, the static library, manual pages and examples,
 and an extension for SQLite that needs no change to the program.
END
    finish libccfs-dev
}

for package in "${packages[@]}"; do
    declare -F "package_$package" >/dev/null || { echo "there is no package $package" >&2; exit 2; }
    "package_$package"
done
