//! A working directory that takes its mounts, daemons and loop devices with it.
//!
//! It is named `ccfs-bench-<pid>-<n>` and goes when it is dropped, when a signal ends the program, or, if the program was
//! killed, at the start of the next run in the same place, which finds that `<pid>` lives no more.
use crate::outputs::warn;
use crate::{Because, Result, sys};
use ccfs_testkit::mounts::{loops_below, mounts_below};
use ccfs_testkit::run::start_time;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const PREFIX: &str = "ccfs-bench-";
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static NEXT: AtomicU32 = AtomicU32::new(0);

/// From here on SIGINT, SIGTERM and SIGHUP clean up before they end the program. Call it before any thread exists.
pub fn watch_signals() -> Result<()> {
    sys::on_termination(|signal| {
        // Held to the end: nobody makes a directory any more.
        let live = live();
        live.iter().for_each(|dir| remove(dir));
        warn(format!("ccfs-bench: ended by signal {signal}"));
        std::process::exit(128 + signal);
    })
    .because("cannot watch for signals")
}

fn live() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// While this is held no signal ends the program: programs that make mounts, loop devices and processes run under it, so that
/// the cleaning-up finds all that there is, and nothing comes after it.
pub struct Hold(#[allow(dead_code)] std::sync::MutexGuard<'static, Vec<PathBuf>>);

/// Waits for ever where a signal is ending the program.
pub fn hold() -> Hold {
    Hold(live())
}

/// The directory.
#[derive(Debug)]
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// Makes one below `base`, and removes what killed runs left there.
    pub fn new(base: &Path) -> Result<WorkDir> {
        sweep(base);
        let base = base.canonicalize().because(base.display())?;
        let n = NEXT.fetch_add(1, Relaxed);
        let path = base.join(format!("{PREFIX}{}-{n}", std::process::id()));
        let mut live = live();
        std::fs::create_dir(&path).because(path.display())?;
        live.push(path.clone());
        Ok(WorkDir(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Starts a process that ends with this directory. `what` is for its error.
    pub fn spawn(&self, command: &mut Command, what: &str) -> Result<Child> {
        let held = hold();
        let mut child = command.spawn().because(what)?;
        let adopted = self.adopt(child.id());
        drop(held);
        if adopted.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        adopted.map(|()| child)
    }

    /// Notes a process that has to end with this directory.
    fn adopt(&self, pid: u32) -> Result<()> {
        use std::io::Write;
        let list = self.0.join("pids");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(list);
        file.and_then(|mut f| writeln!(f, "{pid} {}", start_time(pid).unwrap_or(0)))
            .because("cannot note a process")
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let mut live = live();
        remove(&self.0);
        live.retain(|dir| *dir != self.0);
    }
}

fn sweep(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|n| n.split('-').next());
        let Some(pid) = pid.and_then(|p| p.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            remove(&entry.path());
        }
    }
}

fn remove(dir: &Path) {
    let pids = std::fs::read_to_string(dir.join("pids")).unwrap_or_default();
    for line in pids.lines() {
        let mut words = line.split(' ').filter_map(|w| w.parse::<u64>().ok());
        if let (Some(pid), Some(started)) = (words.next(), words.next())
            && start_time(pid as u32) == Some(started)
            && let Some(pid) = Pid::from_raw(pid as i32)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    for point in mounts_below(dir).iter().rev() {
        let _ = unmount(point, UnmountFlags::DETACH);
    }
    for device in loops_below(dir) {
        let _ = Command::new("losetup").args(["-d", &device]).output();
    }
    // Never through a mount that would not go.
    if mounts_below(dir).is_empty() {
        // A thread that is not stopped yet may make a file while its directory goes.
        for _ in 0..10 {
            if std::fs::remove_dir_all(dir).is_ok() || !dir.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_processes_with_it_and_sweeps() {
        let base = tempfile::tempdir().unwrap();
        // 4194304 is above the largest pid that Linux gives.
        let left = base.path().join(format!("{PREFIX}4194304-0"));
        std::fs::create_dir(&left).unwrap();
        let work = WorkDir::new(base.path()).unwrap();
        assert!(!left.exists() && work.path().is_dir());
        let mut child = work
            .spawn(Command::new("sleep").arg("1000"), "sleep")
            .unwrap();
        drop(work);
        assert!(!child.wait().unwrap().success());
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
