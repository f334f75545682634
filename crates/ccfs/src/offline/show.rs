//! `ccfs ls` and `ccfs tree`.
use super::place::Place;
use super::{CODE, close, explain, open, silent_failure};
use crate::cli::{LsArgs, TreeArgs};
use ccfs_command::{Failure, Outcome, output::print_json, say, warn};
use ccfs_offline::{Access, Attr, Entry, Error, Offline, show_name};
use serde::Serialize;
use std::path::Path;

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Listing {
    schema: u32,
    image: String,
    path: String,
    entries: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    name_hex: String,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: String,
    inode: u64,
    links: u64,
    uid: u64,
    gid: u64,
    size_bytes: u64,
    blocks_512: u64,
    mtime: i64,
    mtime_ns: u64,
    target: Option<String>,
    error: String,
}

pub fn ls(args: &LsArgs) -> Outcome<()> {
    let place = Place::parse(&args.place)?;
    let volume = open(&place.image, Access::ReadOnly)?;
    let listed = list(&volume, &place, args);
    listed.and(close(&place.image, volume))
}

fn list(volume: &Offline, place: &Place, args: &LsArgs) -> Outcome<()> {
    let fail = |e: Error| Failure::new(CODE, explain(&place.image, &e));
    // A symlink is shown itself in the long form, as ls(1) does, unless a slash follows.
    let attr = match args.long || args.json {
        true => volume.lstat(&place.path),
        false => volume.stat(&place.path),
    };
    let attr = attr.map_err(fail)?;
    let base = place.path.as_path();
    let (entries, dir) = if letter(&attr) == 'd' {
        (volume.list(base).map_err(fail)?, Some(base))
    } else {
        let name = base.as_os_str().as_encoded_bytes().to_vec();
        let entry = Entry {
            name,
            attr: Ok(attr),
        };
        (vec![entry], None)
    };
    let mut damaged = false;
    for entry in &entries {
        if let Err(e) = &entry.attr {
            warn!("ccfs ls: {}", explain(&place.image, e));
            damaged = true;
        }
    }
    if args.json {
        print_json(&Listing {
            schema: 1,
            image: place.image.display().to_string(),
            path: place.shown(),
            entries: entries.iter().map(|e| listed(volume, dir, e)).collect(),
        })?;
    } else {
        for entry in &entries {
            say!("{}", line(volume, dir, entry, args.long));
        }
    }
    if damaged {
        Err(silent_failure())
    } else {
        Ok(())
    }
}

/// The target of a symlink in the directory `dir`, or of one that was named itself.
fn target(volume: &Offline, dir: Option<&Path>, entry: &Entry) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let name = Path::new(std::ffi::OsStr::from_bytes(&entry.name));
    let path = dir.map_or(name.to_path_buf(), |dir| dir.join(name));
    match &entry.attr {
        Ok(attr) if letter(attr) == 'l' => volume.read_link(path).ok(),
        _ => None,
    }
}

fn listed(volume: &Offline, dir: Option<&Path>, entry: &Entry) -> Listed {
    let attr = entry.attr.as_ref().ok();
    let number = |f: &dyn Fn(&Attr) -> u64| attr.map_or(0, f);
    Listed {
        name: String::from_utf8_lossy(&entry.name).into_owned(),
        name_hex: entry.name.iter().map(|b| format!("{b:02x}")).collect(),
        kind: attr.map_or("unknown", kind),
        mode: attr.map_or(String::new(), |a| format!("{:04o}", a.mode & 0o7777)),
        inode: number(&|a| a.ino.into()),
        links: number(&|a| a.nlink.into()),
        uid: number(&|a| a.uid.into()),
        gid: number(&|a| a.gid.into()),
        size_bytes: number(&|a| a.size),
        blocks_512: number(&|a| a.blocks512),
        mtime: attr.map_or(0, |a| a.mtime.0),
        mtime_ns: number(&|a| a.mtime.1.into()),
        target: target(volume, dir, entry).map(|t| String::from_utf8_lossy(&t).into_owned()),
        error: match &entry.attr {
            Ok(_) => String::new(),
            Err(e) => e.to_string(),
        },
    }
}

fn line(volume: &Offline, dir: Option<&Path>, entry: &Entry, long: bool) -> String {
    let name = show_name(&entry.name);
    if !long {
        return name;
    }
    let Ok(attr) = &entry.attr else {
        return format!("?????????? ? ? ? ? ? {name}");
    };
    let arrow = match target(volume, dir, entry) {
        Some(target) => format!(" -> {}", show_name(&target)),
        None => String::new(),
    };
    format!(
        "{}{} {:>3} {:>5} {:>5} {:>10} {} {name}{arrow}",
        letter(attr),
        rights(attr.mode),
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        date(attr.mtime.0),
    )
}

fn kind(attr: &Attr) -> &'static str {
    match attr.file_type() {
        libc::S_IFREG => "file",
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "character device",
        libc::S_IFBLK => "block device",
        _ => "unknown",
    }
}

fn letter(attr: &Attr) -> char {
    match kind(attr) {
        "file" => '-',
        "directory" => 'd',
        "symlink" => 'l',
        "fifo" => 'p',
        "socket" => 's',
        "character device" => 'c',
        "block device" => 'b',
        _ => '?',
    }
}

/// As ls(1) shows them: `rwsr-xr-t`.
fn rights(mode: u16) -> String {
    let mut out = String::new();
    for (shift, special, with, without) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// Day and minute in UTC.
fn date(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years from March on, so that a leap day is the last one; eras of 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day_of_month:02} {:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60
    )
}

pub fn tree(args: &TreeArgs) -> Outcome<()> {
    let place = Place::parse(&args.place)?;
    let volume = open(&place.image, Access::ReadOnly)?;
    let shown = show_tree(&volume, &place);
    shown.and(close(&place.image, volume))
}

fn show_tree(volume: &Offline, place: &Place) -> Outcome<()> {
    say!("{}", place.shown());
    let (mut dirs, mut files, mut damaged) = (0u64, 0u64, false);
    let visited = volume.visit(&place.path, &mut |depth, _, entry| {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                warn!("ccfs tree: {}", explain(&place.image, &e));
                damaged = true;
                return;
            }
        };
        let mark = match &entry.attr {
            Ok(attr) if letter(attr) == 'd' => {
                dirs += 1;
                "/"
            }
            Ok(_) => {
                files += 1;
                ""
            }
            Err(e) => {
                warn!("ccfs tree: {}", explain(&place.image, e));
                damaged = true;
                " (damaged)"
            }
        };
        // A tree that is thousands of levels deep is not drawn to scale.
        let indent = "  ".repeat(depth.min(64) + 1);
        say!("{indent}{}{mark}", show_name(&entry.name));
    });
    visited.map_err(|e| Failure::new(CODE, explain(&place.image, &e)))?;
    say!("{dirs} directories, {files} files");
    if damaged {
        Err(silent_failure())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{date, rights};

    #[test]
    fn dates_and_rights_are_shown_as_usual() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_827_696), "2000-02-29 12:34");
        assert_eq!(date(-1), "1969-12-31 23:59");
        assert_eq!(date(4_107_542_399), "2100-02-28 23:59");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00");
        assert_eq!(rights(0o4755), "rwsr-xr-x");
        assert_eq!(rights(0o3640), "rw-r-S--T");
    }
}
