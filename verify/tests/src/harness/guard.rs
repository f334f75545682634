//! Working directories that take their mounts, daemons and loop devices with them.
//!
//! A directory is named `ccfs-test-<pid>-<n>-<label>`. It is removed when it is dropped (also by a panic), when a
//! signal ends the process, and, if the process was killed, by the next run, which finds that `<pid>` lives no more.

use crate::sys;
use ccfs_testkit::mounts::{loops_below, mounts_below};
use ccfs_testkit::run::start_time;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

const PREFIX: &str = "ccfs-test-";
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
static START: Once = Once::new();

/// A directory under `CCFS_TEST_DIR` (default /var/tmp: a disk, not memory).
pub struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    pub fn new(label: &str) -> WorkDir {
        START.call_once(start);
        let name = format!(
            "{PREFIX}{}-{}-{label}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = base().join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        LIVE.lock()
            .unwrap_or_else(|p| p.into_inner())
            .push(path.clone());
        WorkDir { path }
    }
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Notes a process that has to die with this directory.
    pub fn adopt(&self, pid: u32) {
        use std::io::Write;
        let file = self.path.join("pids");
        let mut f = std::fs::File::options()
            .create(true)
            .append(true)
            .open(file)
            .expect("pid list");
        writeln!(f, "{pid} {}", start_time(pid).unwrap_or(0)).expect("pid list");
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("CCFS_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.path.display());
            return;
        }
        remove(&self.path);
        LIVE.lock()
            .unwrap_or_else(|p| p.into_inner())
            .retain(|p| *p != self.path);
    }
}

fn base() -> PathBuf {
    std::env::var_os("CCFS_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

fn start() {
    sweep();
    sys::on_termination(|signal| {
        let all = std::mem::take(&mut *LIVE.lock().unwrap_or_else(|p| p.into_inner()));
        all.iter().for_each(|p| remove(p));
        std::process::exit(128 + signal);
    });
}

/// Removes what killed runs left.
fn sweep() {
    let Ok(dir) = std::fs::read_dir(base()) else {
        return;
    };
    for entry in dir.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let Some(pid) = rest.split('-').next().and_then(|p| p.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            remove(&entry.path());
        }
    }
}

fn remove(dir: &Path) {
    for line in std::fs::read_to_string(dir.join("pids"))
        .unwrap_or_default()
        .lines()
    {
        let mut words = line.split(' ').filter_map(|w| w.parse::<u64>().ok());
        if let (Some(pid), Some(started)) = (words.next(), words.next())
            && start_time(pid as u32) == Some(started)
        {
            let _ = sys::kill(pid as i32, libc::SIGKILL);
        }
    }
    for point in mounts_below(dir).iter().rev() {
        let _ = sys::umount_lazy(point);
    }
    for dev in loops_below(dir) {
        let _ = std::process::Command::new("losetup")
            .args(["-d", &dev])
            .output();
    }
    if mounts_below(dir).is_empty() {
        let _ = std::fs::remove_dir_all(dir);
    }
}
