//! `LABEL=`, `UUID=`, `PARTLABEL=` and `PARTUUID=` in place of a device, or of a directory of the volume on it, as mount(8) takes them. An
//! image file or a device stands for a directory of its volume, too.
//!
//! Such a word names a device even where a file has that name: `./LABEL=x` is the file. Devices are asked by blkid(8), each anew and without
//! its cache: that sees what udev does not, and two devices of the same name. Where it finds none, because it may not read them, the
//! links count that udev made. An image file has no such name.
use crate::{mounts, tools};
use ccfs_command::{Failure, Outcome};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

/// Each kind with what messages call it, and the directory of udev's links.
const KINDS: [(&str, &str, &str); 4] = [
    ("LABEL", "label", "by-label"),
    ("UUID", "UUID", "by-uuid"),
    ("PARTLABEL", "partition label", "by-partlabel"),
    ("PARTUUID", "partition UUID", "by-partuuid"),
];

/// What was found: within a command a tag stays with its device.
static FOUND: Mutex<Vec<(OsString, PathBuf)>> = Mutex::new(Vec::new());

/// `KIND=VALUE`
#[derive(Debug, PartialEq)]
struct Tag {
    kind: &'static str,
    what: &'static str,
    links: &'static str,
    value: OsString,
}

/// True where the text begins as a tag does.
pub fn is_tag(text: &OsStr) -> bool {
    Tag::parse(text).is_some()
}

/// The device that a TARGET names; what is no tag is the path itself. `code`: of the command, if there is none or more than one.
pub fn device(target: &Path, code: u8) -> Outcome<PathBuf> {
    let text = target.as_os_str();
    let Some(tag) = Tag::parse(text) else {
        return Ok(target.into());
    };
    let mut known = FOUND.lock().unwrap_or_else(|e| e.into_inner());
    if let Some((_, device)) = known.iter().find(|(known, _)| known == text) {
        return Ok(device.clone());
    }
    let device = tag.find(code).map_err(|mut failure| {
        if target.symlink_metadata().is_ok() {
            let shown = target.display();
            failure.text += &format!("; the file of that name is ./{shown}");
        }
        failure
    })?;
    known.push((text.into(), device.clone()));
    Ok(device)
}

/// The directory that a DIR names: of a tag, where the device's volume is mounted; what is no tag is the path itself.
pub fn directory(dir: &Path, code: u8) -> Outcome<PathBuf> {
    let mounted = mounted(dir, code)?;
    Ok(mounted.into_iter().next().unwrap_or_else(|| dir.into()))
}

/// As `directory`, for who ends the mount: it has to be the only one.
pub fn only_directory(dir: &Path, code: u8) -> Outcome<PathBuf> {
    let mounted = mounted(dir, code)?;
    if mounted.len() > 1 {
        let dirs: Vec<String> = mounted.iter().map(|d| d.display().to_string()).collect();
        let text = format!(
            "the volume of {} is mounted on {}; name the directory",
            dir.display(),
            dirs.join(" and ")
        );
        return Err(Failure::new(code, text));
    }
    Ok(mounted.into_iter().next().unwrap_or_else(|| dir.into()))
}

/// Where the volume of a tag is mounted, at least once; of an image file or device, if it is; nothing for what is neither.
fn mounted(dir: &Path, code: u8) -> Outcome<Vec<PathBuf>> {
    let tagged = is_tag(dir.as_os_str());
    if !tagged && !is_volume(dir) {
        return Ok(Vec::new());
    }
    let device = device(dir, code)?;
    let device = mounts::absolute(&device).unwrap_or(device);
    let mounts = mounts::of_target(&device).unwrap_or_default();
    let dirs: Vec<PathBuf> = mounts
        .iter()
        .filter(|m| m.is_ccfs())
        .map(|m| m.dir.clone())
        .collect();
    if tagged && dirs.is_empty() {
        let (shown, name) = (device.display(), dir.display());
        let text = format!("{shown} ({name}) is not mounted with ccfs; mount it first");
        return Err(Failure::new(code, text));
    }
    Ok(dirs)
}

/// A file or block device, and no file of a mounted volume: that means the volume that it is on. A mount point is not looked at: its daemon
/// may be stopped.
fn is_volume(path: &Path) -> bool {
    if ccfs_remote::is_store(path.as_os_str()) {
        return true;
    }
    let Ok(full) = std::path::absolute(path) else {
        return false;
    };
    if !matches!(mounts::at(&full), Ok(None)) {
        return false;
    }
    let is_one = |m: Metadata| m.is_file() || m.file_type().is_block_device();
    let on_ccfs = || matches!(mounts::over(&full), Ok(Some(mount)) if mount.is_ccfs());
    !on_ccfs() && full.metadata().is_ok_and(is_one)
}

impl Tag {
    fn parse(text: &OsStr) -> Option<Tag> {
        let bytes = text.as_bytes();
        let (kind, what, links) = KINDS.into_iter().find(|(kind, ..)| {
            bytes.starts_with(kind.as_bytes()) && bytes.get(kind.len()) == Some(&b'=')
        })?;
        let mut value = bytes[kind.len() + 1..].to_vec();
        if kind.ends_with("UUID") {
            // As everybody shows those of ext4 and of partitions.
            value.make_ascii_lowercase();
        }
        Some(Tag {
            kind,
            what,
            links,
            value: OsString::from_vec(value),
        })
    }

