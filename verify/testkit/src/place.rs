//! Directories for tests' files.
use crate::mounts::mounts_below;
use crate::program::ccfs_with;
use std::path::PathBuf;
use std::process::Command;

/// A directory for a test's files; unmounts what is left mounted in it, and removes it.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// An empty one.
    pub fn new() -> Place {
        let dir = tempfile::Builder::new()
            .prefix("ccfs-test-")
            .tempdir()
            .expect("a directory for the test");
        Place { dir }
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path as text, for command lines.
    pub fn text(&self, name: &str) -> String {
        self.path(name)
            .to_str()
            .expect("a path in UTF-8")
            .to_string()
    }

    /// A fresh directory.
    pub fn subdir(&self, name: &str) -> String {
        std::fs::create_dir(self.path(name)).expect("a directory");
        self.text(name)
    }

    /// A fresh volume made by `ccfs mkfs`.
    pub fn volume(&self, name: &str, size: &str) -> String {
        let path = self.text(name);
        let made = ccfs_with(&["mkfs", "-s", size, &path]);
        assert_eq!(made.code, 0, "{}", made.err);
        path
    }
}

impl Default for Place {
    fn default() -> Place {
        Place::new()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for dir in mounts_below(self.dir.path()).iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(dir).status();
        }
    }
}
