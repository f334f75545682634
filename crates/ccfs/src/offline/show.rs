//! `ccfs ls` and `ccfs tree`.
use super::place::Place;
use super::{CODE, close, explain, open, silent_failure};
use crate::cli::{LsArgs, TreeArgs};
use ccfs_command::{Failure, Outcome, output::print_json, say, size, warn};
use ccfs_offline::{Access, Attr, Entry, Error, Offline, show_name};
use ccfs_remote::date;
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Listing {
    schema: u32,
    image: String,
    path: String,
    entries: Vec<Listed>,
    below: Vec<Directory>,
}

/// A directory below the one that was named.
#[derive(Serialize)]
struct Directory {
    path: String,
    entries: Vec<Listed>,
}

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Tree {
    schema: u32,
    image: String,
    path: String,
    directories: u64,
    files: u64,
    entries: Vec<Below>,
}

#[derive(Serialize)]
struct Below {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    size_bytes: u64,
    error: String,
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
    let is_dir = letter(&attr) == 'd';
    let (entries, dir) = if is_dir {
        (entries_of(volume, base, args).map_err(fail)?, Some(base))
    } else {
        let name = base.as_os_str().as_encoded_bytes().to_vec();
        let entry = Entry {
            name,
            attr: Ok(attr),
        };
        (vec![entry], None)
    };
    let mut damaged = tell_damage(place, &entries);
    let (below, torn) = match args.recursive && is_dir {
        true => directories_below(volume, place)?,
        false => (Vec::new(), false),
    };
    damaged |= torn;
    let mut directories = Vec::new();
    if !args.json {
        if !below.is_empty() {
            say!("{}:", place.shown());
        }
        show_entries(volume, dir, &entries, args);
    }
    for path in &below {
        let inside = match entries_of(volume, path, args) {
            Ok(inside) => inside,
            // It was told when it was found.
            Err(_) => continue,
        };
        damaged |= tell_damage(place, &inside);
        let shown = show_name(path.as_os_str().as_encoded_bytes());
        match args.json {
            true => directories.push(Directory {
                path: shown,
                entries: inside
                    .iter()
                    .map(|e| listed(volume, Some(path), e))
                    .collect(),
            }),
            false => {
                say!("");
                say!("{shown}:");
                show_entries(volume, Some(path), &inside, args);
            }
        }
    }
    if args.json {
        print_json(&Listing {
            schema: 1,
            image: place.image.display().to_string(),
            path: place.shown(),
            entries: entries.iter().map(|e| listed(volume, dir, e)).collect(),
            below: directories,
        })?;
    }
    if damaged {
        Err(silent_failure())
    } else {
        Ok(())
    }
}

/// Those that are to be shown, by name.
fn entries_of(volume: &Offline, dir: &Path, args: &LsArgs) -> ccfs_offline::Result<Vec<Entry>> {
    let mut entries = volume.list(dir)?;
    if !args.all && !args.json {
        entries.retain(|e| !e.name.starts_with(b"."));
    }
    if args.all {
        let special = [".", ".."].map(|name| Entry {
            name: name.into(),
            attr: volume.lstat(dir.join(name)),
        });
        entries.splice(0..0, special);
    }
    Ok(entries)
}

/// Says which entries cannot be read. True: some.
fn tell_damage(place: &Place, entries: &[Entry]) -> bool {
    let mut damaged = false;
    for e in entries.iter().filter_map(|entry| entry.attr.as_ref().err()) {
        warn!("ccfs ls: {}", explain(&place.image, e));
        damaged = true;
    }
    damaged
}

/// All directories below the one that was named, each before what is in it. True: some could not be read, which was told.
fn directories_below(volume: &Offline, place: &Place) -> Outcome<(Vec<PathBuf>, bool)> {
    let (mut found, mut damaged) = (Vec::new(), false);
    let visited = volume.visit(&place.path, &mut |_, path, entry| match entry {
        Ok(entry) if entry.attr.as_ref().is_ok_and(Attr::is_dir) => {
            found.push(place.path.join(OsStr::from_bytes(path)));
        }
        Ok(_) => {}
        Err(e) => {
            warn!("ccfs ls: {}", explain(&place.image, &e));
            damaged = true;
        }
    });
    visited.map_err(|e| Failure::new(CODE, explain(&place.image, &e)))?;
    Ok((found, damaged))
}

fn show_entries(volume: &Offline, dir: Option<&Path>, entries: &[Entry], args: &LsArgs) {
    for entry in entries {
        say!("{}", line(volume, dir, entry, args));
    }
}

/// The target of a symlink in the directory `dir`, or of one that was named itself.
fn target(volume: &Offline, dir: Option<&Path>, entry: &Entry) -> Option<Vec<u8>> {
    let name = Path::new(OsStr::from_bytes(&entry.name));
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

fn line(volume: &Offline, dir: Option<&Path>, entry: &Entry, args: &LsArgs) -> String {
    let name = show_name(&entry.name);
    if !args.long {
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
        if args.human_readable {
            size::show(attr.size)
        } else {
            attr.size.to_string()
        },
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

pub fn tree(args: &TreeArgs) -> Outcome<()> {
    let place = Place::parse(&args.place)?;
    let volume = open(&place.image, Access::ReadOnly)?;
    let shown = show_tree(&volume, &place, args.json);
    shown.and(close(&place.image, volume))
}

fn show_tree(volume: &Offline, place: &Place, as_json: bool) -> Outcome<()> {
    if !as_json {
        say!("{}", place.shown());
    }
    let (mut dirs, mut files, mut damaged) = (0u64, 0u64, false);
    let mut all = Vec::new();
    let visited = volume.visit(&place.path, &mut |depth, path, entry| {
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
        if as_json {
            let attr = entry.attr.as_ref();
            all.push(Below {
                path: show_name(path),
                kind: attr.map_or("unknown", kind),
                size_bytes: attr.map_or(0, |a| a.size),
                error: attr.err().map_or(String::new(), |e| e.to_string()),
            });
            return;
        }
        // A tree that is thousands of levels deep is not drawn to scale.
        let indent = "  ".repeat(depth.min(64) + 1);
        say!("{indent}{}{mark}", show_name(&entry.name));
    });
    visited.map_err(|e| Failure::new(CODE, explain(&place.image, &e)))?;
    match as_json {
        true => print_json(&Tree {
            schema: 1,
            image: place.image.display().to_string(),
            path: place.shown(),
            directories: dirs,
            files,
            entries: all,
        })?,
        false => say!("{dirs} directories, {files} files"),
    }
    if damaged {
        Err(silent_failure())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::rights;

    #[test]
    fn rights_are_shown_as_usual() {
        assert_eq!(rights(0o4755), "rwsr-xr-x");
        assert_eq!(rights(0o3640), "rw-r-S--T");
    }
}