    fn find(&self, code: u8) -> Outcome<PathBuf> {
        let shown = format!("{} {}", self.what, self.value.display());
        if self.value.is_empty() {
            let text = format!(
                "{}= has nothing behind it; `blkid` shows what there is",
                self.kind
            );
            return Err(Failure::new(code, text));
        }
        let mut found = self.probe();
        if found.is_empty() {
            let link = Path::new("/dev/disk")
                .join(self.links)
                .join(encode(&self.value));
            found.extend(link.canonicalize());
        }
        let found = uppermost(found, is_part);
        match &found[..] {
            [device] => Ok(device.clone()),
            [] => {
                let all = match rustix::process::geteuid().is_root() {
                    true => "",
                    false => ", as root all of it",
                };
                let text = format!("no device has the {shown}; `blkid` shows what there is{all}");
                Err(Failure::new(code, text))
            }
            several => {
                let names: Vec<String> = several.iter().map(|d| d.display().to_string()).collect();
                let text = format!(
                    "more than one device has the {shown}: {}; name the device itself",
                    names.join(", ")
                );
                Err(Failure::new(code, text))
            }
        }
    }

    /// The devices that have it, as far as they can be read. A blkid that does not run finds none.
    fn probe(&self) -> Vec<PathBuf> {
        let mut wanted = OsString::from(self.kind);
        wanted.push("=");
        wanted.push(&self.value);
        let ran = tools::command("blkid")
            .args(["-c", "/dev/null", "-o", "device", "-t"])
            .arg(wanted)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let out = ran.map(|ran| ran.stdout).unwrap_or_default();
        let lines = out.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| OsStr::from_bytes(line).into()).collect()
    }
}

/// Of several devices those that are not parts of others: a path of a multipath device, and what mirrors have in common, read the same.
fn uppermost(found: Vec<PathBuf>, is_part: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    if found.len() < 2 {
        return found;
    }
    let free: Vec<PathBuf> = found.iter().filter(|d| !is_part(d)).cloned().collect();
    if free.is_empty() { found } else { free }
}

/// Whether another device (device mapper, RAID) is made of this one.
fn is_part(device: &Path) -> bool {
    let device = device.canonicalize().unwrap_or(device.into());
    let name = device.file_name().unwrap_or_default();
    let holders = Path::new("/sys/class/block").join(name).join("holders");
    std::fs::read_dir(holders).is_ok_and(|mut all| all.next().is_some())
}

/// As udev names its links: letters, digits, a few signs and UTF-8 as they are, else \xHH.
fn encode(value: &OsStr) -> OsString {
    let mut out = Vec::new();
    for chunk in value.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                _ if !c.is_ascii() || c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) => {
                    out.extend(c.to_string().bytes());
                }
                _ => out.extend(format!("\\x{:02x}", u32::from(c)).bytes()),
            }
        }
        for byte in chunk.invalid() {
            out.extend(format!("\\x{byte:02x}").bytes());
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_from_paths() {
        let parsed = |text: &str| Tag::parse(OsStr::new(text)).map(|t| (t.kind, t.value));
        for (text, kind, value) in [
            ("LABEL=Work", "LABEL", "Work"),
            ("LABEL=a=b c", "LABEL", "a=b c"),
            ("LABEL=", "LABEL", ""),
            ("UUID=ABCD-12", "UUID", "abcd-12"),
            ("PARTLABEL=Data", "PARTLABEL", "Data"),
            ("PARTUUID=0A-01", "PARTUUID", "0a-01"),
        ] {
            assert_eq!(parsed(text), Some((kind, value.into())), "{text}");
        }
        for path in [
            "./LABEL=x",
            "/dev/sda",
            "LABEL",
            "label=x",
            "XLABEL=x",
            "ID=x",
        ] {
            assert_eq!(parsed(path), None, "{path}");
            assert_eq!(device(Path::new(path), 1).unwrap(), Path::new(path));
        }
    }

    #[test]
    fn parts_of_other_devices_do_not_count() {
        let left = |found: &[&str]| {
            let found = found.iter().map(PathBuf::from).collect();
            let left = uppermost(found, |d| d.starts_with("/part"));
            let names = left.iter().map(|d| d.display().to_string());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(left(&["/part/a", "/dev/m", "/part/b"]), "/dev/m");
        assert_eq!(left(&["/dev/a", "/dev/b"]), "/dev/a /dev/b");
        // Where nothing else would be left they are named.
        assert_eq!(left(&["/part/a", "/part/b"]), "/part/a /part/b");
        assert_eq!(left(&["/part/a"]), "/part/a");
    }

    #[test]
    fn links_are_named_as_udev_does() {
        for (label, name) in [
            ("work", "work"),
            ("a b/c", "a\\x20b\\x2fc"),
            ("a\\b\"", "a\\x5cb\\x22"),
            ("#+-.:=@_", "#+-.:=@_"),
            ("größe", "größe"),
        ] {
            assert_eq!(encode(OsStr::new(label)), OsStr::new(name));
        }
        assert_eq!(encode(OsStr::from_bytes(b"a\xff")), OsStr::new("a\\xff"));
    }
}
