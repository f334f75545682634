//! `ccfs mkfs`: makes a volume by way of mke2fs.
//!
//! A new image file is built under a temporary name beside its place and renamed at the end, so a killed run leaves
//! nothing in the way of the next. On a block device mke2fs writes the super block last, with the same effect.
use crate::cli::MkfsArgs;
use crate::hostfile::{self, SECTOR, grow};
use crate::target::ForTools;
use crate::{flash, mounts, progress, superblock, tags, target, tools};
use ccfs_command::{Context, Failure, Outcome, output::print_json, say, size};
use ccfs_device::{FileDevice, OpenError, OpenMode};
use ccfs_ext4::features;
use ccfs_ext4::superblock::{RawSuper, SUPER_OFFSET, SUPER_SIZE};
use ccfs_remote::{Settings, is_store};
use serde_json::json;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const CODE: u8 = 1;
/// ext4's features as Debian 12 makes them, and metadata_csum and orphan_file; independent of /etc/mke2fs.conf.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
                        large_file,huge_file,dir_nlink,extra_isize,metadata_csum";
/// Below this size blocks have 1 KiB, else 4 KiB.
const SMALL_BLOCKS_BELOW: u64 = 64 << 20;
/// Smallest volume with room for a log and something else.
const SIZE_MIN: u64 = 16 << 20;
/// Longest name of a file, bytes (Linux's file systems).
const NAME_MAX: usize = 255;

pub fn run(args: &MkfsArgs) -> Outcome<()> {
    let args = &MkfsArgs {
        target: tags::device(&args.target, CODE)?,
        ..args.clone()
    };
    if let Some(label) = &args.label
        && label.len() > 16
    {
        return Err(Failure::new(
            CODE,
            format!(
                "label \"{label}\" has {} bytes; ext4 allows 16",
                label.len()
            ),
        ));
    }
    if is_store(args.target.as_os_str()) {
        return on_store(args);
    }
    match args.target.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => new_image(args),
        Err(e) => Err(Failure::new(
            CODE,
            format!("cannot look at {}: {e}", args.target.display()),
        )),
        Ok(meta) if meta.file_type().is_block_device() => existing(args, false),
        Ok(meta) if meta.is_file() => existing(args, true),
        Ok(_) => Err(Failure::new(
            CODE,
            format!(
                "{} is neither a file nor a block device; name an image file or a block device",
                args.target.display()
            ),
        )),
    }
}

fn new_image(args: &MkfsArgs) -> Outcome<()> {
    let Some(bytes) = args.size else {
        return Err(Failure::new(
            CODE,
            format!(
                "{} does not exist; give its size to create it: -s 1G",
                args.target.display()
            ),
        ));
    };
    check_size(bytes)?;
    let temporary = temporary_name(&args.target)?;
    let (file, lock) = temporary_file(&temporary, bytes)?;
    let mut lock = Some(lock);
    let made = build_image(args, &file, &temporary, bytes).and_then(|sb| {
        if args.flash {
            // Another file takes its place.
            drop(lock.take());
            flash::replace_by_flash(&temporary, CODE, |file, bytes| match args.sparse {
                true => Ok(()),
                false => allocate(file, bytes),
            })?;
        }
        take_place(&temporary, &args.target).map(|()| sb)
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    // Not before: without it another run may put its own file there.
    drop(lock);
    let sb = made?;
    sync_parent(&args.target);
    report(args, bytes, &sb)
}

/// Not over a file that somebody put there meanwhile.
fn take_place(temporary: &Path, target: &Path) -> Outcome<()> {
    hostfile::rename_new(temporary, target)
        .or_fail(CODE, format_args!("cannot create {}", target.display()))
}

/// A fresh file, never through a link that somebody put there, and for its owner alone: it will hold other users' files. What a killed run
/// left goes; what another run is making does not, which its lock tells.
fn temporary_file(path: &Path, bytes: u64) -> Outcome<(File, FileDevice)> {
    let identity = |meta: std::io::Result<Metadata>| meta.map(|m| (m.dev(), m.ino())).ok();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let cannot = |e| Failure::new(CODE, format!("cannot create {}: {e}", path.display()));
    let file = match options.open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let before = identity(path.symlink_metadata());
            let mut left = FileDevice::open(path, OpenMode::ReadWrite);
            if let Err(OpenError::Empty { .. }) = left {
                // Too short to be locked: another run's first moment, or what one left that was killed in it.
                let mut opened = OpenOptions::new();
                opened.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
                let _ = opened.open(path).and_then(|file| grow(&file));
                left = FileDevice::open(path, OpenMode::ReadWrite);
            }
            if let Err(OpenError::Busy { .. }) = left {
                return Err(another(path));
            }
            // The one that is locked now, if it can be locked at all, and not one that was put there since.
            if before == identity(path.symlink_metadata()) {
                let _ = std::fs::remove_file(path);
            }
            drop(left);
            options.open(path).map_err(cannot)?
        }
        opened => opened.map_err(cannot)?,
    };
    file.set_len(bytes)
        .or_fail(CODE, "cannot set the size of the image file")?;
    // Until there is a lock another run can take the file for one that was left, and what is opened here is that run's.
    let lock = FileDevice::open(path, OpenMode::ReadWrite);
    if identity(path.symlink_metadata()) != identity(file.metadata()) {
        return Err(another(path));
    }
    let lock = lock.map_err(|e| match e {
        OpenError::Busy { .. } => another(path),
        e => Failure::new(CODE, e.to_string()),
    })?;
    Ok((file, lock))
}

