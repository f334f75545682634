#!/bin/bash
# Usage: direct-suites.sh CCFS DIR [SUITE...]
# Programs of others, most with their own tests, on a ccfs mount: without `ccfs direct`, and with it. The results have to be the same: which
# cases pass and fail, and what the trees hold. Writes a line a suite, and the differences; exit code 1 if there are any. CCFS is the
# program `ccfs`, with libccfs_direct.so beside it. DIR keeps sources, what is built of them, and the results of the last run. Needs root,
# and what `scripts/deps.sh suites` installs.
set -euo pipefail
ALL=(git coreutils postgresql cargo python pip npm sqlite debootstrap rsync make)
SELF=$(readlink -f "$0")
ROOT=$(dirname "$(dirname "$SELF")")
unset LD_PRELOAD MAKEFLAGS MAKELEVEL MFLAGS CARGO_TARGET_DIR
export LC_ALL=C TZ=UTC CCFS_LOG_KMSG=/dev/null

# A suite has three functions: NAME_ready gets and builds what it needs, NAME_units tells what is run and compared one by one (without it the
# suite is one unit), and NAME_run runs a unit in an empty directory of the mount, $HERE, which has the same name both times. It says what
# came out of it, a line a case, on descriptor 3; the rest is its log. The way is in $LED, the words before a command.

# What is in a tree, without times.
tree() { (cd "$1" && find . \( -type f -printf '%P %y %m %s %n\n' -o -printf '%P %y %m %l\n' \) && find . -type f -exec sha256sum {} +) | sort >&3; }

# A source package of Debian's, in $DIR/NAME.
source_package() {
	local name=$1 apt
	[ ! -e "$DIR/$name" ] || return 0
	mkdir -p "$DIR/apt/lists/partial" "$DIR/apt/parts"
	sed 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' /etc/apt/sources.list.d/debian.sources >"$DIR/apt/parts/debian.sources"
	apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$DIR/apt/parts" -o "Dir::State::lists=$DIR/apt/lists")
	(cd "$DIR/apt" && "${apt[@]}" update && "${apt[@]}" source --download-only "$name" && rm -rf x && dpkg-source --no-check -x "$name"_*.dsc x)
	mv "$DIR/apt/x" "$DIR/$name"
}

# Git's own tests, a unit a script: t0000 to t7999 without those that need a server or another version control system.
git_ready() {
	source_package git
	make -C "$DIR/git" -j2 NO_CURL=1 NO_GETTEXT=1 NO_TCLTK=1 NO_EXPAT=1 CFLAGS=-O1 all
}
git_units() { (cd "$DIR/git/t" && ls t[0-7]*.sh) | grep -v http | sed 's/\.sh$//'; }
git_run() {
	local code=0
	(cd "$DIR/git/t" && TEST_OUTPUT_DIRECTORY=$HERE $LED bash "./$1.sh" --root="$HERE") >said || code=$?
	cat said
	{ grep -E '^(ok|not ok|1\.\.)' said && echo "exit code $code"; } >&3
}

# GNU coreutils' own tests and gnulib's, in a copy of what was built.
coreutils_ready() {
	source_package coreutils
	[ -e "$DIR/coreutils/src/ls" ] || (cd "$DIR/coreutils" && FORCE_UNSAFE_CONFIGURE=1 ./configure -q --disable-nls CFLAGS=-O1 && make -s -j2 && touch .done)
}
coreutils_run() {
	cp -a "$DIR/coreutils/." .
	$LED make -k -j2 check VERBOSE=no || true
	find . -name '*.trs' -printf '%P\n' | sort | while read -r file; do sed -n "s|^:test-result:|$file|p" "$file"; done >&3
}

# How much came to a volume by direct calls, of what `ccfs status` says; users' volumes have it written down when they end.
entries() { /usr/bin/python3 -c 'import json, sys; d = json.load(sys.stdin)["direct"]; print(d["asked"] + d["posted"])'; }

