//! Crashes of the daemon under load (C1, C2, C3, C5, C6), and the checker's own tests.
use ccfs_tests::harness::{Fs, Volume, number};
use ccfs_tests::kill9::{self, check, load::Settings};

fn small(seed: u64) -> Settings {
    Settings {
        seed,
        streams: 3,
        ops: 1500,
        seconds: 60.0,
        sync_percent: 1,
        shared_percent: 15,
        write_max: 60_000,
    }
}

/// Without a crash everything survives; on the kernel's ext4 this proves the load's model.
#[test]
fn load_without_crash() {
    for fs in [Fs::Ext4, Fs::under_test()] {
        if fs.ready("load_without_crash") {
            let v = Volume::new(fs, "load", 384);
            kill9::load_and_check(&v, &small(1));
            v.finish();
        }
    }
}

/// The checker is no decoration: every kind of damage is found.
#[test]
fn checker_finds_damage() {
    if !Fs::Ext4.ready("checker_finds_damage") {
        return;
    }
    let v = Volume::new(Fs::Ext4, "checker", 256);
    let (mut record, _) = kill9::load_and_check(&v, &small(2));
    // Nothing was lost. Without this, what the very last operation of a stream has done could be missing by rights.
    let whole = record.streams.iter().map(Vec::len).enumerate().collect();
    record.promises.push((whole, "its end".into()));
    let seen = check::look(&v.path("load"));
    let judge = |change: &dyn Fn(&mut std::collections::BTreeMap<String, kill9::op::Seen>)| {
        let mut damaged = seen.clone();
        change(&mut damaged);
        check::check(&record, &damaged)
    };
    assert!(judge(&|_| ()).is_ok());
    let file = |prefix: &str| {
        seen.iter()
            .find(|(n, s)| n.starts_with(prefix) && s.kind == kill9::op::Kind::File)
            .expect("a file")
            .0
            .clone()
    };
    for name in [file("all/s"), file("s1/"), file("shared/x")] {
        let damage: [&dyn Fn(&mut kill9::op::Seen); 4] = [
            &|s| s.content ^= 1,
            &|s| s.len += 1,
            &|s| s.mode ^= 0o200,
            &|s| s.nlink += 1,
        ];
        for d in damage {
            let verdict = judge(&|all| d(all.get_mut(&name).expect("the file")));
            assert!(verdict.is_err(), "{name}: a changed file passes");
        }
        assert!(
            judge(&|all| drop(all.remove(&name))).is_err(),
            "{name}: a missing file passes"
        );
    }
    let stranger = seen[&file("s0/")].clone();
    assert!(judge(&|all| drop(all.insert("s0/stranger".into(), stranger.clone()))).is_err());
    assert!(judge(&|all| drop(all.insert("odd".into(), stranger.clone()))).is_err());
    // A stream cut back to before its last sync breaks C3 (or is no prefix at all).
    assert!(
        judge(&|all| all.retain(|n, _| !n.starts_with("s0") && !n.starts_with("all/s0"))).is_err()
    );
    v.finish();
}

fn crash_rounds(seed: u64) {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("kill9") {
        return;
    }
    let count = number("CCFS_TEST_ROUNDS", 15) as usize;
    let sum = kill9::rounds(number("CCFS_TEST_SEED", 0) + seed, count);
    println!("kill -9: {sum:?}");
    assert!(
        sum.survived > 0 && (count < 10 || sum.lossy > 0),
        "rounds that prove nothing: {sum:?}"
    );
}

#[test]
fn kill9_a() {
    crash_rounds(100);
}

#[test]
fn kill9_b() {
    crash_rounds(200);
}

#[test]
fn kill9_c() {
    crash_rounds(300);
}

#[test]
fn kill9_d() {
    crash_rounds(400);
}

#[test]
fn interval_commits() {
    if Fs::under_test() == Fs::Ccfs && Fs::Ccfs.ready("interval_commits") {
        kill9::interval_commits();
    }
}