fn another(path: &Path) -> Failure {
    Failure::new(
        CODE,
        format!(
            "cannot create {}: another ccfs mkfs is making it",
            path.display()
        ),
    )
}

fn build_image(args: &MkfsArgs, file: &File, path: &Path, bytes: u64) -> Outcome<RawSuper> {
    let sparse = args.sparse || args.flash;
    if !sparse {
        allocate(file, bytes)?;
    }
    let sb = mke2fs(args, path, bytes, true)?;
    if !sparse {
        // mke2fs may have punched holes.
        allocate(file, bytes)?;
    }
    file.sync_all()
        .or_fail(CODE, "cannot write the image file")?;
    forget_pages(file);
    Ok(sb)
}

/// What was written leaves the host's page cache: the volume's own writes go past it, and would have to take it out block by block.
fn forget_pages(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// A block device, or an image file that exists.
fn existing(args: &MkfsArgs, is_file: bool) -> Outcome<()> {
    let shown = args.target.display();
    if args.flash {
        return Err(Failure::new(
            CODE,
            format!(
                "{shown} exists, and --flash makes a new file; remove it first, or choose another name"
            ),
        ));
    }
    target::check_not_mounted(&args.target, CODE)?;
    if let Some(device) = mounts::loops_of(&args.target).first() {
        return Err(Failure::new(
            CODE,
            format!(
                "{shown} is attached to {0}; detach it first: losetup -d {0}",
                device.display()
            ),
        ));
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&args.target)
        .or_fail(CODE, format_args!("cannot open {shown}"))?;
    let held = file
        .seek(SeekFrom::End(0))
        .or_fail(CODE, format_args!("cannot find the size of {shown}"))?;
    let bytes = match args.size {
        Some(wanted) if !is_file && wanted > held => {
            return Err(Failure::new(
                CODE,
                format!("{shown} has only {}", size::show(held)),
            ));
        }
        Some(wanted) => wanted,
        None => held,
    };
    check_size(bytes)?;
    // A file that is shorter than a sector holds no volume, and cannot be locked as it is.
    if held < SECTOR {
        if !args.force {
            refuse_content(&args.target, &args.target, || holds_data(&mut file))?;
        }
        grow(&file).or_fail(CODE, format_args!("cannot set the size of {shown}"))?;
    }
    // Before anything is changed: somebody may be using the volume.
    let lock = target::open(&args.target, OpenMode::ReadWrite, CODE)?;
    if !args.force {
        refuse_content(&args.target, &args.target, || holds_data(&mut file))?;
    }
    // Its old file system may have been counted for (mmp).
    lock.let_others_in();
    if is_file {
        file.set_len(bytes)
            .or_fail(CODE, format_args!("cannot set the size of {shown}"))?;
        if !args.sparse {
            allocate(&file, bytes).inspect_err(|_| {
                // What it got before it failed.
                let _ = file.set_len(held.min(bytes));
            })?;
        }
    }
    let sb = mke2fs(args, &args.target, bytes, is_file)?;
    if is_file && !args.sparse {
        allocate(&file, bytes)?;
    }
    file.sync_all()
        .or_fail(CODE, format_args!("cannot write {shown}"))?;
    forget_pages(&file);
    report(args, bytes, &sb)
}

/// An image of a store, which is there and has its size.
fn on_store(args: &MkfsArgs) -> Outcome<()> {
    let shown = args.target.display();
    if args.flash {
        let text = format!("{shown}: --flash makes a new file, and this is no file");
        return Err(Failure::new(CODE, text));
    }
    target::check_not_mounted(&args.target, CODE)?;
    let settings = Settings {
        overwrite: args.force,
        ..Settings::default()
    };
    let device = target::open_with(&args.target, OpenMode::ReadWrite, settings, CODE)?;
    let held = device.size_bytes();
    let bytes = match args.size {
        Some(wanted) if wanted > held => {
            let text = format!("{shown} has only {}", size::show(held));
            return Err(Failure::new(CODE, text));
        }
        wanted => wanted.unwrap_or(held),
    };
    check_size(bytes)?;
    let file = ForTools::of(&args.target, &device, CODE)?;
    if !args.force {
        // In its first KiB this command's own claim may be by now.
        let mut head = [0; 1024];
        device
            .read(0, &mut head)
            .or_fail(CODE, format_args!("cannot look at {shown}"))?;
        let data = head.iter().any(|b| *b != 0) && !ccfs_remote::is_claim(&head);
        refuse_content(&args.target, &file.path(), || data)?;
    }
    // What a store has discarded need not read as zeros, which mke2fs expects of a file: so it writes them.
    let sb = mke2fs(args, &file.path(), bytes, true)?;
    drop(file);
    device
        .flush()
        .or_fail(CODE, format_args!("cannot write {shown}"))?;
    report(args, bytes, &sb)
}

fn check_size(bytes: u64) -> Outcome<()> {
    if bytes < SIZE_MIN {
        return Err(Failure::new(
            CODE,
            format!(
                "{} is too small for a volume with a log; the least is {}",
                size::show(bytes),
                size::show(SIZE_MIN)
            ),
        ));
    }
    Ok(())
}

/// Gives the whole file its space on the host, so that a write to the volume cannot fail for lack of it (C9).
fn allocate(file: &File, bytes: u64) -> Outcome<()> {
    let done = match has_room(file, bytes) {
        true => hostfile::allocate(file, bytes),
        false => Err(rustix::io::Errno::NOSPC.into()),
    };
    done.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSPC) => Failure::new(
            CODE,
            format!(
                "the host's disk has no room for {}; choose a smaller size, or --sparse",
                size::show(bytes)
            ),
        ),
        _ => Failure::new(CODE, format!("cannot allocate the image file: {e}")),
    })
}

