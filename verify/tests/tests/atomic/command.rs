//! `ccfs atomic`: a command that happens as a whole or not at all.
use crate::common::{assert_same, volume};
use ccfs_tests::harness::{Tree, ccfs_program, run_ok};
use ccfs_tests::sys;

#[test]
fn all_or_nothing() {
    let Some(mut v) = volume("all_or_nothing", "") else {
        return;
    };
    let out = v.script("mkdir etc; echo old >etc/a; echo old >etc/b
         $CCFS atomic -- sh -euc 'for f in a b; do echo new >etc/$f.tmp; mv etc/$f.tmp etc/$f; done; mkdir etc/more'
         set +e
         $CCFS atomic -- sh -c 'echo broken >etc/a; rm -r etc/b etc/more; exit 7'
         [ $? = 7 ] || exit 1
         $CCFS atomic -- sh -c 'echo broken >etc/a; kill -9 $$'
         [ $? = 137 ] || exit 2
         $CCFS atomic -- ./no-such-program 2>/dev/null
         [ $? = 127 ] || exit 3
         $CCFS atomic -- $CCFS atomic -- true 2>../said
         [ $? = 1 ] || exit 4
         exit 0",
    );
    assert_eq!(out.code, 0, "{}", out.all());
    let said = v.script("cat ../said").stdout;
    assert!(said.contains("in an atomic group already"), "{said}");
    let before = Tree::read(v.mnt());
    v.kill9();
    v.mount();
    let names: Vec<&String> = before.0.keys().filter(|n| n.starts_with("etc")).collect();
    assert_eq!(names, ["etc", "etc/a", "etc/b", "etc/more"]);
    for name in ["etc/a", "etc/b"] {
        let seen = std::fs::read_to_string(v.path(name)).expect("read");
        assert_eq!(seen, "new\n", "C11: {name}");
    }
    assert!(v.path("etc/more").is_dir());
    v.finish();
}

#[test]
fn dry_run() {
    let Some(v) = volume("dry_run", "") else {
        return;
    };
    let out = v.script("mkdir d; echo a >d/a; echo b >d/b; echo r >d/r; echo c >c");
    assert_eq!(out.code, 0, "{}", out.all());
    let before = Tree::read(v.mnt());
    let out =
        v.script("$CCFS atomic --dry-run -- sh -euc 'exec 3<d/b; rm d/b; echo more >>d/a; mkdir e; mv c e/c; echo n >n; mv n d/r; : >t; rm t'");
    assert_eq!(out.code, 0, "{}", out.all());
    let mut lines: Vec<&str> = out.stdout.lines().collect();
    lines.sort_unstable();
    let expected = [
        "changed d/a",
        "changed d/r",
        "created e",
        "created e/c",
        "removed c",
        "removed d/b",
    ];
    assert_eq!(lines, expected);
    assert_same("nothing happened", &before, &Tree::read(v.mnt()));
    let out = v.script("$CCFS atomic --dry-run --json -- sh -euc 'rm d/b'");
    assert_eq!(out.code, 0, "{}", out.all());
    let json: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
    assert_eq!(json["schema"], 1);
    let removed = serde_json::json!({ "change": "removed", "path": "d/b" });
    let changes = json["changes"].as_array().expect("a list");
    assert!(changes.contains(&removed), "{json}");
    v.finish();
}

#[test]
fn lost_on_the_way() {
    let Some(v) = volume("lost_on_the_way", "") else {
        return;
    };
    let out = v.script(
        "set +e
         $CCFS atomic --timeout 1 -- sh -c 'echo 1 >f; while [ -e f ]; do sleep 0.1; done' 2>../said
         [ $? = 1 ] || exit 1
         grep -q 'taken back' ../said || exit 2
         exit 0",
    );
    assert_eq!(out.code, 0, "{}", out.all());
    assert_eq!(sys::lstat(v.path("f")), Err(libc::ENOENT));
    let out = v.script("cd /; exec $CCFS atomic --on /proc -- true");
    assert_eq!(out.code, 1);
    assert!(
        out.stderr.contains("not on a mounted ccfs volume"),
        "{}",
        out.all()
    );
    v.finish();
}

/// A program that its caller may not read is in his group as any other; one that can do more than he is outside, and what it writes stays.
#[test]
fn programs_with_other_rights() {
    const USER: &str = "12345";
    const GROUP: &str = "4321";
    for (test, options) in [("rights", ""), ("rights-by-proc", ",identity=proc")] {
        let Some(v) = volume(test, options) else {
            return;
        };
        let tee = v.outside("tee");
        let program = |name: &str, words: &[&str]| {
            let to = v.outside(name);
            let words = [words, &["/usr/bin/tee", to.to_str().unwrap()]].concat();
            run_ok("install", &words);
            to.display().to_string()
        };
        let unreadable = program("unreadable", &["-m", "711"]);
        let setgid = program("setgid", &["-g", GROUP, "-m", "2755"]);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(tee.parent().unwrap(), open).expect("chmod");
        let script = format!(
            "echo before >f; cp f log; chown {USER} f log
             setpriv --reuid {USER} --regid {USER} --clear-groups sh -uc '
               {ccfs} atomic -- sh -c \"echo in | {unreadable} -a f; echo line | {setgid} -a log; exit 1\"
               [ $? = 1 ]'
             cat f log",
            ccfs = ccfs_program(),
        );
        let out = v.script(&script);
        assert_eq!(out.code, 0, "{}", out.all());
        let lines: Vec<&str> = out.stdout.lines().filter(|l| *l != "in").collect();
        assert_eq!(lines, ["line", "before", "before", "line"], "{}", out.all());
        v.finish();
    }
}

