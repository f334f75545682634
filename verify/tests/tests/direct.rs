//! Direct calls from outside: what is promised of them, and nothing of how they are made (C1 to C14, docs/using/direct.md).
#[path = "direct/actors.rs"]
mod actors;
#[path = "direct/atomic.rs"]
mod atomic;
#[path = "direct/crashes.rs"]
mod crashes;
#[path = "direct/one_file.rs"]
mod one_file;
#[path = "direct/posix/mod.rs"]
mod posix;
#[path = "direct/sharing.rs"]
mod sharing;
#[path = "direct/torture.rs"]
mod torture;

use ccfs_client::direct::Session;
use ccfs_tests::harness::{Fs, Volume};
use std::fs::File;

/// A volume with direct calls, or none and a line that says why.
fn volume(test: &str, mib: u64, more: &str) -> Option<Volume> {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(test) {
        return None;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, "direct").options(&format!("direct=on{more}"));
    v.mkfs(mib);
    v.mount();
    Some(v)
}

/// A session that is direct.
fn session(v: &Volume) -> Session {
    let s = Session::begin(File::open(v.mnt()).expect("open the mount")).expect("begin");
    assert!(s.is_direct(), "no session: {:?}", s.why_not());
    s
}
