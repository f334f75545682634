#!/usr/bin/env bash
# Builds a Debian package of the built program with dpkg-deb.
# usage: deb.sh PROGRAM OUT-DIR [VERSION]     (another VERSION than that of the sources is for tests)
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
program=${1:?usage: deb.sh PROGRAM OUT-DIR [VERSION]} out=${2:?usage: deb.sh PROGRAM OUT-DIR [VERSION]}
upstream=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
version=${3:-$upstream-1}
arch=$(dpkg --print-architecture)
# Who builds it says so as dch(1) wants it.
maintainer="${DEBFULLNAME:-ccfs maintainers} <${DEBEMAIL:-ccfs@users.noreply.github.com}>"
# Same input, same package.
date=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || date +%s)}")
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/DEBIAN" "$out"
# mktemp's directory is private, the package's root is not.
chmod 755 "$root"

export DESTDIR=$root PREFIX=/usr SBIN=/usr/sbin UNITDIR=/lib/systemd/system ZSHDIR=/usr/share/zsh/vendor-completions
"$top/scripts/install.sh" install "$program"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/bin/ccfs"
# Relative links, as Debian wants them.
for helper in mount mkfs fsck; do ln -sf "../bin/ccfs" "$root/usr/sbin/$helper.ccfs"; done
gzip -9 -n "$root"/usr/share/man/man8/*.8

doc=$root/usr/share/doc/ccfs
install -d "$doc" "$root/usr/share/lintian/overrides"
install -m 644 "$top/docs/using.md" "$top/docs/posix.md" "$top/docs/json.md" "$top/SECURITY.md" "$doc/"
gzip -9 -n "$doc/using.md"
gzip -9 -n -c "$top/CHANGELOG.md" >"$doc/changelog.gz"
gzip -9 -n >"$doc/changelog.Debian.gz" <<END
ccfs ($version) unstable; urgency=medium

  * Upstream version $upstream; see changelog.gz.

 -- $maintainer  $date
END
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
# The overrides tell why: the unit is a template that starts nothing by itself, so maintainer scripts have nothing to enable.
cat >"$root/usr/share/lintian/overrides/ccfs" <<END
ccfs: initial-upload-closes-no-bugs
END

# Which versions of libraries the program needs, from its symbols.
mkdir -p "$work/shlibs/debian"
printf 'Source: ccfs\n\nPackage: ccfs\nArchitecture: any\n' >"$work/shlibs/debian/control"
depends=$(cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info "$root/usr/bin/ccfs" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
size=$(du -k -s --exclude=DEBIAN "$root" | cut -f1)
cat >"$root/DEBIAN/control" <<END
Package: ccfs
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $size
Depends: ${depends:-libc6}, e2fsprogs, mount
Recommends: fuse3
Section: admin
Priority: optional
Description: file system that keeps every application's updates in order
 ccfs mounts plain ext4 volumes through FUSE and keeps the updates of every
 application in the order in which they were made, also across a crash. A
 program that never calls fsync still finds, after a power cut, a prefix of
 its updates.
 .
 This package has the program, the helpers for mount(8), mkfs(8) and
 fsck(8), and a systemd unit template.
END

cat >"$root/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
# Mounted volumes go on being served by the program that mounted them; nothing is restarted.
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
fi
END
chmod 755 "$root"/DEBIAN/p*
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
chmod 644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control"
dpkg-deb --root-owner-group --build -Zxz "$root" "$out/ccfs_${version}_$arch.deb" >&2
echo "$out/ccfs_${version}_$arch.deb"
