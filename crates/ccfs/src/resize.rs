//! `ccfs resize`: a volume gets larger, mounted or not; or, not mounted, smaller.
//!
//! It grows in the engine, by one way for both (docs/design/space.md, "Growing"). What that cannot do, a volume at rest has done by
//! resize2fs: to get smaller, and to grow where there is no room for descriptors. A crash in that leaves a volume to be checked by e2fsck.
use crate::cli::ResizeArgs;
use crate::target::ForTools;
use crate::{elsewhere, logging, mounts, superblock, tags, target, tools, volume};
use ccfs_command::{Context, Failure, Outcome, say, size};
use ccfs_device::{Device, OpenMode};
use ccfs_engine::{Error, Options, Volume};
use ccfs_fuse::loopdev;
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const CODE: u8 = 1;
/// e2fsck has repaired something, and all is well.
const CORRECTED: i32 = 1;

/// A volume's sizes before and now, bytes.
struct Resized {
    before: u64,
    now: u64,
}

pub fn run(args: &ResizeArgs) -> Outcome<()> {
    let named = tags::device(&args.target, CODE)?;
    let shown = args.target.display().to_string();
    let resized = match place(&named)? {
        Some(dir) => mounted(&dir, args.size)?,
        None => at_rest(&named, args.size)?,
    };
    let now = size::show(resized.now);
    if resized.now == resized.before {
        say!("{shown}: {now}, as before");
    } else {
        say!("{shown}: {now}, before {}", size::show(resized.before));
    }
    if let Some(wanted) = args.size.filter(|wanted| *wanted > resized.now) {
        let rest = size::show(wanted - resized.now);
        say!("the last {rest} are too few for a group of blocks");
    }
    Ok(())
}

/// A directory of the mounted volume; `None`: it is at rest.
fn place(named: &Path) -> Outcome<Option<PathBuf>> {
    if named.is_dir() {
        return Ok(Some(named.into()));
    }
    let full = mounts::absolute(named).or_fail(CODE, named.display())?;
    let mounts = mounts::of_target(&full).unwrap_or_default();
    match mounts.first() {
        Some(mount) if mount.is_ccfs() => Ok(Some(mount.dir.clone())),
        _ => match elsewhere::mounted(named) {
            Some(place) => Err(Failure::new(
                CODE,
                format!("{} is {place}", named.display()),
            )),
            None => Ok(None),
        },
    }
}

fn mounted(dir: &Path, wanted: Option<u64>) -> Outcome<Resized> {
    let shown = dir.display();
    let at = volume::open(dir)?;
    let resized = ccfs_client::resize(&at, wanted).map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM) => Failure::new(
            CODE,
            format!("{shown}: only root may resize a mounted volume; run it with sudo"),
        ),
        Some(libc::EROFS) => Failure::new(
            CODE,
            format!("{shown}: it is mounted read-only; unmount it, and mount it with rw"),
        ),
        _ => volume::explain(dir, e),
    })?;
    // What is mounted over a loop device shows that device's size.
    if let Ok(Some(mount)) = mounts::over(&dir.canonicalize().unwrap_or(dir.into()))
        && mounts::backing_file(&mount.source).is_some()
        && let Err(e) = loopdev::follow_size(&mount.source)
    {
        tracing::debug!("{} keeps its size: {e}", mount.source.display());
    }
    Ok(Resized {
        before: resized.before,
        now: resized.now,
    })
}

fn at_rest(named: &Path, wanted: Option<u64>) -> Outcome<Resized> {
    let shown = named.display();
    let device = target::open(named, OpenMode::ReadWrite, CODE)?;
    let fail = |e: Error| Failure::new(CODE, format!("{shown}: {e}"));
    let sb = superblock::read(&*device).map_err(fail)?;
    if let Some(cut) = superblock::cut_off(&sb, &*device, named) {
        return Err(Failure::new(CODE, format!("{shown}: {cut}")));
    }
    logging::of_command();
    Volume::recover(device.clone()).map_err(fail)?;
    let sb = superblock::read(&*device).map_err(fail)?;
    let block = 1024u64 << sb.log_block_size.get().min(6);
    let before = sb.blocks_count() * block;
    let wanted = wanted.unwrap_or(device.size_bytes().max(before));
    if wanted / block < sb.blocks_count() {
        let now = shrink(named, &device, wanted / block, block)?;
        return Ok(Resized { before, now });
    }
    let now = match grow(&device, wanted) {
        // Those that mke2fs left room for are used up.
        Err(Error::Refused(why)) if why.contains(ccfs_ext4::grow::NO_ROOM) => {
            make_room(named, &device, wanted, &why)?
        }
        grown => grown.map_err(fail)?,
    };
    Ok(Resized { before, now })
}

