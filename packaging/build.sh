#!/usr/bin/env bash
# Builds the programs and the library for a release, and packs them: what packaging/dist.sh runs in its chroot.
# usage: build.sh SOURCES TARGET-DIR OUT-DIR COMMIT EPOCH
set -euo pipefail
[ $# = 5 ] || { echo "usage: build.sh SOURCES TARGET-DIR OUT-DIR COMMIT EPOCH" >&2; exit 2; }
sources=$1 target=$2 out=$3 commit=$4
export SOURCE_DATE_EPOCH=$5 CARGO_TARGET_DIR=$target CARGO_INCREMENTAL=0 LC_ALL=C.UTF-8 TZ=UTC
cd "$sources"
# Nothing of where it was built is left in what is built.
home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$sources=/ccfs --remap-path-prefix=$target=/target --remap-path-prefix=$home=/cargo"
export CFLAGS="-ffile-prefix-map=$home=/cargo -ffile-prefix-map=$sources=/ccfs -ffile-prefix-map=$target=/target"
# What is packed has no lines of sources; they would only take time.
export CARGO_PROFILE_RELEASE_DEBUG=0
cargo build --quiet --release --locked -p ccfs -p ccfs-preload -p ccfs-bench -p ccfs-evidence -p ccfs-libccfs
# 2.34 is what README promises.
packaging/glibc.sh 2.34 "$target"/release/{ccfs,ccfs-bench,ccfs-bench-work,ccfs-crash,libccfs.so,libccfs_direct.so} >&2
packaging/pack.sh "$target/release/ccfs" "$out" "$commit"
