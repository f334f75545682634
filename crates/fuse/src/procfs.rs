//! What /proc says about a thread.
use std::fs;
use std::path::PathBuf;

/// A mounted proc file system (tests use a made-up one).
#[derive(Debug)]
pub struct Proc(pub PathBuf);

/// From /proc/TID/stat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The thread's name.
    pub comm: Vec<u8>,
    /// Process id of the parent process.
    pub parent: u32,
    /// When it started, clock ticks since boot. With the tid it names one thread for as long as the machine runs.
    pub start_ticks: u64,
}

impl Proc {
    /// `None`: no such thread (any more), or not visible from here.
    pub fn stat(&self, tid: u32) -> Option<Stat> {
        parse_stat(&fs::read(self.0.join(tid.to_string()).join("stat")).ok()?)
    }

    /// Process id of the thread's process (its leader's tid).
    pub fn process(&self, tid: u32) -> Option<u32> {
        let status = fs::read(self.0.join(tid.to_string()).join("status")).ok()?;
        let line = status
            .split(|&b| b == b'\n')
            .find_map(|line| line.strip_prefix(b"Tgid:"))?;
        std::str::from_utf8(line).ok()?.trim().parse().ok()
    }

    /// Whether thread `tid` of a process started `child` (needs CONFIG_PROC_CHILDREN, otherwise false).
    pub fn is_child_of_thread(&self, process: u32, tid: u32, child: u32) -> bool {
        let path = self
            .0
            .join(process.to_string())
            .join("task")
            .join(tid.to_string())
            .join("children");
        let children = fs::read_to_string(path).unwrap_or_default();
        children
            .split_ascii_whitespace()
            .any(|word| word.parse() == Ok(child))
    }

    pub fn exists(&self, tid: u32) -> bool {
        self.0.join(tid.to_string()).exists()
    }
}

/// `pid (comm) state ppid ...`; the name may hold anything, parentheses included. Start time is field 22.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|&b| b == b'(')?;
    let close = text.iter().rposition(|&b| b == b')')?;
    let comm = text.get(open + 1..close)?.to_vec();
    let mut fields = std::str::from_utf8(&text[close + 1..])
        .ok()?
        .split_ascii_whitespace();
    // Field 3 (state) is the first one here.
    let parent = fields.nth(1)?.parse().ok()?;
    let start_ticks = fields.nth(22 - 5)?.parse().ok()?;
    Some(Stat {
        comm,
        parent,
        start_ticks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_hostile_name() {
        let text = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let stat = parse_stat(text).unwrap();
        assert_eq!(
            stat,
            Stat {
                comm: b"a) R 1 (b".to_vec(),
                parent: 7,
                start_ticks: 987_654
            }
        );
        for cut in 0..text.len() - 4 {
            let _ = parse_stat(&text[..cut]);
        }
        assert_eq!(parse_stat(b")("), None);
    }

    #[test]
    fn own_process() {
        let proc = Proc("/proc".into());
        let pid = std::process::id();
        assert_eq!(proc.process(pid), Some(pid));
        let stat = proc.stat(pid).unwrap();
        assert!(stat.start_ticks > 0 && stat.parent > 0);
    }
}
