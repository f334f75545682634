#!/bin/bash
# Usage: direct-programs.sh CCFS DIR
# What `ccfs direct` does for programs: each is run without and with it in DIR, a directory of a ccfs mount with direct=on, and a line of a
# table is written: seconds of both, calls that were made directly, and what took the kernel's way most often. CCFS is the program `ccfs`,
# with libccfs_direct.so beside it. Needs git, rsync, python3, gcc, make, dpkg-deb and sqlite3.
set -euo pipefail
CCFS=$(readlink -f "$1")
cd "$2"
HERE=$(mktemp -d -p "$PWD" programs.XXXXXX)
REPORT=$(mktemp)
# Sources to work on: 40 directories with 25 files each, on another file system.
SOURCE=$(mktemp -d)
trap 'cd /; rm -rf "$HERE" "$REPORT" "$SOURCE"' EXIT
for d in $(seq 40); do
	mkdir -p "$SOURCE/tree/d$d"
	for f in $(seq 25); do
		printf 'int f_%s_%s(int a) { return a * %s + %s; }\n%0200d\n' "$d" "$f" "$d" "$f" "$f" | sed '2s|.*|/* & */|' >"$SOURCE/tree/d$d/f$f.c"
	done
done
tar -C "$SOURCE" -cf "$SOURCE/tree.tar" tree
gzip -k "$SOURCE/tree.tar"

now() { date +%s%N; }

# name, what is made before, the command
program() {
	local name=$1 before=$2 command=$3 way begun seconds=()
	for way in plain direct; do
		rm -rf "$HERE/w"
		mkdir "$HERE/w"
		(cd "$HERE/w" && bash -c "$before") >/dev/null 2>&1
		begun=$(now)
		case $way in
		plain) (cd "$HERE/w" && bash -c "$command") >/dev/null 2>&1 || echo "failed: $name" >&2 ;;
		direct) (cd "$HERE/w" && "$CCFS" direct --report="$REPORT" --json -- bash -c "$command") >/dev/null 2>&1 || echo "failed: $name with direct" >&2 ;;
		esac
		seconds+=("$((($(now) - begun) / 1000000))")
	done
	python3 - "$name" "${seconds[@]}" "$REPORT" <<'P'
import json, sys
name, plain, direct, report = sys.argv[1:]
with open(report) as file:
    said = json.load(file)
left = sorted(((n, why) for why, n in said["left"].items() if n), reverse=True)
made = sum(said["made"].values())
print(f"| {name} | {plain} | {direct} | {made:,} | {', '.join(f'{why} {n}' for n, why in left[:2]) or 'nothing'} |", flush=True)
P
}

echo '| program | ms | with ccfs direct | calls made directly | the kernel'"'"'s way |'
echo '|---|---|---|---|---|'
UNPACK="tar -xf $SOURCE/tree.tar"
program 'tar -x' : "$UNPACK"
program 'tar -xz' : "tar -xzf $SOURCE/tree.tar.gz"
program 'tar -c' "$UNPACK" 'tar -cf out.tar tree'
program 'cp -a' "$UNPACK" 'cp -a tree copy'
program 'rm -r' "$UNPACK" 'rm -r tree'
program 'mv, a tree' "$UNPACK" 'mkdir into && mv tree into/'
program 'find -size' "$UNPACK" 'find tree -size +1k'
program 'diff -r' "$UNPACK && cp -a tree copy" 'diff -r tree copy'
program 'grep -r' "$UNPACK" 'grep -rc int tree'
program 'sed -i' "$UNPACK" 'find tree -name "*.c" -print0 | xargs -0 sed -i s/int/long/'
program 'rsync -a' : "rsync -a $SOURCE/tree ."
program 'git init, add, commit' "$UNPACK" 'git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm c'
program 'git clone' "$UNPACK"' && cd tree && git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm c' 'git clone -q tree copy'
program 'python shutil.copytree' "$UNPACK" 'python3 -c "import shutil; shutil.copytree(\"tree\", \"copy\")"'
program 'python zipfile' "$UNPACK" 'python3 -m zipfile -c out.zip tree && python3 -m zipfile -e out.zip out'
program 'make, gcc' "$UNPACK"'; printf "SRC := \$(wildcard tree/d1/*.c)\nall: \$(SRC:tree/%%.c=o/%%.o)\no/%%.o: tree/%%.c\n\tmkdir -p \$(@D)\n\tgcc -c \$< -o \$@\n" >Makefile' 'make -s'
program 'dpkg-deb -x' "$UNPACK"' && mkdir -p p/DEBIAN && cp -r tree p/ && printf "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: d\n" >p/DEBIAN/control && dpkg-deb -b p p.deb' 'dpkg-deb -x p.deb out'
program 'sqlite3, a table' : 'sqlite3 t.db "create table t(a); with recursive c(n) as (select 1 union all select n+1 from c where n<20000) insert into t select n from c"'
program 'sh, 1,000 redirections' : 'mkdir d; for n in $(seq 1000); do echo "$n" >d/f$n; done'
program 'sh -c true, 200 times' : 'for n in $(seq 200); do sh -c true; done'
