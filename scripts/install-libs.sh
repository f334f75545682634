#!/usr/bin/env bash
# Installs what programs build with: libccfs (shared, static, header, pkg-config, section 3 pages) as it was built, and the SQLite
# extension where it can be built.
# usage: [DESTDIR=...] [PREFIX=/usr/local] [LIBDIR=$PREFIX/lib] install-libs.sh BUILD-DIR    (BUILD-DIR: target/release; in a tarball: lib)
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=${1:?usage: install-libs.sh BUILD-DIR}
PREFIX=${PREFIX:-/usr/local}
LIBDIR=${LIBDIR:-$PREFIX/lib}
root=${DESTDIR:-}
# In a tarball of a release there are no sources.
if [ -e "$top/VERSION" ]; then
    header=$top/include version=$(cat "$top/VERSION")
else
    header=$top/crates/libccfs/include
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
fi

[ -e "$build/libccfs.so" ] || { echo "$build/libccfs.so is missing; build it first: cargo build --release -p ccfs-libccfs" >&2; exit 1; }
install -d "$root$LIBDIR/pkgconfig" "$root$PREFIX/include" "$root$PREFIX/share/man/man3"
install -m 755 "$build/libccfs.so" "$root$LIBDIR/libccfs.so.1"
ln -sf libccfs.so.1 "$root$LIBDIR/libccfs.so"
install -m 644 "$build/libccfs.a" "$root$LIBDIR/libccfs.a"
install -m 644 "$header/ccfs.h" "$root$PREFIX/include/ccfs.h"
install -m 644 "$top"/docs/man/*.3 "$root$PREFIX/share/man/man3/"
sed -e "s|@PREFIX@|$PREFIX|" -e "s|@LIBDIR@|$LIBDIR|" -e "s|@VERSION@|$version|" "$top/scripts/ccfs.pc.in" >"$root$LIBDIR/pkgconfig/ccfs.pc"
chmod 644 "$root$LIBDIR/pkgconfig/ccfs.pc"

# Programs find a new library by the loader's cache. In a package's root that is for the package to do.
if [ -z "$root" ]; then
    PATH=$PATH:/usr/sbin:/sbin ldconfig ||
        echo "programs do not find $LIBDIR/libccfs.so.1 before this was run as root: ldconfig" >&2
fi

# The SQLite extension is C over SQLite's own header; without that header there is nothing to use it with.
if command -v cc >/dev/null && echo '#include <sqlite3ext.h>' | cc -E - >/dev/null 2>&1; then
    install -d "$root$LIBDIR/ccfs"
    cc -O2 -fPIC -shared -I"$header" -o "$root$LIBDIR/ccfs/ccfs_vfs.so" "$top"/sqlite/*.c
else
    echo "the SQLite extension is left out: it needs a C compiler and libsqlite3-dev"
fi