/// Whether the host's file system has the blocks that are missing. An allocation that fails has taken all that there was, which whoever
/// else writes to that disk would feel.
fn has_room(file: &File, bytes: u64) -> bool {
    let (Ok(meta), Ok(host)) = (file.metadata(), rustix::fs::fstatvfs(file)) else {
        return true;
    };
    let free = match rustix::process::geteuid().is_root() {
        true => host.f_bfree,
        false => host.f_bavail,
    };
    // Without blocks: a file system that has no limit.
    host.f_blocks == 0
        || bytes.saturating_sub(meta.blocks() * 512) <= free.saturating_mul(host.f_frsize)
}

/// Refuses a target that holds something: what libblkid knows, a file with any byte that is not 0, or a device whose first KiB (which no
/// volume of ours uses) is not empty.
/// `path`: what blkid looks at.
fn refuse_content(target: &Path, path: &Path, holds_data: impl FnOnce() -> bool) -> Outcome<()> {
    let shown = target.display();
    let found = tools::command("blkid")
        .args(["-p", "-o", "export", "--"])
        .arg(path)
        .stderr(Stdio::null())
        .output()
        .or_fail(CODE, "cannot run blkid, which looks for existing file systems (package util-linux); or use --force")?;
    let text = String::from_utf8_lossy(&found.stdout);
    let value = |key: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix('='))
    };
    let what = match (value("TYPE"), value("PTTYPE")) {
        (Some(fs), _) => Some(format!("a file system or other content of type {fs}")),
        (None, Some(table)) => Some(format!("a partition table ({table})")),
        // 8: several signatures at once.
        _ if found.status.code() == Some(8) => Some("several signatures at once".to_string()),
        _ => None,
    };
    let what = match what {
        None if holds_data() => Some("data".to_string()),
        what => what,
    };
    match what {
        Some(what) => Err(Failure::new(
            CODE,
            format!("{shown} holds {what}; to overwrite it: --force"),
        )),
        None => Ok(()),
    }
}

