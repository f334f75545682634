//! Lines of /proc/PID/mountinfo (proc(5)).
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One line of it.
#[derive(Debug, Clone)]
pub struct Line {
    /// The kernel's number of the mount; that of no other mount in any namespace, as long as it lives.
    pub id: u64,
    /// Numbers of the device, `MAJOR:MINOR`.
    pub device: String,
    /// Where it is mounted, as this process sees it.
    pub dir: PathBuf,
    /// Nothing can be changed by this mount, whatever others of the file system allow.
    pub read_only: bool,
    /// Type of the file system, with its subtype.
    pub fstype: String,
    /// The device, or what the file system calls its source.
    pub source: PathBuf,
}

impl Line {
    /// True for a mount that ccfs serves.
    pub fn is_ccfs(&self) -> bool {
        matches!(self.fstype.as_str(), "fuseblk.ccfs" | "fuse.ccfs")
    }
}

/// All lines, in mount order. Those that do not parse are left out.
pub fn lines(text: &[u8]) -> impl Iterator<Item = Line> {
    text.split(|b| *b == b'\n').filter_map(parse)
}

fn parse(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8_lossy(fields.nth(1)?).into_owned();
    let dir = unescape(fields.nth(1)?);
    let read_only = fields.next()?.split(|b| *b == b',').any(|o| o == b"ro");
    let mut rest = fields.skip_while(|f| *f != b"-").skip(1);
    let fstype = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = unescape(rest.next()?);
    Some(Line {
        id,
        device,
        dir,
        read_only,
        fstype,
        source,
    })
}

/// Undoes the octal escapes (`\040` for a space).
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field
            .get(at + 1..at + 4)
            .filter(|d| field[at] == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match octal {
            Some(d) => {
                out.push(
                    d.iter()
                        .fold(0u8, |n, c| n.wrapping_mul(8).wrapping_add(c - b'0')),
                );
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn mountinfo_is_parsed_with_its_escapes() {
        let line = br"98 31 7:0 / /mnt/with\040space rw,relatime shared:1 master:2 - fuseblk.ccfs /dev/loop0 rw,user_id=0";
        let m = parse(line).unwrap();
        assert_eq!(
            (m.id, m.device.as_str(), m.dir.as_path()),
            (98, "7:0", Path::new("/mnt/with space"))
        );
        assert_eq!(
            (m.fstype.as_str(), m.source.as_path()),
            ("fuseblk.ccfs", Path::new("/dev/loop0"))
        );
        assert!(m.is_ccfs() && !m.read_only);
        let read_only = br"99 31 7:0 /dir /view ro,relatime - fuseblk.ccfs /dev/loop0 rw";
        assert!(parse(read_only).unwrap().read_only);
        assert_eq!(lines(b"garbage\n\n").count(), 0);
    }
}
