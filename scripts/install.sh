#!/usr/bin/env bash
# Installs the program with everything that finds it: helpers of mount(8), mkfs(8) and fsck(8), pages, completions, service unit.
# usage: [DESTDIR=...] [PREFIX=/usr/local] [SBIN=/sbin] [UNITDIR=...] install.sh install|uninstall PROGRAM
# PROGRAM: the built ccfs; ccfs-bench, ccfs-bench-work, ccfs-crash and libccfs_direct.so, if they were built, lie beside it. What
# `install` puts there, `uninstall` takes away, and nothing else.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
action=${1:-} program=${2:-}
[ $# = 2 ] || { echo "usage: install.sh install|uninstall PROGRAM" >&2; exit 2; }
PREFIX=${PREFIX:-/usr/local}
SBIN=${SBIN:-/sbin}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
# zsh of Debian looks for packages' completions in vendor-completions, zsh as it comes in site-functions.
ZSHDIR=${ZSHDIR:-$PREFIX/share/zsh/site-functions}
BASHDIR=$PREFIX/share/bash-completion/completions
FISHDIR=${FISHDIR:-$PREFIX/share/fish/vendor_completions.d}
man=$PREFIX/share/man/man8
doc=$PREFIX/share/doc/ccfs
root=${DESTDIR:-}
# What `ccfs bench` and `ccfs crash` start.
OTHERS="ccfs-bench ccfs-crash"
# What these start, beside them; it has no page.
PARTS=ccfs-bench-work
# What `ccfs direct` loads into programs; it looks for it in ../lib/ccfs, seen from the program.
LOADED=libccfs_direct.so
TABLE_NAMES="fuse.ccfs fuseblk.ccfs"

# put FILE DIR MODE: in two steps, since what runs is not overwritten: mounts go on with the old program.
put() {
    local to=$root$PREFIX/$2 name
    name=$(basename "$1")
    install -m "$3" "$1" "$to/.$name.new"
    mv -f "$to/.$name.new" "$to/$name"
}

install_all() {
    [ -x "$program" ] || { echo "$program is missing; build it first: cargo build --release -p ccfs" >&2; exit 1; }
    install -d "$root$PREFIX/bin" "$root$SBIN" "$root$man" "$root$UNITDIR" "$root$BASHDIR" "$root$ZSHDIR" "$root$FISHDIR"
    put "$program" bin 755
    local other
    for other in $OTHERS $PARTS; do
        other=$(dirname "$program")/$other
        if [ -x "$other" ]; then put "$other" bin 755; fi
    done
    # In a tarball of a release it lies where it is to be.
    for other in "$(dirname "$program")/$LOADED" "$(dirname "$program")/../lib/ccfs/$LOADED"; do
        [ -e "$other" ] || continue
        install -d "$root$PREFIX/lib/ccfs"
        put "$other" lib/ccfs 644
        break
    done
    for helper in mount mkfs fsck; do
        ln -sf "$PREFIX/bin/ccfs" "$root$SBIN/$helper.ccfs"
        # The page of mount.ccfs(8) is one of its own, which comes with the others.
        echo ".so man8/ccfs-$helper.8" >"$root$man/$helper.ccfs.8"
        chmod 644 "$root$man/$helper.ccfs.8"
    done
    # mount(8) remounts, and umount(8) unmounts, under the mount table's names.
    for name in $TABLE_NAMES; do
        ln -sf "$PREFIX/bin/ccfs" "$root$SBIN/mount.$name"
        ln -sf "$PREFIX/bin/ccfs" "$root$SBIN/umount.$name"
        echo ".so man8/mount.ccfs.8" >"$root$man/mount.$name.8"
        chmod 644 "$root$man/mount.$name.8"
    done
    # Pages and completions are made by the programs themselves.
    local made
    made=$(mktemp -d)
    "$program" man "$made/man"
    for other in $OTHERS; do
        other=$(dirname "$program")/$other
        [ ! -x "$other" ] || "$other" man "$made/man" || echo "$other makes no manual pages: is it of another version?" >&2
    done
    install -m 644 "$made"/man/*.8 "$root$man/"
    for section in 5 7; do install -D -m 644 -t "$root$PREFIX/share/man/man$section" "$made"/man/*."$section"; done
    (cd "$top/docs" && find . -name '*.md' -exec install -D -m 644 {} "$root$doc/{}" \;)
    "$program" completions "$made"
    install -m 644 "$made/ccfs" "$root$BASHDIR/ccfs"
    install -m 644 "$made/_ccfs" "$root$ZSHDIR/_ccfs"
    install -m 644 "$made/ccfs.fish" "$root$FISHDIR/ccfs.fish"
    rm -r "$made"
    sed "s|@PREFIX@|$PREFIX|" "$top/packaging/ccfs@.service" >"$root$UNITDIR/ccfs@.service"
    chmod 644 "$root$UNITDIR/ccfs@.service"
}

uninstall_all() {
    for name in ccfs $OTHERS $PARTS; do rm -f "$root$PREFIX/bin/$name"; done
    rm -f "$root$UNITDIR/ccfs@.service"
    rm -f "$root$BASHDIR/ccfs" "$root$ZSHDIR/_ccfs" "$root$FISHDIR/ccfs.fish"
    for helper in mount mkfs fsck; do rm -f "$root$SBIN/$helper.ccfs" "$root$man/$helper.ccfs.8"; done
    for name in $TABLE_NAMES; do rm -f "$root$SBIN/mount.$name" "$root$SBIN/umount.$name" "$root$man/mount.$name.8"; done
    rm -f "$root$man"/ccfs.8 "$root$man"/ccfs-*.8 "$root$PREFIX/share/man/man5/ccfs.5" "$root$PREFIX/share/man/man7/ccfs.7"
    [ ! -d "$root$doc" ] || rm -r "${root}$doc"
    # What install-libs.sh put there.
    local lib=$root${LIBDIR:-$PREFIX/lib}
    rm -f "$lib"/libccfs.so "$lib"/libccfs.so.1 "$lib"/libccfs.a "$lib"/pkgconfig/ccfs.pc "$root$PREFIX/include/ccfs.h"
    rm -f "$lib/ccfs/ccfs_vfs.so" "$root$PREFIX/lib/ccfs/$LOADED"
    for dir in "$lib/ccfs" "$root$PREFIX/lib/ccfs"; do
        if [ -d "$dir" ]; then rmdir --ignore-fail-on-non-empty "$dir"; fi
    done
    for page in "$top"/docs/man/*.3; do rm -f "$root$PREFIX/share/man/man3/$(basename "$page")"; done
    [ -n "$root" ] || PATH=$PATH:/usr/sbin:/sbin ldconfig || true
}

case $action in
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) echo "usage: install.sh install|uninstall PROGRAM" >&2; exit 2 ;;
esac
