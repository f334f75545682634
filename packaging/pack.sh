#!/usr/bin/env bash
# Packs what was built: Debian packages, a tarball, a software bill of materials, how it was built, checksums. The same programs and
# SOURCE_DATE_EPOCH give the same bytes.
# usage: pack.sh PROGRAM OUT-DIR [COMMIT]
# Beside PROGRAM are libccfs.so and libccfs.a, and ccfs-bench, ccfs-bench-work, ccfs-crash and libccfs_direct.so if they were
# built. OUT-DIR is empty.
# DEB_LEVEL: of compression, 0 to 9.
set -euo pipefail
usage="usage: pack.sh PROGRAM OUT-DIR [COMMIT]"
top=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "${1:?$usage}")
mkdir -p "${2:?$usage}"
out=$(realpath "$2") commit=${3:-}
version=$(sed -n '/^version = /{s/.*"\(.*\)"/\1/p;q}' "$top/Cargo.toml")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct)} LC_ALL=C.UTF-8 TZ=UTC
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without what only debuggers need.
built=$work/built
mkdir "$built"
for name in ccfs ccfs-bench ccfs-bench-work ccfs-crash libccfs.so libccfs_direct.so libccfs.a; do
    from=$(dirname "$program")/$name
    [ ! -e "$from" ] || cp "$from" "$built/$name"
done
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$built"/ccfs* "$built"/libccfs*.so
strip --strip-debug "$built/libccfs.a"

"$top/packaging/sbom.py" sbom $commit >"$out/ccfs-$version.cdx.json"
export NOTICES=$work/THIRD-PARTY
"$top/packaging/sbom.py" notices >"$NOTICES"

"$top/packaging/deb.sh" "$built/ccfs" "$out" >&2

# A tree as below /usr/local, with the scripts that install it and take it away.
name=ccfs-$version-$(uname -m)-linux
tree=$work/$name
DESTDIR=$work/root PREFIX=/usr/local SBIN=/sbin "$top/scripts/install.sh" install "$built/ccfs" >&2
mkdir -p "$tree/scripts" "$tree/packaging" "$tree/include"
cp -r "$work"/root/usr/local/{bin,lib,share} "$tree/"
install -m 755 "$built/libccfs.so" "$tree/lib/libccfs.so"
install -m 644 "$built/libccfs.a" "$tree/lib/libccfs.a"
install -m 644 "$top/crates/libccfs/include/ccfs.h" "$tree/include/ccfs.h"
install -D -m 644 -t "$tree/share/man/man3" "$top"/docs/man/*.3
install -m 644 "$top/scripts/ccfs.pc.in" "$tree/scripts/"
install -m 755 "$top"/scripts/install.sh "$top"/scripts/install-libs.sh "$tree/scripts/"
install -m 644 "$top/packaging/ccfs@.service" "$tree/packaging/"
install -D -m 644 -t "$tree/sqlite" "$top"/sqlite/*.[ch]
(cd "$top" && find docs -name '*.md' -o -name '*.3') | while read -r page; do install -D -m 644 "$top/$page" "$tree/$page"; done
install -m 644 "$top"/LICENSE-* "$top/CHANGELOG.md" "$top/SECURITY.md" "$top/README.md" "$NOTICES" "$tree/"
echo "$version" >"$tree/VERSION"
chmod 644 "$tree/VERSION"
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -C "$work" -cf - "$name" |
    xz -T1 "-${DEB_LEVEL:-6}" >"$out/$name.tar.xz"

# With what it was built.
{
    echo "ccfs $version, commit ${commit:-unknown}"
    . /etc/os-release
    echo "built on $PRETTY_NAME"
    rustc -V
    cargo -V
    for tool in cc ld strip dpkg-deb tar xz gzip; do "$tool" --version | sed -n 1p; done
    [ -z "${RUSTFLAGS:-}" ] || echo "RUSTFLAGS=$RUSTFLAGS"
} >"$out/ccfs-$version.build.txt"
(cd "$out" && sha256sum -- *.deb *.json *.tar.xz *.txt >SHA256SUMS)
