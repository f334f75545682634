//! Which processes changed something lately, and in which stream: "who" in `ccfs top`. Not exact, and nothing depends on it.
//!
//! An operation costs two loads here, and two stores when another thread had its slot. A slot is found by thread id, so two threads can
//! share one; the one that changed something last is shown.
use ccfs_engine::StreamId;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const SLOTS: usize = 256;
/// Longest name of a program that is shown, bytes.
const EXE_MAX: usize = 256;

#[derive(Debug, Default)]
struct Slot {
    tid: AtomicU32,
    stream: AtomicU64,
}

/// A table of threads and their streams.
#[derive(Debug)]
pub struct Recent(Box<[Slot]>);

/// A living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its program; its name where that cannot be seen.
    pub exe: String,
}

impl Default for Recent {
    fn default() -> Self {
        Recent((0..SLOTS).map(|_| Slot::default()).collect())
    }
}

impl Recent {
    /// Thread `tid` changes something in `stream`.
    pub fn note(&self, tid: u32, stream: StreamId) {
        let slot = &self.0[tid as usize % SLOTS];
        if slot.stream.load(Relaxed) != stream.0 {
            slot.stream.store(stream.0, Relaxed);
        }
        if slot.tid.load(Relaxed) != tid {
            slot.tid.store(tid, Relaxed);
        }
    }

    /// The processes that are still there, by stream and process id. Forgets the others.
    pub fn list(&self) -> Vec<(u64, Process)> {
        let mut list: Vec<(u64, Process)> = Vec::new();
        for slot in &self.0 {
            let (tid, stream) = (slot.tid.load(Relaxed), slot.stream.load(Relaxed));
            if tid == 0 {
                continue;
            }
            match process_of(tid) {
                Some(process) => list.push((stream, process)),
                None => slot.tid.store(0, Relaxed),
            }
        }
        list.sort_by_key(|(stream, p)| (*stream, p.pid));
        list.dedup_by_key(|(stream, p)| (*stream, p.pid));
        list
    }
}

/// The process of a thread. `None`: it has ended.
pub fn process_of(tid: u32) -> Option<Process> {
    let dir = PathBuf::from(format!("/proc/{tid}"));
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.map(|rest| rest.trim().to_string())
    };
    let exe = match fs::read_link(dir.join("exe")) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => field("Name:")?,
    };
    Some(Process {
        pid: field("Tgid:")?.parse().ok()?,
        // Real, effective, saved, file system.
        uid: field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?,
        exe: cut(exe, EXE_MAX),
    })
}

/// At most `max` bytes of a text, and a mark if that is not all.
pub fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push('\u{2026}');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_threads_are_found_and_dead_ones_forgotten() {
        let recent = Recent::default();
        let own = std::process::id();
        recent.note(own, StreamId(7));
        // No thread has this number: pids end at 2^22.
        recent.note((1 << 30) + 1 + own % SLOTS as u32, StreamId(8));
        let list = recent.list();
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!((list[0].0, list[0].1.pid), (7, own));
        assert!(list[0].1.exe.starts_with('/'), "{list:?}");
        recent.note(own, StreamId(9));
        assert_eq!(recent.list()[0].0, 9);
    }

    #[test]
    fn texts_are_cut_at_characters() {
        assert_eq!(cut("abc".into(), 3), "abc");
        assert_eq!(cut("abcd".into(), 3), "abc\u{2026}");
        assert_eq!(cut("a\u{e4}\u{e4}".into(), 2), "a\u{2026}");
    }
}