/// What cannot be read may be data. Of a device, which can be huge and is never new, as mke2fs does, only the beginning counts.
fn holds_data(file: &mut File) -> bool {
    let device = file
        .metadata()
        .is_ok_and(|meta| meta.file_type().is_block_device());
    if !device {
        return has_data(file).unwrap_or(true);
    }
    let mut head = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(1024).read_to_end(&mut head));
    read.is_err() || head.iter().any(|b| *b != 0)
}

/// Whether a file has a byte that is not 0. Holes are passed over, so a sparse or freshly allocated file costs nothing.
fn has_data(file: &mut File) -> std::io::Result<bool> {
    use rustix::fs::SeekFrom::{Data, Hole};
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        // Where the file system knows no holes all is data.
        let begin = match rustix::fs::seek(&*file, Data(at)) {
            Err(rustix::io::Errno::NXIO) => return Ok(false),
            begin => begin.unwrap_or(at),
        };
        let end = rustix::fs::seek(&*file, Hole(begin)).unwrap_or(u64::MAX);
        at = begin;
        while at < end {
            let most = buffer.len().min((end - at) as usize);
            match file.read_at(&mut buffer[..most], at)? {
                0 => return Ok(false),
                got if buffer[..got].iter().any(|b| *b != 0) => return Ok(true),
                got => at += got as u64,
            }
        }
    }
}

/// Size of the log: an eighth of the volume, from 4 to 128 MiB, and 64 MiB as soon as that is no more than a quarter.
fn log_mib(bytes: u64) -> u64 {
    let eighth = bytes >> 23;
    let wanted = if bytes >= 256 << 20 {
        eighth.max(64)
    } else {
        eighth
    };
    wanted.clamp(4, 128)
}

fn mke2fs(args: &MkfsArgs, path: &Path, bytes: u64, is_file: bool) -> Outcome<RawSuper> {
    let block = if bytes < SMALL_BLOCKS_BELOW {
        1024
    } else {
        4096
    };
    let features = if has_orphan_file()? {
        format!("{FEATURES},orphan_file")
    } else {
        FEATURES.to_string()
    };
    let mut command = tools::command("mke2fs");
    command.args([
        "-F",
        "-t",
        "ext4",
        "-O",
        &features,
        "-b",
        &block.to_string(),
    ]);
    command.arg("-J").arg(format!("size={}", log_mib(bytes)));
    let mut extended = Vec::new();
    if is_file {
        extended.push("nodiscard".to_string());
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        // Who makes a volume without root wants to write to it.
        extended.push(format!("root_owner={}:{}", uid.as_raw(), gid.as_raw()));
    }
    if !extended.is_empty() {
        command.arg("-E").arg(extended.join(","));
    }
    if is_file && !args.sparse && !args.flash {
        // The log is written in full: where the host's file system only notes that it is zero, the first write to each of its blocks
        // changes the host's metadata, which every sync of the volume then waits for.
        command.env("UNIX_IO_NOZEROOUT", "1");
    }
    if let Some(label) = &args.label {
        command.arg("-L").arg(label);
    }
    command
        .args(&args.mke2fs)
        .arg(tools::plain_path(path))
        .arg(format!("{}k", bytes / 1024));
    let made = progress::shown(command.stdin(Stdio::null())).or_fail(CODE, MISSING)?;
    if !made.status.success() {
        let text = String::from_utf8_lossy(&made.stderr);
        let text = text.trim();
        return Err(Failure::new(
            CODE,
            format!("mke2fs failed ({}): {text}", made.status),
        ));
    }
    check_usable(path)
}

