//! Files that are kept from one command to the next, and are only believed where nobody else could have written them.
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, open, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// No plan is as large as that.
const BYTES_MAX: u64 = 16 << 20;

/// A directory for them. It is root's or the user's, and nobody else can write there.
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens one; what is missing of it is made. Errors: as of mkdir(2) and open(2); it is somebody else's.
    pub fn open(path: &Path) -> io::Result<Folder> {
        make(path)?;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = open(path, how, Mode::empty())?;
        match is_trusted(&fstat(&dir)?) {
            true => Ok(Folder(dir)),
            false => Err(io::Error::other("others can write there")),
        }
    }

    /// A file's content. `None`: there is none, or others could have written it. Errors: as of read(2).
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(&self.0, name, how, Mode::empty()) else {
            return Ok(None);
        };
        let stat = fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !is_trusted(&stat) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        File::from(file).take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Puts a file there, in the place of what has its name. Whoever opens it at that moment has the one or the other, whole.
    /// Errors: as of write(2) and rename(2).
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = format!(".{name}.{}", std::process::id());
        let written = self.write_new(&new, bytes);
        let renamed = written.and_then(|()| Ok(renameat(&self.0, &new, &self.0, name)?));
        if renamed.is_err() {
            let _ = unlinkat(&self.0, &new, AtFlags::empty());
        }
        renamed
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // Of a process that was killed, and had this one's number.
        match unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let mode = Mode::from_raw_mode(0o644);
        let file = openat(&self.0, name, how, mode)?;
        // Programs of other users read root's, whatever the umask is.
        fchmod(&file, mode)?;
        File::from(file).write_all(bytes)
    }
}

/// Nobody but root and this user can have written it, or can write it.
fn is_trusted(stat: &Stat) -> bool {
    let is_ours = stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
    is_ours && stat.st_mode & 0o022 == 0
}

/// Makes a directory, and those above it; root's are for others to read.
fn make(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        make(above)?;
    }
    let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(dir) {
        // Another command did, at this moment.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    rustix::fs::chmod(dir, Mode::from_raw_mode(mode))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_what_nobody_else_can_write_is_believed() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path().join("a/b");
        let folder = Folder::open(&dir).expect("a folder");
        assert_eq!(folder.read("plan").expect("read"), None);
        for text in [&b"one"[..], b"other"] {
            folder.write("plan", text).expect("write");
            assert_eq!(folder.read("plan").expect("read").as_deref(), Some(text));
        }
        assert_eq!(fs::read_dir(&dir).expect("list").count(), 1);
        let set = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        };
        set(&dir.join("plan"), 0o664);
        assert_eq!(folder.read("plan").expect("read"), None);
        folder.write("plan", b"again").expect("write");
        assert!(folder.read("plan").expect("read").is_some());
        std::os::unix::fs::symlink("plan", dir.join("link")).expect("a link");
        assert_eq!(folder.read("link").expect("read"), None);
        assert_eq!(folder.read(".").expect("read"), None);
        set(&dir, 0o777);
        assert!(Folder::open(&dir).is_err());
        set(&dir, 0o755);
        std::os::unix::fs::symlink(&dir, place.path().join("link")).expect("a link");
        assert!(Folder::open(&place.path().join("link")).is_err());
    }
}
