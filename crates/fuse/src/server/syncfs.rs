//! Whether the server is told of sync calls that are about the whole volume: syncfs(2), sync(2), `mount -o remount,ro`.
//! Where it is not they succeed and make nothing durable, an exception to C3 that users are told of.
use std::path::Path;

/// First protocol, 7.x, in which a `fuseblk` mount gets SYNCFS requests (Linux 6.18). A plain `fuse` mount gets none in any. Earlier
/// kernels return success without asking; they give no other sign.
pub const FIRST_MINOR: u32 = 45;

/// Whether, and how, the server is told of these calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syncfs {
    /// The kernel tells.
    #[default]
    Works,
    /// The kernel does not tell, but the calls come all the same ([`crate::sentinel`]).
    Sentinel,
    /// They did.
    SentinelLost,
    /// Not told: it is a plain `fuse` mount.
    PlainFuse,
    /// With the minor of the protocol that was agreed on.
    OldKernel(u32),
    /// The same, and it lets nobody write to a mounted device, as the sentinel does.
    NoWriter(u32),
}

impl Syncfs {
    /// What the mount's type and the agreed protocol 7.`minor` give.
    pub fn of(fuseblk: bool, minor: u32) -> Self {
        match (fuseblk, minor) {
            (false, _) => Syncfs::PlainFuse,
            (true, ..FIRST_MINOR) => Syncfs::OldKernel(minor),
            (true, _) => Syncfs::Works,
        }
    }

    /// Whether the calls make something durable.
    pub fn works(self) -> bool {
        self.by().is_some()
    }

    /// Who tells of the calls.
    pub fn by(self) -> Option<&'static str> {
        match self {
            Syncfs::Works => Some("kernel"),
            Syncfs::Sentinel => Some("sentinel"),
            _ => None,
        }
    }

    /// Why it does not work, and what does: a line for `status`.
    pub fn why(self) -> Option<String> {
        match self {
            Syncfs::Works | Syncfs::Sentinel => None,
            Syncfs::SentinelLost => Some(
                "the process ccfs-dirtier was lost or is stopped, or a FUSE connection was aborted: until it goes on or the volume is \
                 mounted again syncfs and sync make nothing durable, fsync does, and so does `ccfs stream sync --all`"
                    .into(),
            ),
            Syncfs::PlainFuse => Some(
                "a plain FUSE mount: syncfs and sync make nothing durable, fsync does, and so does \
                 `ccfs stream sync --all`"
                    .into(),
            ),
            Syncfs::NoWriter(minor) => Some(format!(
                "a kernel before Linux 6.18 (FUSE 7.{minor}) with bdev_allow_write_mounted=0: syncfs, sync and remounting read-only \
                 without ccfs's helper make nothing durable, fsync does, and so does `ccfs stream sync --all`"
            )),
            Syncfs::OldKernel(minor) => Some(format!(
                "a kernel before Linux 6.18 (FUSE 7.{minor}): syncfs, sync and remounting read-only without ccfs's helper \
                 make nothing durable, fsync does, and so does `ccfs stream sync --all`"
            )),
        }
    }

    /// The warning at the mount on `dir`.
    pub fn warning(self, dir: &Path) -> Option<String> {
        let dir = dir.display();
        match self {
            Syncfs::Works | Syncfs::Sentinel | Syncfs::SentinelLost => None,
            Syncfs::PlainFuse => Some(format!(
                "{dir} is a plain FUSE mount: syncfs(2), sync(2) and `sync -f` do NOT make its data durable, and umount(8) \
                 returns before the volume is at rest; fsync(2) works, and `ccfs stream sync --all {dir}`"
            )),
            Syncfs::OldKernel(minor) => Some(format!(
                "this kernel (FUSE 7.{minor}; Linux 6.18 has 7.{FIRST_MINOR}) does not tell ccfs of syncfs(2), sync(2) and \
                 `sync -f`: they do NOT make the data of {dir} durable; fsync(2) works, and `ccfs stream sync --all {dir}`"
            )),
            Syncfs::NoWriter(_) => Some(format!(
                "this kernel, before Linux 6.18, lets nobody write to a mounted device (bdev_allow_write_mounted=0), by which ccfs \
                 is told of syncfs(2), sync(2) and `sync -f`: they do NOT make the data of {dir} durable; fsync(2) works, and \
                 `ccfs stream sync --all {dir}`. To have them, boot with bdev_allow_write_mounted=1"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels on which it was looked for what a killed daemon leaves after syncfs.
    #[test]
    fn only_what_was_agreed_counts() {
        for (linux, minor, works) in [
            ("5.15", 34, false),
            ("6.1", 37, false),
            ("6.12", 41, false),
            ("6.16", 44, false),
            ("6.18", 45, true),
        ] {
            let blocks = Syncfs::of(true, minor);
            assert_eq!(blocks.works(), works, "Linux {linux}");
            assert_eq!(blocks.why().is_none(), works, "Linux {linux}");
            assert_eq!(blocks.warning(Path::new("/m")).is_none(), works);
            assert_eq!(Syncfs::of(false, minor), Syncfs::PlainFuse);
        }
        let by = |told: Syncfs| (told.works(), told.by(), told.why().is_some());
        assert_eq!(by(Syncfs::Works), (true, Some("kernel"), false));
        assert_eq!(by(Syncfs::Sentinel), (true, Some("sentinel"), false));
        assert_eq!(by(Syncfs::SentinelLost), (false, None, true));
        assert_eq!(by(Syncfs::NoWriter(41)), (false, None, true));
        let no_writer = Syncfs::NoWriter(41).warning(Path::new("/m")).unwrap();
        assert!(no_writer.contains("bdev_allow_write_mounted=1"));
        let old = Syncfs::OldKernel(38).warning(Path::new("/m")).unwrap();
        assert!(old.contains("7.38") && !old.contains("plain FUSE") && !old.contains("umount"));
    }
}
