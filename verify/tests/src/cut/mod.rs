//! One program, cut off in the same way on ext4 and on ccfs: what is left of its files.
//!
//! The program is examples/never-syncs.sh. Both volumes are mounted, the program runs on both at the same time, and after a while
//! FS_IOC_SHUTDOWN with "no log flush" stops both: what is in memory is lost. Then both are mounted again, which recovers them.
//! The host goes on, so nothing is lost that the file system had given to its device: a power cut can take more.
mod report;

use crate::harness::{Fs, GOING_NOLOGFLUSH, Volume, have, run_ok};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use report::document;

/// The program, as it is run.
pub const PROGRAM: &str = include_str!("../../../../examples/never-syncs.sh");
/// Size of each volume, MiB.
const VOLUME_MIB: u64 = 1024;
/// More than a program does before it is cut.
const STEPS_MAX: u64 = 1_000_000;

/// All that was measured, with where and how.
#[derive(Serialize, Deserialize)]
pub struct Results {
    pub command: String,
    pub date: String,
    pub machine: String,
    pub kernel: String,
    /// Load average over a minute, before the first round.
    pub load: String,
    pub ccfs: String,
    pub program: String,
    pub cut: String,
    pub rounds: Vec<Round>,
}

/// One cut of both file systems.
#[derive(Serialize, Deserialize)]
pub struct Round {
    /// When both were cut, seconds after the programs began.
    pub cut_after_s: u64,
    pub ext4: Left,
    pub ccfs: Left,
}

/// What was there after the next mount.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The step in which the program was stopped.
    pub last_step: u64,
    /// Lines of the journal that are there, whole and in order, from the first one on.
    pub journal_lines: u64,
    /// Bytes of the journal behind them.
    pub journal_rest: u64,
    /// Files done.N.
    pub done_files: u64,
    /// Those of them that have their content.
    pub done_whole: u64,
    /// The settings' number; `None`: the file is not there, or is not whole.
    pub settings: Option<u64>,
}

impl Left {
    /// Whether a crash between two steps of the program, or within one, can leave this.
    pub fn is_prefix(&self) -> bool {
        let n = self.journal_lines;
        let settings = self.settings.unwrap_or(0);
        self.journal_rest == 0
            && self.done_whole == self.done_files
            && (settings == n || settings + 1 == n)
            && (self.done_files == settings || self.done_files + 1 == settings)
            && self.done_files + 1 >= n
    }

    /// Reads a directory in which the program worked up to `last_step`.
    pub fn read(dir: &Path, last_step: u64) -> Left {
        let text = |name: &str| std::fs::read(dir.join(name)).unwrap_or_default();
        let journal = text("journal");
        let mut lines = 0;
        let mut at = 0;
        loop {
            let line = format!("entry {}\n", lines + 1);
            if !journal[at..].starts_with(line.as_bytes()) {
                break;
            }
            lines += 1;
            at += line.len();
        }
        let number = |name: &str| -> Option<u64> {
            let text = String::from_utf8(text(name)).ok()?;
            text.strip_suffix('\n')?.parse().ok()
        };
        let entries = std::fs::read_dir(dir).expect("the volume's directory");
        let done: Vec<u64> = entries
            .filter_map(|e| {
                let name = e.expect("an entry").file_name();
                name.to_str()?.strip_prefix("done.")?.parse().ok()
            })
            .collect();
        let whole = done
            .iter()
            .filter(|n| number(&format!("done.{n}")) == Some(**n));
        Left {
            last_step,
            journal_lines: lines,
            journal_rest: (journal.len() - at) as u64,
            done_files: done.len() as u64,
            done_whole: whole.count() as u64,
            settings: number("settings"),
        }
    }
}

/// A volume with the program at work on it.
struct Working {
    volume: Volume,
    program: Child,
}

