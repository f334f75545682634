//! Programs of other packages that the commands start.
use std::path::Path;
use std::process::Command;

/// A command for a system tool. A user's PATH often lacks the directories in which Debian keeps them.
pub fn command(name: &str) -> Command {
    let places = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).join(name));
    match places.into_iter().find(|p| p.exists()) {
        Some(path) => Command::new(path),
        None => Command::new(name),
    }
}

/// A path that a tool does not take for an option.
pub fn plain_path(path: &Path) -> std::path::PathBuf {
    if path.is_absolute() {
        path.to_path_buf()
    } else {
        Path::new(".").join(path)
    }
}
