//! The commands of docs/using/all-or-nothing.md that are all or nothing: dpkg, tar, rsync, git and make install under `ccfs atomic`. A dry run and a failure
//! in the middle leave nothing; the daemon's death leaves nothing or all.
use crate::common::{assert_same, until, volume};
use ccfs_tests::harness::{Compare, Output, Tree, Volume, ccfs_program, have, run};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Scripts for `sh -eu` in the root of the volume. `$OUT` is a directory outside of it, `$MODE` says what the command has to do: `go` to its
/// end, `fail` in the middle, `wait` in the middle for the crash.
struct Recipe {
    name: &'static str,
    needs: &'static [&'static str],
    /// What is there before.
    prepare: &'static str,
    /// The words behind `ccfs atomic [--dry-run] --`.
    command: &'static str,
    /// All of it has happened.
    check: &'static str,
    /// Lines of its dry run.
    shows: &'static [&'static str],
}

/// Called by the commands in their middle. It waits once; who waits ends with the test's directory.
const PAUSE: &str = r#"
case $MODE in
fail) exit 1 ;;
wait) [ ! -e "$OUT/middle" ] || exit 0
    : >"$OUT/middle"
    while [ -e "$OUT/wait" ]; do sleep 0.05; done ;;
esac
"#;

const DPKG: Recipe = Recipe {
    name: "dpkg",
    needs: &["dpkg", "dpkg-deb"],
    // Two packages; the script of the second one runs when the files of both are there.
    prepare: r#"
        for name in one two; do
            tree=$OUT/build
            mkdir -p "$tree/DEBIAN" "$tree/usr/share/$name"
            printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: sample\n' $name >"$tree/DEBIAN/control"
            for f in $(seq 30); do seq $((f * 50)) >"$tree/usr/share/$name/$f"; done
            if [ $name = two ]; then
                printf '#!/bin/sh\nexec sh "$OUT/pause"\n' >"$tree/DEBIAN/postinst"
                chmod 755 "$tree/DEBIAN/postinst"
            fi
            dpkg-deb --root-owner-group -b "$tree" "$OUT/$name.deb" >"$OUT/said"
            rm -r "$tree"
        done
        mkdir -p root/var/lib/dpkg/info root/var/lib/dpkg/updates root/var/lib/dpkg/triggers
        : >root/var/lib/dpkg/status; : >root/var/lib/dpkg/available"#,
    command: r#"dpkg --root="$PWD/root" --log=/dev/null --force-script-chrootless,bad-path -i "$OUT/one.deb" "$OUT/two.deb" >"$OUT/said" 2>&1"#,
    check: r#"
        [ "$(dpkg-query --admindir="$PWD/root/var/lib/dpkg" -W -f '${Status}\n' | grep -c '^install ok installed$')" = 2 ]
        for name in one two; do
            for f in $(seq 30); do seq $((f * 50)) | cmp - root/usr/share/$name/$f; done
        done"#,
    shows: &[
        "created root/usr/share/one/7",
        "created root/usr/share/two/30",
        "changed root/var/lib/dpkg/status",
    ],
};

const TAR: Recipe = Recipe {
    name: "tar",
    needs: &["tar"],
    prepare: r#"
        mkdir -p "$OUT/new/sub" app
        for f in $(seq 40); do seq $((f * 200)) >"$OUT/new/f$f"; ln "$OUT/new/f$f" "$OUT/new/sub/l$f"; done
        ln -s f1 "$OUT/new/sub/link"
        tar cf "$OUT/release.tar" -C "$OUT/new" .
        head -c $(($(stat -c %s "$OUT/release.tar") / 2)) "$OUT/release.tar" >"$OUT/broken.tar"
        seq 100 >app/f1; seq 100 >app/mine"#,
    // An archive that ends too early is tar's way to fail.
    command: r#"
        archive=release; [ $MODE != fail ] || archive=broken
        tar xf "$OUT/$archive.tar" -C app --checkpoint=4 --checkpoint-action=exec='sh "$OUT/pause"' 2>"$OUT/said""#,
    check: r#"diff -r "$OUT/new" app | grep -v '^Only in app: mine$' >"$OUT/differs" || :; [ ! -s "$OUT/differs" ]"#,
    shows: &["changed app/f1", "created app/f40", "created app/sub/link"],
};

const RSYNC: Recipe = Recipe {
    name: "rsync",
    needs: &["rsync"],
    prepare: r#"
        mkdir -p "$OUT/new/pages" www/old
        for f in $(seq 40); do seq $((f * 200)) >"$OUT/new/pages/$f"; done
        seq 10 >www/old/gone; seq 20 >www/index; seq 30 >"$OUT/new/index""#,
    // Something to copy that is not there is rsync's way to fail.
    command: r#"
        more=; [ $MODE != fail ] || more=$OUT/not-there
        rsync -a "$OUT/new/pages" $more www/ 2>"$OUT/said"; sh "$OUT/pause"; rsync -a --delete "$OUT/new/" www/"#,
    check: r#"diff -r "$OUT/new" www"#,
    shows: &[
        "removed www/old",
        "changed www/index",
        "created www/pages/40",
    ],
};

