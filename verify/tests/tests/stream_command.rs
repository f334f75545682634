//! `ccfs stream new|enter|show|list|sync|run --sync` as a shell script uses them.
use ccfs_tests::harness::{Fs, Volume};
use ccfs_tests::sys;

fn volume(test: &str) -> Option<Volume> {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(test) {
        return None;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, test).options("commit=600");
    v.mkfs(64);
    v.mount();
    Some(v)
}

/// Two commands share a stream by its id; a sync of that stream by a third carries both, and nothing of others.
#[test]
fn shared_by_id() {
    let Some(mut v) = volume("shared_by_id") else {
        return;
    };
    let out = v.script(
        "id=$($CCFS stream new)
         echo 0 >outside
         $CCFS stream enter $id -- sh -c 'echo 1 >one'
         $CCFS stream enter $id -- sh -c 'echo 2 >two'
         $CCFS stream list | grep -q \"^ *$id \"
         $CCFS stream sync --id $id",
    );
    assert_eq!(out.code, 0, "{}", out.all());
    v.kill9();
    v.mount();
    for (name, text) in [("one", "1\n"), ("two", "2\n")] {
        let seen = std::fs::read_to_string(v.path(name)).ok();
        assert_eq!(seen.as_deref(), Some(text), "C3: {name}");
    }
    assert_eq!(sys::lstat(v.path("outside")), Err(libc::ENOENT), "C4");
    v.finish();
}

/// Streams by name: made once, entered again, shown, synced; and whose they are.
#[test]
fn by_name() {
    let Some(mut v) = volume("by_name") else {
        return;
    };
    let out = v.script(
        r#"chmod 777 .
         $CCFS stream run --name build -- sh -c 'echo 1 >one; $CCFS stream show; exec sleep 60' >../first 2>&1 &
         until [ -s ../first ]; do sleep 0.01; done
         [ "$($CCFS stream run --name build -- $CCFS stream show)" = "$(cat ../first)" ]
         [ "$($CCFS stream run --stream build -- $CCFS stream show)" = "$(cat ../first)" ]
         [ "$($CCFS stream enter build -- $CCFS stream show)" = "$(cat ../first)" ]
         [ "$($CCFS stream enter default -- $CCFS stream show)" = 'stream 1 (the default stream)' ]
         $CCFS stream list | grep -q ' build$'
         $CCFS top --once . | grep -q '^build '
         $CCFS status . | grep -q '^stream .*(build): 2 operations'
         $CCFS metrics . | grep -q 'ccfs_stream_running_operations{.*,stream="build",id="[0-9]*"} 2'
         $CCFS stream sync --stream build
         fails() { if "$@" 2>../said; then exit 9; fi; }
         fails $CCFS stream new --name build
         grep -q 'another stream of yours is called build' ../said
         fails $CCFS stream enter nobodys -- true
         grep -q 'no stream of yours is called nobodys' ../said
         fails $CCFS stream run --name 'two words' -- true
         fails $CCFS stream run --name 17 -- true

         user() { setpriv --reuid 61007 --clear-groups "$@"; }
         fails user $CCFS stream enter build -- true
         user $CCFS stream new --name build >../other
         user $CCFS stream list | grep -q ' build$'
         user $CCFS stream new --name theirs >../theirs
         [ "$(user $CCFS stream list | grep -c ' build$')" = 1 ]
         [ "$($CCFS stream enter theirs -- $CCFS stream show)" = "stream $(cat ../theirs)" ]
         [ "$($CCFS stream enter build -- $CCFS stream show)" = "$(cat ../first)" ]
         kill $!
         until ! $CCFS stream list | grep -q "^ *$(cut -d' ' -f2 ../first) "; do sleep 0.05; done
         [ "$($CCFS stream enter build -- $CCFS stream show)" = "stream $(cat ../other)" ]"#,
    );
    assert_eq!(out.code, 0, "{}", out.all());
    v.kill9();
    v.mount();
    assert_eq!(
        std::fs::read(v.path("one")).ok().as_deref(),
        Some(&b"1\n"[..]),
        "C3"
    );
    v.finish();
}

/// `enter` without a command is a shell: the rest of a script, `show PID` sees it from outside.
#[test]
fn a_script_goes_on_in_a_stream() {
    let Some(v) = volume("a_script_goes_on_in_a_stream") else {
        return;
    };
    let out = v.script(
        "cat >again.sh <<'END'
         [ \"${IN_STREAM-}\" ] || IN_STREAM=1 exec $CCFS stream run -- sh \"$0\" \"$@\"
         own=$($CCFS stream show)
         [ \"$own\" != 'stream 1 (the default stream)' ]
         [ \"$($CCFS stream show $$)\" = \"$own\" ]
         [ \"$($CCFS stream show $PPID)\" = 'stream 1 (the default stream)' ]
         echo \"$1\"
END
         sh -eu again.sh argument
         echo \"$CCFS stream show\" | SHELL=/bin/sh $CCFS stream enter 77",
    );
    assert_eq!(out.code, 0, "{}", out.all());
    assert_eq!(out.stdout, "argument\nstream 77\n");
    v.finish();
}

/// With --sync all of the command's work is durable when `run` ends, though its own syncs were ignored; its exit code counts.
#[test]
fn run_and_sync() {
    let Some(mut v) = volume("run_and_sync") else {
        return;
    };
    let out = v.script("set +e
         $CCFS stream run --ignore-fsync --sync -- sh -c 'for i in 1 2 3; do echo $i >f$i; sync f$i; done; exit 5'
         [ $? = 5 ] || exit 1
         $CCFS stream run --sync -- sh -c 'echo >killed; kill -9 $$'
         [ $? = 137 ] || exit 2
         $CCFS stream run --sync -- ./no-such-program 2>/dev/null
         [ $? = 127 ] || exit 3
         exit 0",
    );
    assert_eq!(out.code, 0, "{}", out.all());
    v.kill9();
    v.mount();
    for name in ["f1", "f2", "f3", "killed"] {
        assert!(v.path(name).exists(), "C3: {name}");
    }
    v.finish();
}

/// What goes wrong has an exit code and a word of advice.
#[test]
fn refusals() {
    let Some(v) = volume("refusals") else {
        return;
    };
    for (words, code, said) in [
        ("show 4294967295", 1, "there is no process"),
        ("show /tmp --on .", 2, "give the directory once"),
        ("enter 0 -- true", 2, "numbers from 1"),
        ("list /proc", 1, "not on a mounted ccfs volume"),
        ("new /proc", 1, "not on a mounted ccfs volume"),
        ("run --on /proc -- true", 1, "not on a mounted ccfs volume"),
    ] {
        let out = v.script(&format!("exec $CCFS stream {words}"));
        assert_eq!(out.code, code, "{words}: {}", out.all());
        assert!(out.stderr.contains(said), "{words}: {}", out.all());
    }
    v.finish();
}
