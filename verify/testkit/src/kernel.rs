//! Which kernel runs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A kernel's version, as far as it matters here: major and minor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// Of `6.1`, `6.12.57+deb13-amd64` and the like.
    pub fn of(text: &str) -> Option<Version> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(Version(next()?, next()?))
    }
    /// Of the kernel that runs.
    pub fn running() -> Version {
        Version::of(&release()).expect("a kernel's release begins with its version")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// As uname(1) shows it.
pub fn release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    text.trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let of = |text| Version::of(text).unwrap();
        assert_eq!(of("6.12.57+deb13-amd64"), Version(6, 12));
        assert_eq!(of("7.0-rc3"), Version(7, 0));
        assert!(of("6.1.0-41-amd64") < of("6.12") && of("5.15") < of("6.1"));
        assert_eq!(Version::of("linux"), None);
    }
}