const GIT: Recipe = Recipe {
    name: "git",
    needs: &["git"],
    // Both sides have gone on; with MODE=fail in the same line.
    prepare: r#"
        git init -q -b main "$OUT/upstream"
        (cd "$OUT/upstream"; for f in $(seq 20); do seq $f >f$f; done; echo a >line; git add .; git commit -qm first)
        git clone -q "$OUT/upstream" tree
        (cd "$OUT/upstream"; mkdir d; seq 1000 >d/new; git rm -q f3; echo b >line; git add .; git commit -qm second; git branch good
         git checkout -q -b bad; echo theirs >mine; git add .; git commit -qm clash)
        cd tree; git config gc.auto 0; git config maintenance.auto false; echo ours >mine; git add .; git commit -qm ours
        printf '#!/bin/sh\n[ $MODE = fail ] || sh "$OUT/pause"\n' >.git/hooks/post-checkout
        printf '#!/bin/sh\n[ $MODE = fail ] || sh "$OUT/pause"\n' >.git/hooks/post-rewrite
        chmod 755 .git/hooks/post-checkout .git/hooks/post-rewrite"#,
    command: r#"
        branch=good; [ $MODE != fail ] || branch=bad
        git -C tree pull -q --rebase origin $branch >"$OUT/said" 2>&1"#,
    check: r#"
        cd tree
        git fsck --strict 2>"$OUT/said"; [ -z "$(git status --porcelain)" ]; [ ! -e .git/index.lock ]
        [ "$(git rev-parse HEAD~1)" = "$(git -C "$OUT/upstream" rev-parse good)" ]
        [ "$(cat mine line)" = "ours
b" ]; [ ! -e f3 ]; seq 1000 | cmp - d/new"#,
    shows: &[
        "created tree/d/new",
        "removed tree/f3",
        "changed tree/.git/index",
    ],
};

const MAKE: Recipe = Recipe {
    name: "make-install",
    needs: &["make", "install"],
    prepare: r#"
        mkdir "$OUT/source" root
        (cd "$OUT/source"; for f in $(seq 30); do seq $((f * 100)) >lib$f.so.1; done
         printf 'install:\n\tinstall -d $(DESTDIR)/usr/lib\n\tinstall -m 644 lib1*.so.1 $(DESTDIR)/usr/lib\n' >Makefile
         printf '\tsh "$(OUT)/pause"\n\tinstall -m 755 lib[2-9]*.so.1 $(DESTDIR)/usr/lib\n' >>Makefile
         printf '\tfor l in lib*.so.1; do ln -sf $$l $(DESTDIR)/usr/lib/$${l%%.1}; done\n' >>Makefile)
        mkdir -p root/usr/lib; echo old >root/usr/lib/lib1.so.1; ln -s nowhere root/usr/lib/lib2.so"#,
    command: r#"make -s -C "$OUT/source" install DESTDIR="$PWD/root" >"$OUT/said" 2>&1"#,
    check: r#"
        for f in $(seq 30); do cmp "$OUT/source/lib$f.so.1" root/usr/lib/lib$f.so; done
        [ "$(ls root/usr/lib | wc -l)" = 60 ]; [ -x root/usr/lib/lib2.so.1 ]"#,
    shows: &[
        "changed root/usr/lib/lib1.so.1",
        "created root/usr/lib/lib30.so",
    ],
};

/// A script of a recipe, prepared so that it can run beside what the test does to the volume.
fn script(v: &Volume, mode: &str, text: &str) -> Command {
    let fixed = "2024-02-03T04:05:06Z";
    let mut command = Command::new("sh");
    command
        .args(["-euc", text])
        .env("CCFS", ccfs_program())
        .env("OUT", v.outside("out"))
        .env("MODE", mode)
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_AUTHOR_DATE", fixed)
        .env("GIT_COMMITTER_DATE", fixed);
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "t")
            .env(format!("GIT_{who}_EMAIL"), "t@example.org");
    }
    command.current_dir(v.mnt());
    command
}

fn ok(v: &Volume, what: &str, text: &str) {
    let out = run(&mut script(v, "go", text));
    assert_eq!(out.code, 0, "{what}: {}", out.all());
}

/// The command under `ccfs atomic`.
fn atomic(v: &Volume, recipe: &Recipe, option: &str, mode: &str) -> Command {
    let words = format!("exec \"$CCFS\" atomic {option} -- sh -euc \"$COMMAND\"");
    let mut command = script(v, mode, &words);
    command.env("COMMAND", recipe.command);
    command
}

/// What the command said for itself.
fn said(v: &Volume) -> String {
    std::fs::read_to_string(v.outside("out/said")).unwrap_or_default()
}