/// A log to which a user and root append: what the user appends is nothing that he could take back.
#[test]
fn append_only_files_of_two_users() {
    let Some(v) = volume("append_only_files_of_two_users", "") else {
        return;
    };
    let out = v.script(
        "user() { setpriv --reuid 12345 --regid 12345 --clear-groups \"$@\"; }
         echo first >log; mkdir d; chmod 666 log; chmod 777 . d; chattr +a log d
         set +e
         user $CCFS atomic -- sh -c 'echo lost >>log; touch d/lost; exit 7' 2>/dev/null
         [ $? = 7 ] || exit 1
         user $CCFS atomic -- sh -c 'echo in >>log || touch no-log; touch d/in || touch no-name' 2>/dev/null
         [ $? = 0 ] && [ -e no-log ] && [ -e no-name ] || exit 2
         user sh -c 'echo own >>log; : >d/own'
         echo root >>log
         cat log; ls d; chattr -a log d",
    );
    assert_eq!(out.code, 0, "{}", out.all());
    let lines: Vec<&str> = out.stdout.lines().collect();
    assert_eq!(lines, ["first", "own", "root", "own"], "{}", out.all());
    v.finish();
}

/// What ended a command's group is said, with what to do about it; of each way one line.
#[test]
fn why_it_was_taken_back() {
    let Some(v) = volume("why", ",dirty=4M") else {
        return;
    };
    let ran = |script: &str, code: i32| {
        let out = v.script(&format!("set +e; mkdir -p d; {script}"));
        assert_eq!(out.code, code, "{}", out.all());
        let own = |l: &&str| l.starts_with("ccfs atomic:");
        let said: Vec<String> = out.stderr.lines().filter(own).map(str::to_string).collect();
        assert_eq!(said.len(), 1, "{}", out.all());
        said[0].clone()
    };
    let said = ran("$CCFS atomic -- sh -c 'echo 1 >f; exit 7'", 7);
    assert!(
        said.ends_with("the command failed (exit code 7): its changes were taken back"),
        "{said}"
    );
    let said = ran("$CCFS atomic -- sh -c 'echo 1 >f; kill -9 $$'", 137);
    assert!(said.contains("(exit code 137)"), "{said}");
    // It ends well, too late.
    let wait = "echo 1 >f; while [ -e f ]; do sleep 0.05; done";
    let said = ran(&format!("$CCFS atomic --timeout 1 -- sh -c '{wait}'"), 1);
    assert!(
        said.contains("taken back: its time of 1 s was up; give it more with --timeout"),
        "{said}"
    );
    let failing = format!("$CCFS atomic --timeout 1 -- sh -c '{wait}; exit 9'");
    assert!(ran(&failing, 9).contains("its time of 1 s was up"));
    let dry = format!("$CCFS atomic --dry-run --timeout 1 -- sh -c '{wait}'");
    assert!(ran(&dry, 1).contains("its time of 1 s was up"));
    // Half of dirty= for all groups.
    let said = ran("$CCFS atomic -- head -c 8M /dev/zero >f", 1);
    assert!(
        said.contains("and was too large: all atomic groups together may hold 2.0 MiB"),
        "{said}"
    );
    assert!(said.contains("dirty="), "{said}");
    // Another program, which waits for a second.
    let beside = |work: &str, other: &str| {
        format!(
            "rm -f ../go; touch d/g h; $CCFS atomic -- sh -c '{work}; touch ../go; while ! [ -e ../ended ]; do sleep 0.05; done; true' & group=$!
             while ! [ -e ../go ]; do sleep 0.05; done; {other}; touch ../ended; wait $group; code=$?; rm ../ended; exit $code"
        )
    };
    let said = ran(&beside("echo 1 >f", "echo 2 >f"), 1);
    assert!(
        said.contains("another program changed the same files; end that one"),
        "{said}"
    );
    // One that nobody may wait for.
    let said = ran(&beside("mv h d/h", "mv d/h k"), 1);
    assert!(
        said.contains("moved something between directories; end that one"),
        "{said}"
    );
    // What was stored through a mapping is known when the kernel writes it back.
    let map = "import mmap,os; f=os.open(\"m\",os.O_RDWR|os.O_CREAT); os.write(f,b\"x\"); os.ftruncate(f,8<<20); m=mmap.mmap(f,8<<20); m[:]=b\"y\"*(8<<20); m.flush()";
    let said = ran(&format!("$CCFS atomic -- python3 -c '{map}'"), 1);
    assert!(
        said.contains("through a mapping did not fit, and was too large:"),
        "{said}"
    );
    v.finish();
    let Some(v) = volume("why-mount", ",group_timeout=1") else {
        return;
    };
    let out = v.script(&format!("$CCFS atomic --timeout 60 -- sh -c '{wait}'"));
    assert_eq!(out.code, 1, "{}", out.all());
    assert!(
        out.stderr.contains(
            "time of 1 s was up that the mount option group_timeout= gives; mount with a longer one"
        ),
        "{}",
        out.all()
    );
    v.finish();
}
