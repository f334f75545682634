//! What the launcher says: the mounts, the plan, and what is to be done.
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A mount that may allow direct calls.
pub struct Mount {
    /// Its st_dev.
    pub device: u64,
    pub path: PathBuf,
}

#[derive(Default)]
pub struct Mounts {
    all: Vec<Mount>,
    plan: Option<CString>,
    /// Whose sync calls return at once.
    pub ignore_fsync: Option<u32>,
    lowest_own: i32,
}

static MOUNTS: OnceLock<Mounts> = OnceLock::new();

/// As the launcher said.
pub fn mounts() -> &'static Mounts {
    MOUNTS.get_or_init(Mounts::default)
}

/// So many of the highest numbers that descriptors can have are for this library.
const OWN: u64 = 128;

impl Mounts {
    /// `lines`: a line for each, its st_dev and its path. `most`: descriptors that the process may have.
    pub fn set(plan: CString, lines: &[u8], ignore_fsync: Option<u32>, most: u64) {
        let one = |line: &[u8]| {
            let at = line.iter().position(|b| *b == b' ')?;
            Some(Mount {
                device: std::str::from_utf8(&line[..at]).ok()?.parse().ok()?,
                path: OsStr::from_bytes(&line[at + 1..]).into(),
            })
        };
        let most = most.min(crate::region::DESCRIPTORS as u64);
        let _ = MOUNTS.set(Mounts {
            all: lines.split(|b| *b == b'\n').filter_map(one).collect(),
            plan: Some(plan),
            ignore_fsync,
            lowest_own: most.saturating_sub(OWN).max(most / 2) as i32,
        });
    }

    /// The caller's sync calls return at once. (Threads can be different users.)
    pub fn ignores_fsync(&self) -> bool {
        let is_me = |user| user == rustix::process::geteuid().as_raw();
        self.ignore_fsync.is_some_and(is_me)
    }

    pub fn plan(&self) -> Option<&CString> {
        self.plan.as_ref()
    }

    pub fn lowest_own(&self) -> i32 {
        self.lowest_own
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The mounts of a device.
    pub fn of_device(&self, device: u64) -> impl Iterator<Item = &Mount> {
        self.all.iter().filter(move |m| m.device == device)
    }

    /// An absolute path may lead into a mount.
    pub fn may_lead_there(&self, path: &[u8]) -> bool {
        self.all.iter().any(|mount| {
            let prefix = mount.path.as_os_str().as_bytes();
            let rest = path.strip_prefix(prefix);
            prefix == b"/" || rest.is_some_and(|rest| rest.first() == Some(&b'/'))
        })
    }
}