# A volume of 2 GiB that a user has mounted himself, on $place/mnt; `as` are his commands. On root's volumes he has no direct calls.
volume_of() {
	user=$1
	as() { (cd "$place" && setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups env HOME="$place" "$@"); }
	# In memory, so that only an empty directory can stay.
	place=$(mktemp -d)
	mount -t tmpfs -o mode=755 none "$place"
	# He may open the device.
	mknod -m 666 "$place/fuse" c 10 229 && mount --bind "$place/fuse" /dev/fuse
	mkdir "$place/mnt" && chown "$user" "$place" "$place/mnt"
	as "$CCFS" mkfs -s 2G --sparse img
	as "$CCFS" mount img mnt
	trap 'as "$CCFS" status --json mnt | entries >>"$DIR/out/entries"; as "$CCFS" umount "$place/mnt"; umount /dev/fuse; umount -l "$place"; rmdir "$place"' EXIT
}

# A database of PostgreSQL's: made, filled, worked on by numbers that are the same each time, killed, and written out.
postgresql_ready() { ls /usr/lib/postgresql/*/bin/pgbench && command -v fusermount3; }
postgresql_run() {
	local bin sql
	bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
	volume_of postgres
	server() { as $LED "$bin/pg_ctl" -s -w -t 120 -D "$place/mnt/data" -l "$place/log" -o "-k $place -c listen_addresses=''" "$@"; }
	sql="as $bin/psql -h $place -AtXc"
	as $LED "$bin/initdb" -A trust -D "$place/mnt/data"
	server start
	as $LED "$bin/pgbench" -h "$place" -i -q -s 2 postgres
	as $LED "$bin/pgbench" -h "$place" -n -c 2 -t 500 --random-seed=7 postgres
	server -m immediate stop
	server start
	for table in accounts branches tellers; do $sql "select * from pgbench_$table order by 1" postgres >&3; done
	$sql "select tid, bid, aid, delta from pgbench_history order by 1, 2, 3, 4" postgres >&3
	server stop
	as find mnt/data -maxdepth 1 -printf '%P %y %m\n' | sort >&3
	cat "$place/log"
}

# A crate of this project with what it depends on: compiled, and its tests.
cargo_ready() { cargo fetch --locked --manifest-path "$ROOT/Cargo.toml"; }
cargo_run() {
	git -c safe.directory='*' -C "$ROOT" archive HEAD | tar -x
	CARGO_INCREMENTAL=0 $LED cargo test --offline --locked -j2 -p ccfs-ext4 -- --test-threads=2 >said || echo "failed" >&3
	cat said
	sed -n 's/^test .* \.\.\. .*/&/p' said | sort >&3
	(cd target/debug && find . -name '*.rlib' -exec sha256sum {} + | sort) >&3
}

# Python's own tests of files and processes.
PYTHON_TESTS=(test_os test_shutil test_mmap test_subprocess test_io test_tempfile test_pathlib test_zipfile test_tarfile test_sqlite3 test_dbm)
python_ready() { /usr/bin/python3 -c 'import test.test_os'; }
python_units() { printf '%s\n' "${PYTHON_TESTS[@]}"; }
python_run() {
	TMPDIR=$HERE $LED /usr/bin/python3 -m test --tempdir "$HERE" -v "$1" >said 2>&1 || echo "failed" >&3
	cat said
	sed -nE 's/^(test_[A-Za-z0-9_]* \([^)]*\)).*\.\.\. .*(ok|FAIL|ERROR|skipped|expected failure).*/\1 \2/p' said | sort >&3
}

