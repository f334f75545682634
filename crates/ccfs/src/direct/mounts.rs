//! The mounts on which this user's programs can make direct calls.
use crate::mounts::{self, Mount};
use ccfs_client::direct::Session;
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What was found.
#[derive(Debug, Default)]
pub struct Mounts {
    /// Those that allow direct calls: `st_dev`, and where they are.
    pub found: Vec<(u64, PathBuf)>,
    /// Those that do not.
    refused: Vec<PathBuf>,
}

impl Mounts {
    /// As `CCFS_DIRECT_MOUNTS` has them.
    pub fn lines(&self) -> OsString {
        let mut text = Vec::new();
        for (dev, dir) in &self.found {
            text.extend_from_slice(format!("{dev} ").as_bytes());
            text.extend_from_slice(dir.as_os_str().as_bytes());
            text.push(b'\n');
        }
        OsString::from_vec(text)
    }

    /// Why there are none, and what to do.
    pub fn why_none(&self) -> String {
        match self.refused.first() {
            None => "no ccfs volume is mounted here; all calls of the command go through the kernel: mount one with -o direct=on".into(),
            Some(dir) => format!(
                "{} allows this process no direct calls; all calls of the command go through the kernel: mount it with -o direct=on, as the same user (docs/using/direct.md)",
                dir.display()
            ),
        }
    }
}

/// Asks each volume that is mounted in this namespace for a session, which ends again.
pub fn direct() -> Mounts {
    let mut all = Mounts::default();
    let mut asked = BTreeMap::new();
    for mount in mounts::all().unwrap_or_default() {
        let is_line = !mount.dir.as_os_str().as_bytes().contains(&b'\n');
        let dev = number(&mount.device);
        let (true, true, Some(dev)) = (mount.is_ccfs(), is_line, dev) else {
            continue;
        };
        // Who asks a daemon that is stopped waits until it goes on.
        if mount.stopped_daemon().is_some() || !is_on_top(&mount, dev) {
            continue;
        }
        match asked.entry(dev).or_insert_with(|| allows(&mount)) {
            true => all.found.push((dev, mount.dir.clone())),
            false => all.refused.push(mount.dir.clone()),
        }
    }
    all
}

fn number(device: &str) -> Option<u64> {
    let (major, minor) = device.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// No other volume is mounted over it. Asks its daemon nothing.
fn is_on_top(mount: &Mount, dev: u64) -> bool {
    let how = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = statx(CWD, &mount.dir, how, StatxFlags::empty());
    stat.is_ok_and(|stat| makedev(stat.stx_dev_major, stat.stx_dev_minor) == dev)
}

fn allows(mount: &Mount) -> bool {
    let session = ccfs_client::open_directory(&mount.dir).and_then(Session::begin);
    session.is_ok_and(|session| session.is_direct())
}
