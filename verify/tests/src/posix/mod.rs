//! Directed checks of POSIX and Linux behaviour in a directory of a mounted file system.
//!
//! Every group gets an empty directory. A check that fails does not stop the group; all failures are shown at the end.
//! The same checks run on the kernel's ext4, which proves the expectations.

// `drop(call)` says that the result does not matter, whatever its type.
#![allow(dropping_copy_types)]

mod acl;
mod arguments;
mod attrs;
mod data;
mod later;
mod mapped;
mod misc;
mod names;
mod perm;
mod rename;
mod times;

use crate::harness::Fs;
use crate::sys::R;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// Two users and a group that own nothing else on the machine.
pub const ALICE: u32 = 60_001;
pub const BOB: u32 = 60_002;
pub const TEAM: u32 = 60_100;

/// The checks of one group.
pub struct Checks {
    pub fs: Fs,
    dir: PathBuf,
    group: &'static str,
    failures: Vec<String>,
    count: usize,
}

impl Checks {
    /// A path in the group's directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    pub fn that(&mut self, what: &str, holds: bool) {
        self.count += 1;
        if !holds {
            self.failures.push(format!("{}: {what}", self.group));
        }
    }
    pub fn eq<T: PartialEq + Debug>(&mut self, what: &str, got: T, want: T) {
        self.count += 1;
        if got != want {
            let (got, want) = (shown(&got), shown(&want));
            self.failures.push(format!(
                "{}: {what}: got {got}, expected {want}",
                self.group
            ));
        }
    }
    /// The call succeeds.
    pub fn ok<T>(&mut self, what: &str, got: R<T>) -> Option<T> {
        self.count += 1;
        match got {
            Ok(value) => Some(value),
            Err(e) => {
                self.failures
                    .push(format!("{}: {what}: {}", self.group, name_of(e)));
                None
            }
        }
    }
    /// The call fails with this errno.
    pub fn err<T>(&mut self, what: &str, got: R<T>, errno: i32) {
        self.count += 1;
        let got = match got {
            Ok(_) => "success".to_string(),
            Err(e) if e == errno => return,
            Err(e) => name_of(e),
        };
        self.failures.push(format!(
            "{}: {what}: got {got}, expected {}",
            self.group,
            name_of(errno)
        ));
    }
}

/// A value, cut after 200 characters.
fn shown(value: &impl Debug) -> String {
    let mut text = format!("{value:?}");
    if text.len() > 200 {
        text = text.chars().take(200).collect::<String>() + " ...";
    }
    text
}

/// An errno for people.
fn name_of(errno: i32) -> String {
    format!("{errno} ({})", std::io::Error::from_raw_os_error(errno))
}

type Group = (&'static str, fn(&mut Checks));

/// Every group, with the name that docs/posix.md cites.
pub const GROUPS: &[Group] = &[
    ("open", names::open),
    ("open_tmpfile", names::open_tmpfile),
    ("mkdir_rmdir", names::mkdir_rmdir),
    ("unlink", names::unlink),
    ("link", names::link),
    ("symlink", names::symlink),
    ("mknod", names::mknod),
    ("name_limits", names::name_limits),
    ("rename_files", rename::files),
    ("rename_directories", rename::directories),
    ("rename_flags", rename::flags),
    ("rename_sticky", rename::sticky),
    ("chmod", perm::chmod),
    ("chown", perm::chown),
    ("suid_clearing", perm::suid_clearing),
    ("setgid_directory", perm::setgid_directory),
    ("search_and_write_permission", perm::search_and_write),
    ("access", perm::access),
    ("sticky_directory", perm::sticky_directory),
    ("times_of_calls", times::of_calls),
    ("times_of_data", times::of_data),
    ("utimens", times::utimens),
    ("atime", times::atime),
    ("truncate", data::truncate),
    ("holes", data::holes),
    ("fallocate", data::fallocate),
    ("copy_file_range", data::copy_file_range),
    ("append_direct_sync", data::append_direct_sync),
    ("asynchronous_direct", later::asynchronous_direct),
    ("large_files", data::large_files),
    ("mmap", data::mmap),
    ("stores_past_the_end", mapped::past_the_end),
    ("calls_after_stores", mapped::calls_after_stores),
    ("stores_to_locked_files", mapped::stores_to_locked_files),
    ("unlinked_open", data::unlinked_open),
    ("xattr", attrs::xattr),
    ("xattr_limits", attrs::xattr_limits),
    ("xattr_permissions", attrs::xattr_permissions),
    ("inode_flags", attrs::inode_flags),
    ("acl_access", acl::access),
    ("acl_default", acl::default),
    ("readdir", misc::readdir),
    ("readdir_under_change", misc::readdir_under_change),
    ("locks", misc::locks),
    ("statfs", misc::statfs),
    ("link_limit", misc::link_limit),
    ("no_space", misc::no_space),
    ("overlayfs_upper", misc::overlayfs_upper),
    ("ioctls", misc::ioctls),
    ("arguments", arguments::arguments),
    ("sync_calls", misc::sync_calls),
];

/// Runs the groups whose name contains one of the words of `filter`, which are between commas, or is the word behind a `=`; behind a `!`:
/// none of them. Returns (checks, failures).
pub fn run(fs: Fs, root: &Path, filter: &str) -> (usize, Vec<String>) {
    let old = crate::sys::umask(0o022);
    let (mut count, mut failures) = (0, Vec::new());
    let (words, wanted) = match filter.strip_prefix('!') {
        Some(words) => (words, false),
        None => (filter, true),
    };
    let is = |name: &str, word: &str| match word.strip_prefix('=') {
        Some(word) => name == word,
        None => name.contains(word),
    };
    let chosen = |name: &str| words.split(',').any(|word| is(name, word)) == wanted;
    for (name, check) in GROUPS.iter().filter(|(name, _)| chosen(name)) {
        let dir = root.join(format!("posix-{name}"));
        crate::sys::mkdir(&dir, 0o755)
            .unwrap_or_else(|e| panic!("mkdir {}: {}", dir.display(), name_of(e)));
        let mut checks = Checks {
            fs,
            dir,
            group: name,
            failures: Vec::new(),
            count: 0,
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&mut checks)));
        if ended.is_err() {
            checks
                .failures
                .push(format!("{name}: stopped by a panic (see above)"));
        }
        count += checks.count;
        failures.append(&mut checks.failures);
    }
    crate::sys::umask(old);
    (count, failures)
}

/// A file with these bytes and mode 644; panics if it cannot be made (the group then fails as a whole).
fn make(path: impl AsRef<Path>, bytes: &[u8]) {
    let path = path.as_ref();
    std::fs::write(path, bytes).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

fn bytes_of(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    std::fs::read(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

/// A directory with this exact mode and owner.
fn dir_of(path: impl AsRef<Path>, uid: u32, gid: u32, mode: u32) {
    let path = path.as_ref();
    crate::sys::mkdir(path, 0o755)
        .unwrap_or_else(|e| panic!("mkdir {}: {}", path.display(), name_of(e)));
    crate::sys::chown(path, uid, gid).expect("chown");
    crate::sys::chmod(path, mode).expect("chmod");
}

/// A file with this exact mode and owner.
fn file_of(path: impl AsRef<Path>, uid: u32, gid: u32, mode: u32) {
    let path = path.as_ref();
    make(path, b"x");
    crate::sys::chown(path, uid, gid).expect("chown");
    crate::sys::chmod(path, mode).expect("chmod");
}