# Packages of Python's and of npm's, fetched before.
pip_ready() {
	[ ! -e "$DIR/wheels" ] || return 0
	/usr/bin/python3 -m venv "$DIR/venv"
	"$DIR/venv/bin/pip" download -q -d "$DIR/wheels.new" flask requests pytest black
	mv "$DIR/wheels.new" "$DIR/wheels"
}
pip_run() {
	$LED /usr/bin/python3 -m venv venv
	$LED venv/bin/pip install -q --no-index --no-cache-dir --find-links "$DIR/wheels" flask requests pytest black
	$LED venv/bin/pip check >&3
	$LED venv/bin/pip uninstall -q -y black
	rm -rf venv/bin/__pycache__
	# Compiled files have the times of their sources in them.
	find venv -name '*.pyc' -printf '%P\n' -delete | sort >&3
	tree venv
}
npm_ready() {
	[ ! -e "$DIR/npm" ] || return 0
	mkdir "$DIR/npm.new"
	(
		cd "$DIR/npm.new"
		npm install --loglevel=error --no-audit --no-fund --ignore-scripts --cache cache express eslint
		# What a lock file needs is asked for, too.
		npm ci --loglevel=error --no-audit --no-fund --ignore-scripts --cache cache
		rm -rf node_modules
	)
	mv "$DIR/npm.new" "$DIR/npm"
}
npm_run() {
	cp "$DIR/npm/package.json" "$DIR/npm/package-lock.json" .
	cp -r "$DIR/npm/cache" cache
	$LED npm ci --loglevel=error --offline --no-audit --no-fund --ignore-scripts --cache "$HERE/cache"
	$LED npm ls --all --offline >&3
	tree node_modules
}

# SQLite's own tests, the quick ones. They do not work as root.
sqlite_ready() {
	source_package sqlite3
	[ -e "$DIR/sqlite3/testfixture" ] || (cd "$DIR/sqlite3" && ./configure -q --disable-readline CFLAGS=-O1 && make testfixture)
	command -v fusermount3
}
sqlite_run() {
	local code=0
	volume_of nobody
	cp -a "$DIR/sqlite3/test" "$DIR/sqlite3/testfixture" "$DIR/sqlite3"/.libs "$place"
	as mkdir mnt/work
	as env -C mnt/work $LED "$place/testfixture" "$place/test/veryquick.test" >said 2>&1 || code=$?
	cat said
	{ grep -aE '^[^ ]+\.\.\. ?(Ok|Failed)|^! |errors out of' said && echo "exit code $code"; } >&3
}