impl Working {
    fn start(fs: Fs) -> Working {
        let volume = Volume::new(fs, "cut", VOLUME_MIB);
        let mut command = Command::new("sh");
        command
            .args(["-c", PROGRAM, "never-syncs.sh"])
            .arg(volume.mnt())
            .arg(STEPS_MAX.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let program = command.spawn().expect("start the program");
        volume.adopt(program.id());
        Working { volume, program }
    }

    /// After the cut: waits for the program's end, mounts the volume again, and looks.
    fn look(mut self) -> Left {
        let output = self.program.wait_with_output().expect("the program's end");
        let said = String::from_utf8_lossy(&output.stdout);
        let last = said.split_whitespace().last().and_then(|n| n.parse().ok());
        let last = last.unwrap_or_else(|| panic!("the program said {said:?}"));
        self.volume.umount_stopped();
        self.volume.mount();
        let left = Left::read(self.volume.mnt(), last);
        self.volume.umount();
        left
    }
}

/// Cuts both file systems `cut_after_s` seconds after the programs began.
pub fn round(cut_after_s: u64) -> Round {
    let both = [Fs::Ext4, Fs::Ccfs].map(Working::start);
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(cut_after_s).saturating_sub(begun.elapsed()));
    for working in &both {
        let cut = working.volume.shut_down(GOING_NOLOGFLUSH);
        assert_eq!(cut, Ok(()), "FS_IOC_SHUTDOWN");
    }
    let [ext4, ccfs] = both.map(Working::look);
    Round {
        cut_after_s,
        ext4,
        ccfs,
    }
}

fn first_line(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// This machine, in words.
fn machine() -> String {
    let model = first_line("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kib = first_line("/proc/meminfo", "MemTotal").unwrap_or_default();
    let kib: u64 = kib.trim_end_matches(" kB").parse().unwrap_or(0);
    format!("{model} with {cores} cores, {} MiB of memory", kib >> 10)
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_string()
}

/// One round for each of `cuts_s`, with where and how. `command` is what the user typed.
pub fn measure(command: &str, cuts_s: &[u64]) -> Results {
    assert!(have("mke2fs"), "needs e2fsprogs");
    let say = |program: &str, args: &[&str]| run_ok(program, args).trim().to_string();
    Results {
        command: command.to_string(),
        date: say("date", &["-u", "+%F %H:%M UTC"]),
        machine: machine(),
        kernel: say("uname", &["-sr"]),
        load: load(),
        ccfs: say(crate::harness::ccfs_program(), &["version"]),
        program: "examples/never-syncs.sh".to_string(),
        cut: "FS_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH, on both at the same time"
            .to_string(),
        rounds: cuts_s.iter().map(|after| round(*after)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::WorkDir;

    fn left(journal: u64, settings: Option<u64>, done: u64) -> Left {
        Left {
            last_step: 9,
            journal_lines: journal,
            journal_rest: 0,
            done_files: done,
            done_whole: done,
            settings,
        }
    }

    #[test]
    fn only_prefixes_of_the_program_are_prefixes() {
        let prefixes = [
            left(0, None, 0),
            left(1, None, 0),
            left(1, Some(1), 0),
            left(1, Some(1), 1),
            left(5, Some(4), 4),
            left(5, Some(5), 4),
            left(5, Some(5), 5),
        ];
        for prefix in prefixes {
            assert!(prefix.is_prefix(), "{prefix:?}");
        }
        let others = [
            left(0, Some(1), 0),
            left(0, None, 3),
            left(4, Some(5), 4),
            left(5, Some(3), 3),
            left(5, Some(4), 5),
            left(5, Some(5), 3),
            left(5, Some(4), 3),
            left(5, None, 5),
            Left {
                done_whole: 4,
                ..left(5, Some(5), 5)
            },
            Left {
                journal_rest: 1,
                ..left(5, Some(5), 5)
            },
        ];
        for other in others {
            assert!(!other.is_prefix(), "{other:?}");
        }
    }

    #[test]
    fn what_is_not_whole_does_not_count() {
        let dir = WorkDir::new("cut-unit");
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put("journal", "entry 1\nentry 2\nent");
        put("done.1", "1\n");
        put("done.2", "");
        put("settings", "2\n");
        let seen = Left::read(dir.path(), 3);
        let expected = Left {
            last_step: 3,
            journal_lines: 2,
            journal_rest: 3,
            done_files: 2,
            done_whole: 1,
            settings: Some(2),
        };
        assert_eq!(seen, expected);
        put("settings", "");
        put("journal", "\0\0\0\0");
        let seen = Left::read(dir.path(), 3);
        assert_eq!(
            (seen.journal_lines, seen.journal_rest, seen.settings),
            (0, 4, None)
        );
    }
}
