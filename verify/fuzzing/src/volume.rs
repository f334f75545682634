//! A hostile image is mounted, read and changed.
use crate::base::{BASES, options, patch};
use crate::bytes::Input;
use ccfs_crash::run::root_context;
use ccfs_engine::{Fallocate, Ino, ROOT_INO, RenameFlags, Seek, SetAttr, Volume, WriteFlags};
use std::collections::HashSet;
use std::sync::Arc;

/// Directories and files that a walk looks at, entries per directory.
const NODES_MAX: usize = 200;
const ENTRIES_MAX: usize = 400;

/// Which volume, then patches: number of a block of structure (2 bytes), offset in it (2), length (1, at most 63), the bytes.
pub fn hostile_image(data: &[u8]) {
    let mut input = Input(data);
    let base = &BASES[usize::from(input.u8()) % BASES.len()];
    let dev = Arc::new(base.dev.snapshot());
    while !input.is_empty() {
        let block = base.blocks[usize::from(input.u16()) % base.blocks.len()];
        let offset = u64::from(input.u16()) % base.block_size;
        let len = usize::from(input.u8() % 64);
        patch(&dev, block * base.block_size + offset, input.take(len));
    }
    if let Ok(vol) = Volume::mount(dev, options()) {
        use_it(&vol);
    }
}

/// Reads all, changes some, ends. Every call may fail, none may panic or go on for ever.
pub fn use_it(vol: &Volume) {
    let found = walk(vol);
    change(vol, &found);
    let _ = vol.syncfs(&root_context(vol));
    let _ = vol.checkpoint();
    scrub(vol);
    let _ = vol.unmount();
}

/// (directory, name, inode) of what is there.
fn walk(vol: &Volume) -> Vec<(Ino, Vec<u8>, Ino)> {
    let mut found: Vec<(Ino, Vec<u8>, Ino)> = Vec::new();
    let mut seen = HashSet::from([ROOT_INO]);
    let mut todo = vec![ROOT_INO];
    while let Some(dir) = todo.pop() {
        let mut entries = Vec::new();
        let _ = vol.readdir(dir, 0, &mut |e| {
            entries.push(e);
            entries.len() < ENTRIES_MAX
        });
        for e in entries {
            let attr = vol.lookup(dir, &e.name);
            if e.name == b"." || e.name == b".." || found.len() > NODES_MAX {
                continue;
            }
            found.push((dir, e.name.clone(), e.ino));
            let Ok(attr) = attr else { continue };
            if seen.insert(attr.ino) {
                look(vol, attr.ino, attr.size);
                if attr.mode & 0o170_000 == 0o040_000 {
                    todo.push(attr.ino);
                }
            }
        }
    }
    found
}

fn look(vol: &Volume, ino: Ino, size: u64) {
    let mut buf = Vec::new();
    let _ = vol.readlink(ino);
    let _ = vol.getflags(ino);
    for name in vol.listxattr(ino).unwrap_or_default() {
        let _ = vol.getxattr(ino, &name);
    }
    for at in [0, size / 2, size.saturating_sub(5000)] {
        let _ = vol.read(ino, at, 10_000, &mut buf);
        let _ = vol.seek(ino, at, Seek::Data);
        let _ = vol.seek(ino, at, Seek::Hole);
    }
}

fn change(vol: &Volume, found: &[(Ino, Vec<u8>, Ino)]) {
    let cx = root_context(vol);
    let name = b"a new name that is not there yet";
    let flags = WriteFlags::default();
    for (i, (dir, old, ino)) in found.iter().enumerate().take(60) {
        let _ = match i % 12 {
            0 => vol.mknod(&cx, *dir, name, 0o100_644, 0).map(drop),
            1 => vol.mkdir(&cx, *dir, b"new dir", 0o755).map(drop),
            2 => vol.unlink(&cx, *dir, old),
            3 => vol.write(&cx, *ino, 3000, &[7; 5000], flags).map(drop),
            4 => vol
                .rename(&cx, *dir, old, ROOT_INO, b"moved", RenameFlags::default())
                .map(drop),
            5 => vol.setxattr(&cx, *ino, b"user.a", &[1; 400], false, false, false),
            6 => vol.fallocate(&cx, *ino, Fallocate::PunchHole, 1000, 20_000),
            7 => vol.link(&cx, *ino, ROOT_INO, b"linked").map(drop),
            8 => vol.rmdir(&cx, *dir, old),
            9 => {
                let set = SetAttr {
                    size: Some(1234),
                    ..SetAttr::default()
                };
                vol.setattr(&cx, *ino, &set).map(drop)
            }
            10 => vol.fallocate(
                &cx,
                *ino,
                Fallocate::Allocate { keep_size: false },
                0,
                50_000,
            ),
            _ => vol.fsync(&cx, *ino, false),
        };
    }
    let _ = vol.tick(std::time::Duration::ZERO);
    let _ = vol.trim(0, u64::MAX, 0);
    let _ = vol.statfs();
    for (_, _, ino) in found.iter().take(60) {
        vol.forget(*ino, 1);
    }
}

fn scrub(vol: &Volume) {
    let mut at = Some(ccfs_engine::ScrubAt::default());
    while let Some(now) = at {
        let Ok(step) = vol.scrub(now, u64::MAX) else {
            return;
        };
        assert!(
            step.next.is_none_or(|next| next > now),
            "a scrub stands still at {now:?}"
        );
        at = step.next;
    }
}
