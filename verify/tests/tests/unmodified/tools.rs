//! Shells and tools with and without: the same output, exit codes and trees.
use super::{command, text, volume};
use ccfs_tests::harness::{Volume, have, run, run_ok};

/// Where each script works: an empty directory on the volume, or one that the script's own shell makes.
const BEGIN: &str = r#"
set -u
export GIT_AUTHOR_DATE=2024-02-03T04:05:06Z GIT_COMMITTER_DATE=2024-02-03T04:05:06Z GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org
export GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null HOME=/nonexistent
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=pack.threads GIT_CONFIG_VALUE_0=1
# A tree with fixed times.
tree() {
    python3 - "$1" <<'END'
import os, sys
top = sys.argv[1]
os.mkdir(top)
for d in range(12):
    os.mkdir(f"{top}/d{d}")
    for f in range(25):
        path = f"{top}/d{d}/f{f}"
        with open(path, "wb") as out:
            out.write(bytes((d * 7 + f * 3 + n // 50) % 251 for n in range(d * 300 + f * 41)))
        os.chmod(path, 0o600 + f % 8 * 8 + d % 8)
        os.utime(path, ns=(10**18 + f, 10**18 + d * 10**9 + f))
    os.symlink(f"../d{(d + 1) % 12}/f1", f"{top}/d{d}/link")
    os.symlink("nowhere", f"{top}/d{d}/dangling")
os.link(f"{top}/d1/f1", f"{top}/d2/hard")
os.mkfifo(f"{top}/d3/fifo")
for d in range(12):
    os.utime(f"{top}/d{d}", ns=(10**18, 10**18 + d))
END
}
"#;

/// Everything but the times of what was not set: those before 2020.
const SHOW: &str = r#"cd "$1" && find . -printf '%P %y %m %U:%G %n %l %Ts ' \( -type d -printf '-' -o -printf '%s' \) -printf '\n' |
    awk '{ if ($(NF - 1) > 1577836800) $(NF - 1) = "now"; print }' | grep -vE "^$2" | LC_ALL=C sort
    find . -type f -exec sha256sum {} + | grep -vE "  \./$2" | LC_ALL=C sort -k 2"#;

/// Runs a script both ways. `but`: names whose bytes differ by rights.
fn same_as(name: &str, needs: &[&str], but: &str, script: &str) {
    let Some(mut v) = volume(name, 768) else {
        return;
    };
    if let Some(missing) = needs.iter().find(|program| !have(program)) {
        assert!(
            std::env::var_os("CI").is_none(),
            "{missing} is missing: scripts/deps.sh test"
        );
        return println!("skipped: {name}: needs {missing}");
    }
    let whole = format!("{BEGIN}\nmkdir work && cd work || exit 9\n{script}");
    let did = |v: &Volume, direct: bool| {
        // In the same place: paths stand in files.
        let dir = v.path("here");
        std::fs::create_dir(&dir).expect("a directory");
        let mut shell = command(v, direct, &["bash", "-c", &whole]);
        let ran = run(shell.current_dir(&dir));
        let shown = run_ok("bash", &["-c", SHOW, "bash", text(&dir), but]);
        (ran.code, ran.stdout, ran.stderr, shown)
    };
    let plain = did(&v, false);
    assert_eq!(plain.0, 0, "{}{}", plain.1, plain.2);
    std::fs::rename(v.path("here"), v.path("before")).expect("rename");
    let direct = did(&v, true);
    let lines = |said: &(i32, String, String, String)| {
        let all = format!("exit code {}\n{}{}{}", said.0, said.1, said.2, said.3);
        all.lines().map(String::from).collect::<Vec<_>>()
    };
    let (expected, got) = (lines(&plain), lines(&direct));
    let first = (0..expected.len().max(got.len())).filter(|i| expected.get(*i) != got.get(*i));
    let shown: Vec<String> = first
        .take(10)
        .map(|i| format!("{:?}\n      direct: {:?}", expected.get(i), got.get(i)))
        .collect();
    assert!(shown.is_empty(), "{name}:\n{}", shown.join("\n"));
    v.remount();
    let again = run_ok("bash", &["-c", SHOW, "bash", text(&v.path("here")), but]);
    assert!(again == direct.3, "{name}: a remount changes the tree");
    v.finish();
}

#[test]
fn trees() {
    same_as(
        "trees",
        &["rsync"],
        "^$",
        r#"
        tree t; cp -a t copy; diff -r --no-dereference t copy; mv copy moved; tar cf t.tar t; mkdir out; tar xf t.tar -C out
        diff -r --no-dereference t out/t; echo $?; tar df t.tar; tar tf t.tar | sort | md5sum; rm t.tar; find t -type f -size +5k | sort; find moved -links 2 | sort
        rsync -aH t/ synced; rsync -aHn --delete -i t/ synced; touch -d 2001-02-03 synced/d1/f2; echo more >>synced/d2/f2; rm synced/d3/f3
        rsync -aHi --delete t/ synced; cp -r moved/d4 again; chmod -R go-rwx again; cp -rp again twice; rm -r moved/d4 moved/d5/f?
        mv moved/d6 moved/d7 out; mv out/d6/* out/t/d1; ls -A out out/d6; du -a --apparent-size t/d1 | sort | head -n 3
        install -m 750 -D t/d1/f3 new/deep/tree/file; ln -s new/deep l; ls l/tree; rmdir out/d6; rmdir out; find . -empty | sort
        sed -i 's/x/y/; 1i first' t/d1/f0; sed -i.orig '1d' t/d1/f0; ls t/d1 | wc -l; sort -o t/d2/f9 t/d2/f9; shuf -i 1-1000 | sort -n >n; md5sum n
        split -l 100 n part-; cat part-* | cmp - n; head -c 100000 /dev/zero | tee z1 z2 | wc -c; truncate -s 50 z1; dd if=z2 of=z3 bs=1k skip=3 seek=5 status=none
        dd if=n of=z3 conv=notrunc bs=7 count=3 status=none; gzip -k n; gzip -dc n.gz | cmp - n; xargs -P2 -n1 sh -c 'echo $0 >by-$0; cat by-$0 >>by-all; rm by-$0' <<<"$(seq 40)"
        sort -n by-all | md5sum; rm by-all; find t -name 'f1*' -exec sh -c 'mv "$1" "$1.renamed"' sh {} \; ; find . -name '*.renamed' -delete; touch -r t/d1 n
        rm n.gz; tail -c 20 z3 | od -c; comm -12 <(ls t/d1) <(ls t/d2) | wc -l; rm -rf synced; ls"#,
    );
}

#[test]
fn shells() {
    same_as(
        "shells",
        &[],
        "^$",
        r##"
        echo one >a; echo two >>a; cat <a >b; cat a - <<<three >c; { echo out; echo err >&2; } >d 2>&1; exec 5>e; echo five >&5; exec 5>&-
        exec 6<>a; read -r x <&6; echo "$x"; echo new >&6; exec 6>&-; cat a; (echo sub; cd /; echo /) >f; cat <<END >g
$(cat a) and $((1 + 2))
END
        set -C; echo no >g || echo kept; echo yes >|h; set +C; >empty; [ -s empty ] || echo empty; [ a -nt none ] && echo newer; test -w a && echo writable
        for n in 1 2 3; do echo $n; done >i; while read -r l; do echo "<$l>"; done <i; mapfile -t m <i; echo "${#m[@]}"; echo "$(<i)"; cat i | (read -r z; cat)
        mkdir -p p/q; pushd p/q >/dev/null; echo deep >r; cd -P ..; pwd | sed 's/.*work//'; cat q/r; popd >/dev/null; ls p/*; echo p/q/*; echo none/*; cd p && cd .. && ls
        sleep 0.2 >bg & echo fg >bg2; wait; (trap 'echo trapped >t' EXIT; exit 3); echo $?; cat t; f() { echo in f; } >func; f; cat func; coproc cat; echo co >&${COPROC[1]}; read -r y <&${COPROC[0]}; echo $y; eval "exec ${COPROC[1]}>&-"; wait
        umask 077; echo x >u; mkdir v; umask 022; stat -c %a u v; eval 'exec {fd}>w'; echo $fd >&$fd; exec {fd}>&-; cat w; dash -c 'echo d >x; exec 3<x; cat <&3; cat <&3; echo $(cat x) >y; . ./y' ; cat y
        echo 'echo script $1 >>"$2"' >s.sh; bash s.sh 1 z; chmod +x s.sh; ./s.sh 2 z; cat z; (ulimit -n 30; cat z); mkdir in; for n in 1 2 3 4 5; do echo $n >in/$n; done; (exec 3<&- 4<&- 5<&- 6</dev/null 7<&6 8<&6 9<&6; ulimit -n 10; sort -n -m --batch-size=7 -o z z in/1 in/2 in/3 in/4 in/5) 2>&1; cat z; (ulimit -f 10; trap '' XFSZ; head -c 20000 /dev/zero >lim) 2>&1; echo $?; stat -c %s lim; ls /proc/self/fd | wc -l
        seq 2000 | while read -r n; do echo $n; done >many; md5sum many; cat many | tee >(md5sum >sum) >/dev/null; sleep 0.1; cat sum; diff <(sort many) <(sort -r many | sort); yes | head -n 1000 >yes; wc yes
        ( exec >log 2>&1; echo a; ls none; echo b ); cat log; { echo 1; sleep 0.05; echo 3; } >>order & { sleep 0.02; echo 2 >>order; } ; wait; cat order; time -p true 2>/dev/null; rm -f bg; ls -A
        for n in $(seq 30); do echo $n >n.$n; done; echo n.*; rm n.1*; echo n.*; mv n.2 n.3; cat n.3; cp n.3 n.2; cmp n.2 n.3; ln n.3 hard; ln -s n.3 soft; echo added >>soft; cat hard; readlink -f soft | sed 's/.*work//'
        flock lock sh -c 'echo locked >in-lock'; cat in-lock; (flock 9; echo again >&9) 9>lock2; cat lock2; nohup sh -c 'echo nohup' >nh 2>&1; cat nh; timeout 5 cat a; timeout 0.1 sh -c 'echo before >tm; sleep 5'; echo $?; cat tm"##,
    );
}

#[test]
fn git() {
    same_as(
        "git",
        &["git"],
        r"(\./)?work/r[^ ]*/\.git/(index|objects/pack|FETCH_HEAD|logs)",
        r#"
        tree r; rm r/d3/fifo; cd r; git init -q -b main; git add .; git commit -qm first; git status --short; echo change >>d1/f3; git mv d2/f4 d2/moved; rm d4/f1
        git status --short; git stash -q; git status --short; git stash pop -q; git commit -qam second; git log --stat --format=%H%s | tail -n 8; git checkout -qb side HEAD~1
        echo side >d5/new; git add d5; git commit -qm side; git merge -q -m merged main; git log --graph --oneline | cat; git gc -q; git fsck --strict 2>&1; git count-objects
        git checkout -q HEAD~2; ls d5 | wc -l; git checkout -q main; git diff side --stat | tail -n 3; git tag v1; git archive v1 | tar tf - | wc -l; git rm -qr d6; git reset -q --hard; git clean -qfdx
        git branch -d side 2>&1 | sed 's/(.*//'; git rebase -q side; git log --oneline | cat; git worktree add -q ../r-tree v1; ls ../r-tree | wc -l; git worktree remove ../r-tree; cd ..; git clone -q r r2; git -C r2 log --oneline | cat
        echo pull >r/d1/pull; git -C r add .; git -C r commit -qm pull; git -C r2 pull -q; cat r2/d1/pull; git -C r2 fsck 2>&1; git -C r repack -adq; git -C r blame -s d1/f3 | tail -n 1 | cut -c 10-; git -C r grep -c change | head"#,
    );
}

#[test]
fn python() {
    same_as(
        "python",
        &["python3", "sqlite3"],
        r"(\./)?work/(wal\.db|__pycache__)",
        r#"
        cat >p.py <<'END'
import mmap, os, shutil, sqlite3, subprocess, sys, tempfile, zipfile, tarfile, glob, json, pathlib, multiprocessing, threading, fcntl, select, dbm.dumb, shelve
top = sys.argv[1]
os.mkdir(top); os.chdir(top) if len(sys.argv) > 2 else None
base = "" if len(sys.argv) > 2 else top + "/"
os.makedirs(base + "a/b/c")
for n in range(200):
    pathlib.Path(f"{base}a/b/{n}.txt").write_text(f"text {n}\n" * n)
    os.utime(f"{base}a/b/{n}.txt", (n, n))
shutil.copytree(base + "a", base + "copy")
print(sorted((d.replace(base, ""), len(f)) for d, _, f in os.walk(base + "copy")))
shutil.move(base + "copy/b", base + "moved")
shutil.rmtree(base + "copy")
with tempfile.TemporaryDirectory(dir=base or None) as d:
    with tempfile.NamedTemporaryFile(dir=d) as f:
        f.write(b"x"); f.flush(); print(os.path.getsize(f.name))
    with tempfile.TemporaryFile(dir=d) as f:
        f.write(b"xyz"); f.seek(1); print(f.read(), os.fstat(f.fileno()).st_nlink)
with zipfile.ZipFile(base + "z.zip", "w") as z:
    for p in sorted(glob.glob(base + "a/b/1*.txt")):
        z.write(p, os.path.basename(p))
with zipfile.ZipFile(base + "z.zip") as z:
    print(z.testzip(), len(z.namelist())); z.extractall(base + "unzipped")
with tarfile.open(base + "t.tar.gz", "w:gz") as t:
    t.add(base + "moved", "m")
os.remove(base + "t.tar.gz"); os.remove(base + "z.zip")
for mode in ("delete", "truncate", "persist", "wal", "memory"):
    name = f"{base}{mode}.db"
    db = sqlite3.connect(name)
    print(db.execute(f"pragma journal_mode={mode}").fetchone())
    db.execute("create table t (a integer primary key, b text)")
    for n in range(20):
        with db:
            db.executemany("insert into t (b) values (?)", [(f"row {n} {i}",) for i in range(20)])
    try:
        with db:
            db.execute("delete from t"); raise ValueError
    except ValueError:
        pass
    other = sqlite3.connect(name)
    print(other.execute("select count(*), max(b) from t").fetchone(), other.execute("pragma integrity_check").fetchone())
    with db: db.execute("delete from t where a % 3 = 0")
    db.execute("vacuum"); db.close(); other.close()
    print(subprocess.run(["sqlite3", name, "select count(*) from t; pragma integrity_check"], capture_output=True, text=True).stdout)
    os.remove(name)
def work(n):
    with open(f"{base}mp.log", "a") as f: f.write(f"{n}\n")
    os.mkdir(f"{base}mp{n}"); open(f"{base}mp{n}/f", "w").write("x" * n)
    return os.stat(f"{base}mp{n}/f").st_size
with multiprocessing.Pool(3) as pool:
    print(pool.map(work, range(20)))
print(sorted(map(int, open(f"{base}mp.log"))), os.remove(f"{base}mp.log"))
fd = os.open(base + "m", os.O_RDWR | os.O_CREAT); os.truncate(fd, 8192)
with mmap.mmap(fd, 8192) as m:
    m[4000:4010] = b"0123456789"; m.flush(); print(os.pread(fd, 12, 3999))
p = subprocess.run(["cat"], stdin=open(base + "a/b/5.txt"), stdout=open(base + "sub", "w"), pass_fds=[fd]); print(open(base + "sub").read())
print(subprocess.check_output(["sh", "-c", f"cat a/b/3.txt; echo $PWD | wc -l"], cwd=top if base else ".", text=True))
with open(base + "rw", "w+b", buffering=0) as f:
    f.write(b"0123456789"); f.seek(-3, 2); print(f.read(), f.tell(), f.truncate(5)); os.sendfile(fd, f.fileno(), 0, 5); fcntl.lockf(f, fcntl.LOCK_EX)
with shelve.open(base + "shelf", flag="n") as s: s["k"] = list(range(100))
with shelve.open(base + "shelf") as s: print(sum(s["k"]))
for e in sorted(os.scandir(base or "."), key=lambda e: e.name):
    print(e.name.split(".")[0], e.is_dir(), e.is_file(), e.stat().st_ino == e.inode())
    if e.name.startswith("shelf"): os.remove(e.path)
for call in (lambda: os.rmdir(base + "a"), lambda: os.unlink(base + "a"), lambda: open(base + "x/y", "w"), lambda: os.link(base + "m", base + "rw"), lambda: os.listdir(base + "m")):
    try: call()
    except OSError as e: print(type(e).__name__)
END
        python3 p.py "$PWD/abs"; python3 p.py rel .; sqlite3 s.db 'create table t(a); insert into t values (1), (2); select sum(a) from t'; sqlite3 s.db .dump"#,
    );
}

/// Programs that are watched by others, which put themselves between them and the C library.
#[test]
fn valgrind() {
    same_as(
        "valgrind",
        &["valgrind"],
        "^$",
        r#"
        # It warns of what it does not know in the library's tables of frames.
        tree t; exec 3>&2; check() { valgrind -q --error-exitcode=3 "$@" 2>errors; echo $?; grep -v 'DWARF2 CFI reader' errors >&3; rm errors; }
        check cp -r t copy; check --trace-children=yes sh -c 'mkdir a; echo one >a/b; cat a/b; true'"#,
    );
}

#[test]
fn build() {
    same_as(
        "build",
        &["make", "cc", "dpkg-deb"],
        "^$",
        r#"
        mkdir src; for n in $(seq 12); do printf '#include "all.h"\nint f%d(int a) { return a * %d + OFFSET; }\n' $n $n >src/f$n.c; done
        { echo '#define OFFSET 7'; for n in $(seq 12); do echo "int f$n(int);"; done; } >src/all.h
        { echo '#include <stdio.h>'; echo '#include "all.h"'; echo 'int main(void) { int s = 0;'; for n in $(seq 12); do echo "s += f$n($n);"; done; echo 'printf("%d\n", s); return 0; }'; } >src/main.c
        printf 'O = $(patsubst src/%%.c,out/%%.o,$(wildcard src/*.c))\nout/all: out/lib.a out/main.o\n\tcc -o $@ out/main.o out/lib.a\nout/lib.a: $(filter-out out/main.o,$(O))\n\trm -f $@; ar rcD $@ $^\nout/%%.o: src/%%.c src/all.h\n\t@mkdir -p out; cc -O1 -c $< -o $@\n' >Makefile
        make -s -j2; ./out/all; make -q; echo $?; sed -i "s/OFFSET 7/OFFSET 8/" src/all.h; make -s -j2; ./out/all; touch src/f3.c; make -n | grep -c 'cc -O1'; strip out/all; ./out/all
        mkdir -p deb/DEBIAN deb/usr/bin deb/usr/share/doc/x; cp out/all deb/usr/bin/; cp src/*.c deb/usr/share/doc/x; ln -s all deb/usr/bin/link
        printf 'Package: x\nVersion: 1\nArchitecture: amd64\nMaintainer: t <t@example.org>\nDescription: x\n' >deb/DEBIAN/control; find deb -exec touch -hd 2011-02-03 {} +
        SOURCE_DATE_EPOCH=1300000000 dpkg-deb -b --root-owner-group deb x.deb; dpkg-deb -c x.deb | wc -l; dpkg-deb -x x.deb unpacked; dpkg-deb -R x.deb raw; unpacked/usr/bin/all; diff -r --no-dereference deb raw; dpkg-deb -f x.deb Version"#,
    );
}