/// What the user's options made of it may be no file system at all (`-n`), or one that ccfs does not write.
fn check_usable(path: &Path) -> Outcome<RawSuper> {
    let file = File::open(path).or_fail(CODE, format_args!("cannot open {}", path.display()))?;
    let mut bytes = [0; SUPER_SIZE];
    file.read_exact_at(&mut bytes, SUPER_OFFSET)
        .or_fail(CODE, "cannot read what mke2fs has made")?;
    let why = match superblock::parse(&bytes) {
        Err(e) => e.to_string(),
        Ok(sb) => {
            let names = superblock::feature_names(&sb).into_iter();
            let not: Vec<_> = names
                .filter(|(_, support)| *support != features::Support::Full)
                .map(|(name, _)| name)
                .collect();
            match not.is_empty() {
                true => return Ok(sb),
                false => format!("it does not write volumes with {}", not.join(", ")),
            }
        }
    };
    Err(Failure::new(
        CODE,
        format!(
            "ccfs cannot use what mke2fs makes with these options: {why}; leave out what asks for it behind --"
        ),
    ))
}

const MISSING: &str = "cannot run mke2fs; install the package e2fsprogs";

/// mke2fs knows orphan_file from 1.47 on. Without it ccfs keeps nameless files in its own log alone.
fn has_orphan_file() -> Outcome<bool> {
    let version = tools::command("mke2fs")
        .arg("-V")
        .output()
        .or_fail(CODE, MISSING)?;
    let text = String::from_utf8_lossy(&version.stderr);
    let mut numbers = text
        .split_whitespace()
        .nth(1)
        .unwrap_or("")
        .split('.')
        .map(|n| n.parse::<u32>().unwrap_or(0));
    Ok((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (1, 47))
}

/// Of a name that is as long as names may be, the beginning.
fn temporary_name(target: &Path) -> Outcome<PathBuf> {
    const BEFORE: &[u8] = b".";
    const BEHIND: &[u8] = b".mkfs";
    let name = target
        .file_name()
        .ok_or_else(|| Failure::new(CODE, format!("{} is no file name", target.display())))?
        .as_bytes();
    let most = NAME_MAX - BEFORE.len() - BEHIND.len();
    let hidden = [BEFORE, &name[..name.len().min(most)], BEHIND].concat();
    Ok(target.with_file_name(OsString::from_vec(hidden)))
}

fn sync_parent(target: &Path) {
    let parent = target
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // The file itself is durable; that its name is too is worth an attempt, not a failure.
    let _ = File::open(parent).and_then(|d| d.sync_all());
}

fn report(args: &MkfsArgs, bytes: u64, sb: &RawSuper) -> Outcome<()> {
    let target = args.target.display();
    if !args.json {
        say!(
            "{target}: {}; mount it with: ccfs mount {target} DIR",
            size::show(bytes)
        );
        return Ok(());
    }
    print_json(&json!({
        "schema": 1,
        "target": target.to_string(),
        "size_bytes": bytes,
        "block_size": 1024u64 << sb.log_block_size.get(),
        "inodes": sb.inodes_count.get(),
        "uuid": superblock::show_uuid(&sb.uuid),
        "label": superblock::show_text(&sb.volume_name),
        "flash": args.flash,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_fits_the_volume() {
        assert_eq!(log_mib(16 << 20), 4);
        assert_eq!(log_mib(200 << 20), 25);
        assert_eq!(log_mib(256 << 20), 64);
        assert_eq!(log_mib(1 << 30), 128);
        assert_eq!(log_mib(1 << 40), 128);
    }
}