# A Debian system in a chroot, about 80 packages.
debootstrap_ready() {
	[ ! -e "$DIR/debs" ] || return 0
	mkdir "$DIR/debs.new"
	debootstrap --variant=minbase --download-only --cache-dir="$DIR/debs.new" --include=python3-minimal,perl,less bookworm "$DIR/debs.tree"
	rm -rf "$DIR/debs.tree"
	mv "$DIR/debs.new" "$DIR/debs"
}
debootstrap_run() {
	$LED debootstrap --variant=minbase --cache-dir="$DIR/debs" --include=python3-minimal,perl,less bookworm root
	chroot root dpkg --audit >&3
	chroot root dpkg --verify >&3
	# They hold times, or numbers that are drawn.
	rm -rf root/var/log root/var/cache root/proc/* root/etc/machine-id root/etc/shadow* root/etc/ld.so.cache root/debootstrap
	find root -name '*.pyc' -delete
	tree root
}

rsync_ready() { source_package git; }
rsync_run() {
	$LED rsync -aH --itemize-changes "$DIR/git/" copy/ | sort >&3
	$LED rsync -aH copy/ second/
	find second -name '*.c' | sort | sed -n 1,200p | while read -r file; do echo more >>"$file"; done
	rm -r second/t
	$LED rsync -aHc --delete --itemize-changes copy/ second/ | sort >&3
	$LED rsync -aHcn --delete --itemize-changes "$DIR/git/" second/ | sort >&3
	tree second
}

# coreutils from its sources: configured and compiled.
make_ready() { source_package coreutils; }
make_run() {
	tar -xf "$DIR"/apt/coreutils_*.orig.tar.xz --strip-components=1
	FORCE_UNSAFE_CONFIGURE=1 $LED ./configure -q --disable-nls CFLAGS=-O1
	$LED make -s -j2
	./src/ls --version >&3
	tree src
}

# A function of these, as a program, so that it can be ended, and ends where something fails.
if [ "${1-}" = --call ]; then
	"$2" "${3-}"
	exit
fi

# SUITE UNIT WAY
way() {
	local out=$DIR/out/$1.$2.$3 code=0
	export HERE=$MNT/$1.$2 LED=
	[ "${3%-*}" = plain ] || LED="$CCFS direct --"
	mkdir "$HERE"
	(cd "$HERE" && timeout -k 9 3600 bash "$SELF" --call "$1_run" "$2" 3>"$out" >"$out.log" 2>&1 </dev/null) || code=$?
	[ "$code" = 0 ] || echo "the run ended with exit code $code" >>"$out"
	rm -rf "$HERE"
}

# A unit both ways, as a program, so that several run at once: SUITE UNIT
# What is not the same in two more runs without `ccfs direct` either says nothing about it.
if [ "${1-}" = --unit ]; then
	out=$DIR/out/$2.$3
	way "$2" "$3" plain
	way "$2" "$3" direct
	# What cannot be run at all is no proof.
	if grep '^the run ended' "$out.plain"; then
		{ echo "it does not run: " && tail -n 3 "$out.plain.log"; } >"$out.differs"
		exit
	fi
	if ! diff "$out.plain" "$out.direct" >"$out.diff"; then
		for n in 1 2; do
			way "$2" "$3" "plain-$n"
			diff "$out.plain" "$out.plain-$n" >>"$out.wavers" || true
		done
		sed -n 's/^[<>] //p' "$out.wavers" >"$out.wavering"
		# Lines begin with < without `ccfs direct`, and with > with it.
		grep '^[<>]' "$out.diff" | grep -vFf "$out.wavering" >"$out.differs" || rm "$out.differs"
	fi
	exit
fi

# In namespaces of its own: whatever happens, no process and no mount stays, and the volumes of others are not seen.
if [ "${1-}" != --inside ]; then
	exec unshare --mount --pid --fork --kill-child --mount-proc bash "$SELF" --inside "$@"
fi
CCFS=$(readlink -f "$2")
mkdir -p "$3"
DIR=$(readlink -f "$3")
shift 3
export CCFS DIR
findmnt -rno TARGET,FSTYPE | sed -n 's/ fuse.*ccfs$//p' | while read -r other; do umount -l "$other"; done
# Of one that was killed.
rm -rf "$DIR/volume"
PLACE=$DIR/volume
mkdir "$PLACE"
export MNT=$PLACE/mnt
trap 'cd /; umount -l "$MNT" 2>/dev/null || true; rm -rf "$PLACE"' EXIT
trap 'exit 130' INT TERM
mkdir "$MNT"
"$CCFS" mkfs -s 24G --sparse "$PLACE/img" >/dev/null
"$CCFS" mount -o direct=on "$PLACE/img" "$MNT"
rm -rf "$DIR/out"
mkdir "$DIR/out"
lines() { find "$DIR/out" -name "$suite.*.$1" -exec cat {} + | wc -l; }
same=0 different=0 skipped=0
[ $# -gt 0 ] || set -- "${ALL[@]}"
for suite in "$@"; do
	if ! bash "$SELF" --call "${suite}_ready" >"$DIR/out/$suite.ready" 2>&1 </dev/null; then
		echo "$suite: skipped: $(tail -n 1 "$DIR/out/$suite.ready")"
		skipped=$((skipped + 1))
		continue
	fi
	begun=$SECONDS before=$("$CCFS" status --json "$MNT" | entries)
	: >"$DIR/out/entries"
	if declare -F "${suite}_units" >/dev/null; then "${suite}_units"; else echo all; fi | xargs -P 2 -n 1 bash "$SELF" --unit "$suite"
	direct=$(($("$CCFS" status --json "$MNT" | entries) - before + $(sed "s/$/ +/" "$DIR/out/entries" | tr -d "\n") 0))
	cases=$(lines plain) wavering=$(lines wavering) differ=$(lines differs)
	echo "$suite: $cases lines, $differ differ, $wavering waver; $direct direct entries; $((SECONDS - begun)) s"
	for file in "$DIR/out/$suite".*.differs; do
		[ ! -e "$file" ] || sed "s|^|  $(basename "$file" .differs): |" "$file"
	done
	if [ "$differ" = 0 ]; then same=$((same + 1)); else different=$((different + 1)); fi
done
echo "$same suites the same, $different different, $skipped skipped"
[ "$different" = 0 ]
