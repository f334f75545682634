#!/usr/bin/env bash
# Which kernels Debian's suites offer: prints lines `MAJOR.MINOR SUITE[/MAJOR.MINOR]`, oldest first, as kernel.sh takes them.
# usage: kernels.sh CACHE [SUITE...]    (default: all that Debian has)
#
# A suite that cannot be reached is told on standard error; exit code 3 then, 1 if there is none. Asked once in
# twelve hours: CACHE/kernels.list.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/apt.sh"
cache=$(realpath -m "$1")
shift
suites=("$@")
[ $# -gt 0 ] || suites=(trixie bookworm bullseye trixie-backports bookworm-backports forky sid)
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
list=$cache/kernels.list
if [ $# = 0 ] && [ -n "$(find "$list" -mmin -720 2>/dev/null)" ]; then
    cat "$list"
    exit
fi
work=$cache/suites
trap 'rm -rf "$work"' EXIT
architecture=$(dpkg --print-architecture)
code=0
for suite in "${suites[@]}"; do
    rm -rf "$work"
    if private_apt "$suite" "$work"; then
        kernels_listed "$architecture" | while read -r version _; do echo "$version $suite/$version"; done
    else
        echo "guest: Debian's $suite cannot be reached" >&2
        code=3
    fi
# Of a version that several suites have, the first.
done >"$list.new"
sort -s -k1,1V "$list.new" | awk '!seen[$1]++' >"$list.sorted"
rm -f "$list.new"
cat "$list.sorted"
[ -s "$list.sorted" ] || code=1
if [ $code = 0 ] && [ $# = 0 ]; then mv "$list.sorted" "$list"; else rm -f "$list.sorted"; fi
exit $code