/// resize2fs grows the volume, and makes room for descriptors by moving what is in the way. Gives the size in bytes.
fn make_room(named: &Path, device: &Arc<dyn Device>, wanted: u64, why: &str) -> Outcome<u64> {
    let shown = named.display();
    let fail = |e: Error| Failure::new(CODE, format!("{shown}: {e}"));
    let sb = superblock::read(&**device).map_err(fail)?;
    let (before, block) = (
        device.size_bytes(),
        1024u64 << sb.log_block_size.get().min(6),
    );
    device.grow(wanted - wanted % block).or_fail(
        CODE,
        format_args!("{shown}: {why}; and its file or device cannot get larger"),
    )?;
    say!("{shown}: {why}; resize2fs makes the room");
    let grown = by_resize2fs(named, device, wanted / block);
    let still =
        superblock::read(&**device).is_ok_and(|now| now.blocks_count() == sb.blocks_count());
    if grown.is_err() && still && named.is_file() {
        // Nothing of the volume is there.
        let _ = File::options()
            .write(true)
            .open(named)
            .and_then(|file| file.set_len(before));
    }
    Ok(grown? * block)
}

/// Opens the volume in this process, as the commands without a mount do.
fn grow(device: &Arc<dyn Device>, wanted: u64) -> Result<u64, Error> {
    let volume = Volume::mount(device.clone(), Options::default())?;
    let grown = volume.grow(wanted);
    // Also where it failed: it is to be at rest.
    let at_rest = volume.unmount();
    let grown = grown?;
    at_rest.map(|()| grown)
}

/// Gives the size in bytes. The image file is cut when all is done.
fn shrink(named: &Path, device: &Arc<dyn Device>, blocks: u64, block: u64) -> Outcome<u64> {
    let shown = named.display();
    check(named, device)?;
    let least = least(named, device)?;
    if blocks < least {
        let (least, wanted) = (least * block, blocks * block);
        return Err(Failure::new(
            CODE,
            format!("{shown}: {wanted} bytes are too few: what is in the volume needs {least}"),
        ));
    }
    let now = by_resize2fs(named, device, blocks)? * block;
    if named.is_file() {
        let cut = File::options().write(true).open(named).and_then(|file| {
            file.set_len(now)?;
            file.sync_all()
        });
        cut.or_fail(
            CODE,
            format_args!("{shown}: the volume is smaller, its file is not"),
        )?;
    }
    Ok(now)
}

/// resize2fs wants a check, and e2fsck mends what it may without questions. The device stays locked.
fn by_resize2fs(named: &Path, device: &Arc<dyn Device>, blocks: u64) -> Outcome<u64> {
    let shown = named.display();
    check(named, device)?;
    let file = ForTools::of(named, device, CODE)?;
    let mut command = tools::command("resize2fs");
    if std::io::stdout().is_terminal() {
        command.arg("-p");
    }
    command
        .arg(tools::plain_path(&file.path()))
        .arg(blocks.to_string())
        .stdin(Stdio::null());
    let (ended, said) = run_tool(&mut command, "resize2fs", std::io::stdout().is_terminal())?;
    if ended != Some(0) {
        return Err(Failure::new(
            CODE,
            format!("{shown}: resize2fs failed ({said}); run ccfs fsck -f {shown}"),
        ));
    }
    let sb =
        superblock::read(&**device).map_err(|e| Failure::new(CODE, format!("{shown}: {e}")))?;
    Ok(sb.blocks_count())
}

fn check(named: &Path, device: &Arc<dyn Device>) -> Outcome<()> {
    let shown = named.display();
    let file = ForTools::of(named, device, CODE)?;
    let mut command = tools::command("e2fsck");
    command
        .args(["-f", "-p"])
        .arg(tools::plain_path(&file.path()))
        .stdin(Stdio::null());
    match run_tool(&mut command, "e2fsck", false)? {
        (Some(0 | CORRECTED), _) => Ok(()),
        (_, said) => Err(Failure::new(
            CODE,
            format!("{shown}: e2fsck is not content ({said}); run ccfs fsck -f -y {shown} first"),
        )),
    }
}

/// Blocks of the smallest volume that holds what is in this one, as resize2fs estimates it.
fn least(named: &Path, device: &Arc<dyn Device>) -> Outcome<u64> {
    let file = ForTools::of(named, device, CODE)?;
    let mut command = tools::command("resize2fs");
    command.arg("-P").arg(tools::plain_path(&file.path()));
    let (_, said) = run_tool(&mut command, "resize2fs", false)?;
    let number = said.rsplit(' ').next().and_then(|word| word.parse().ok());
    number.ok_or_else(|| {
        let shown = named.display();
        Failure::new(
            CODE,
            format!("{shown}: resize2fs does not tell the smallest size ({said})"),
        )
    })
}

/// Runs a program of e2fsprogs; gives its exit code and its last line. `seen`: what it prints goes to the terminal.
fn run_tool(command: &mut Command, name: &str, seen: bool) -> Outcome<(Option<i32>, String)> {
    let missing = format!("cannot run {name}; install the package e2fsprogs");
    if seen {
        let status = command.status().or_fail(CODE, missing)?;
        return Ok((status.code(), status.to_string()));
    }
    let out = command.output().or_fail(CODE, missing)?;
    let said = match out.status.success() {
        true => out.stdout,
        false => [out.stdout, out.stderr].concat(),
    };
    let said = String::from_utf8_lossy(&said);
    // Its name and version stand on a line of their own.
    let tells = |line: &&str| !line.trim().is_empty() && !line.starts_with(&format!("{name} 1."));
    let last = said.lines().rfind(tells);
    Ok((out.status.code(), last.unwrap_or("").trim().to_string()))
}