/// Kills the daemon when `now` returns, while the command runs beside; it has ended when this returns.
fn killed(v: &mut Volume, mut command: Command, now: impl FnOnce()) -> Output {
    std::thread::scope(|s| {
        let beside = s.spawn(move || run(&mut command));
        now();
        v.kill9();
        // A waiting command goes on, in a volume that is no more.
        let _ = std::fs::remove_file(v.outside("out/wait"));
        beside.join().expect("the command")
    })
}

fn try_recipe(recipe: &Recipe) {
    if let Some(missing) = recipe.needs.iter().find(|p| !have(p)) {
        println!("skipped: {}: needs {missing}", recipe.name);
        return;
    }
    let Some(mut v) = volume(&format!("recipe-{}", recipe.name), "") else {
        return;
    };
    let out = v.outside("out");
    std::fs::create_dir(&out).expect("mkdir");
    std::fs::write(out.join("pause"), PAUSE).expect("write");
    ok(&v, "prepare", recipe.prepare);
    v.remount();
    let before = Tree::read(v.mnt());
    let took = dry_run(&v, recipe, &before);
    failure(&mut v, recipe, &before);
    crash_in_the_middle(&mut v, recipe, &before, &out);
    let happened = crashes_at_any_time(&mut v, recipe, &before, took);
    if !happened {
        let done = run(&mut atomic(&v, recipe, "", "go"));
        assert_eq!(done.code, 0, "{}{}", done.all(), said(&v));
        // It has ended, so it is durable.
        v.kill9();
        v.mount();
    }
    ok(&v, "C11: all of it", recipe.check);
    v.finish();
}

/// The command works, and nothing has happened. Returns how long it took.
fn dry_run(v: &Volume, recipe: &Recipe, before: &Tree) -> Duration {
    let start = Instant::now();
    let done = run(&mut atomic(v, recipe, "--dry-run", "go"));
    let took = start.elapsed();
    assert_eq!(done.code, 0, "{}{}", done.all(), said(v));
    let lines: Vec<&str> = done.stdout.lines().collect();
    for wanted in recipe.shows {
        assert!(lines.contains(wanted), "{wanted:?} is not in {lines:#?}");
    }
    assert_same("after the dry run", before, &Tree::read(v.mnt()));
    took
}

/// It fails when it has done a part; the dry run shows that it has.
fn failure(v: &mut Volume, recipe: &Recipe, before: &Tree) {
    let dry = run(&mut atomic(v, recipe, "--dry-run", "fail"));
    assert_ne!(dry.code, 0, "{}", said(v));
    let made = dry
        .stdout
        .lines()
        .filter(|l| l.starts_with("created "))
        .count();
    assert!(made >= 5, "only {}", dry.all());
    let failed = run(&mut atomic(v, recipe, "", "fail"));
    assert_eq!(failed.code, dry.code, "{}{}", failed.all(), said(v));
    assert_same("after the failure", before, &Tree::read(v.mnt()));
    // Nor is there anything to come.
    v.kill9();
    v.mount();
    assert_same("after a crash", before, &Tree::read(v.mnt()));
}

fn crash_in_the_middle(v: &mut Volume, recipe: &Recipe, before: &Tree, out: &Path) {
    std::fs::write(out.join("wait"), "").expect("write");
    let command = atomic(v, recipe, "", "wait");
    let middle = out.join("middle");
    let ended = killed(v, command, || until("the middle", || middle.exists()));
    assert_ne!(ended.code, 0, "it must notice: {}", ended.all());
    v.mount();
    assert_same(
        "after the crash in the middle",
        before,
        &Tree::read(v.mnt()),
    );
}

/// Whenever the daemon dies, it is nothing or all. True: it was all at last.
fn crashes_at_any_time(v: &mut Volume, recipe: &Recipe, before: &Tree, took: Duration) -> bool {
    const TIMES: u32 = 6;
    for n in 1..=TIMES {
        let command = atomic(v, recipe, "", "go");
        // No two machines are equally fast: any moment is right.
        let ended = killed(v, command, || std::thread::sleep(took * n / TIMES));
        v.mount();
        let differs = before.differences(&Tree::read(v.mnt()), Compare::everything());
        if differs.is_empty() {
            assert_ne!(ended.code, 0, "C11: a commit that returned is lost");
            continue;
        }
        println!("{}: all of it in crash {n}", recipe.name);
        return true;
    }
    println!("{}: nothing in {TIMES} crashes", recipe.name);
    false
}

#[test]
fn dpkg() {
    try_recipe(&DPKG);
}

#[test]
fn tar() {
    try_recipe(&TAR);
}

#[test]
fn rsync() {
    try_recipe(&RSYNC);
}

#[test]
fn git() {
    try_recipe(&GIT);
}

#[test]
fn make_install() {
    try_recipe(&MAKE);
}
