#!/usr/bin/env bash
# The newest glibc whose symbols these programs and libraries need; fails if that is newer than MAX.
# usage: glibc.sh MAX FILE...
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: glibc.sh MAX FILE..." >&2; exit 2; }
max=$1
shift
status=0
for file in "$@"; do
    # Not by a pipe: a file that objdump cannot read is no file that needs nothing.
    symbols=$(objdump -T "$file")
    needs=$(grep -o 'GLIBC_[0-9.]*' <<<"$symbols" | sort -uV | tail -n 1) || true
    needs=${needs#GLIBC_}
    echo "$(basename "$file"): glibc ${needs:-any}"
    if [ "$(printf '%s\n' "${needs:-0}" "$max" | sort -V | tail -n 1)" != "$max" ]; then
        echo "$file needs glibc $needs; $max is promised" >&2
        status=1
    fi
done
exit $status
