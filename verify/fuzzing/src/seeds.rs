//! First inputs: what a fuzzer would need long to find by itself.
use crate::base::{BASES, options};
use ccfs_client::direct::layout::{SetAttr, op, set};
use ccfs_crash::run::root_context;
use ccfs_device::Device;
use ccfs_disks::MemoryDevice;
use ccfs_engine::{ROOT_INO, Volume, WriteFlags};
use ccfs_image::{Image, OpenOptions};
use ccfs_log::{Geometry, Log};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Inputs of a target by name.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "hostile_image" => images(),
        "log_recovery" => logs(),
        "structures" => structures(),
        "fuse_requests" => requests(),
        "ioctls" => ioctls(),
        "direct_memory" => direct(),
        _ => Vec::new(),
    }
}

/// One patch of each block of structure: its own first bytes, to be changed.
fn images() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for (n, base) in BASES.iter().enumerate() {
        for i in (0..base.blocks.len()).step_by(7) {
            let mut bytes = [0; 48];
            let at = base.blocks[i] * base.block_size;
            if base.dev.read(at, &mut bytes).is_ok() {
                let mut input = vec![n as u8];
                input.extend((i as u16).to_le_bytes());
                input.extend([0, 0, 48]);
                input.extend(bytes);
                out.push(input);
            }
        }
    }
    out
}

/// The log of a workload, group by group, in the form that `log_recovery` reads.
fn logs() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for (n, base) in BASES.iter().enumerate() {
        let dev = Arc::new(base.dev.snapshot());
        if let Ok(payloads) = work(&dev) {
            let mut all = vec![n as u8];
            for payload in payloads {
                let mut group = vec![2, 0, 0];
                group.extend((payload.len() as u16).to_le_bytes());
                group.extend(&payload);
                out.push([&[n as u8][..], &group].concat());
                all.extend(group);
            }
            out.push(all);
        }
    }
    out
}

/// Payloads of the transactions of some work that was never brought home.
fn work(dev: &Arc<MemoryDevice>) -> Result<Vec<Vec<u8>>, ccfs_engine::Error> {
    let vol = Volume::mount(dev.clone(), options())?;
    let cx = root_context(&vol);
    let dir = vol.mkdir(&cx, ROOT_INO, b"seed", 0o755)?.ino;
    let file = vol.mknod(&cx, dir, b"file", 0o100_644, 0)?.ino;
    vol.write(&cx, file, 100, &[1; 700], WriteFlags::default())?;
    vol.setxattr(&cx, file, b"user.a", b"value", false, false, false)?;
    vol.syncfs(&cx)?;
    vol.write(&cx, file, 50, &[2; 300], WriteFlags::default())?;
    vol.symlink(&cx, dir, b"link", b"file")?;
    vol.rename(&cx, dir, b"file", ROOT_INO, b"moved", Default::default())?;
    vol.syncfs(&cx)?;
    vol.unlink(&cx, ROOT_INO, b"moved")?;
    let old = vol.lookup(ROOT_INO, b"pieces")?.ino;
    let cut = ccfs_engine::SetAttr {
        size: Some(5000),
        ..Default::default()
    };
    vol.setattr(&cx, old, &cut)?;
    vol.rmdir(&cx, ROOT_INO, b"dir").err();
    vol.syncfs(&cx)?;
    vol.shutdown();
    let image = Image::open(dev.clone(), OpenOptions::default())?;
    let runs = image.journal_blocks()?;
    let geometry = Geometry {
        block_size: image.geometry().block_size,
        runs: runs.iter().map(|r| (r.pblk, r.len)).collect(),
    };
    let (log, scan) = Log::open(dev.clone(), geometry)?;
    scan.txns.iter().map(|t| log.read_payload(t)).collect()
}

fn structures() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let base = &BASES[0];
    let mut block = vec![0; base.block_size as usize];
    for kind in 0..6u8 {
        for i in (0..base.blocks.len()).step_by(5) {
            if base
                .dev
                .read(base.blocks[i] * base.block_size, &mut block)
                .is_ok()
            {
                out.push([&[kind, 0][..], &block].concat());
            }
        }
    }
    out
}

fn requests() -> Vec<Vec<u8>> {
    let request = |opcode: u8, node: u8, body: &[u8]| {
        let mut out = vec![opcode, node, 0];
        out.extend((body.len() as u16).to_le_bytes());
        out.extend(body);
        out
    };
    let mut out = Vec::new();
    for opcode in 1..=54u8 {
        for node in [1u8, 12, 14] {
            out.push(request(opcode, node, &[0; 64]));
            out.push(request(opcode, node, b"large\0dir\0"));
        }
    }
    let all: Vec<u8> = out.iter().step_by(9).flatten().copied().collect();
    out.push(all);
    out
}

fn ioctls() -> Vec<Vec<u8>> {
    let call = |n: u8, user: u8| {
        vec![
            n, user, 1, 16, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
        ]
    };
    let known = (0..19).chain(200..209);
    let mut out: Vec<Vec<u8>> = known.flat_map(|n| [call(n, 0), call(n, 1)]).collect();
    out.push(out.concat());
    // Groups around a change of flags: committed, taken back, of a file, and one that is left open.
    let sequences = [
        &[200, 3, 201][..],
        &[200, 3, 204, 202, 202],
        &[205, 3, 206, 207],
        &[200, 205, 3, 207, 201],
        &[200, 200, 3, 203],
    ];
    // O_ATOMIC files: opened, changed, synced alone and together, closed with changes, with and without a group around it.
    let open = |node: u8, which: u8| vec![180, node, 2, 182, which, 0];
    let write = |which: u8| vec![184, which, 100, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0];
    let together = vec![186, 2, 2, 0, 1];
    for (first, second) in [(12, 14), (13, 14), (11, 12), (14, 15)] {
        let both = [open(first, 0), open(second, 1), write(0), write(1)].concat();
        out.push([both.clone(), together.clone()].concat());
        out.push([both.clone(), vec![187, 0, 185, 1, 50, 0, 181, 0, 181, 0]].concat());
        out.push([call(200, 0), both.clone(), together.clone(), call(202, 0)].concat());
        out.push(
            [
                both.clone(),
                vec![183, 0, 0, 185, 0, 0, 1],
                together.clone(),
                call(3, 0),
                vec![181, 1],
            ]
            .concat(),
        );
        out.push(
            [
                both,
                call(205, 0),
                write(0),
                call(207, 0),
                call(190, 0),
                together.clone(),
            ]
            .concat(),
        );
    }
    let user = |seq: &[u8], user| seq.iter().flat_map(|n| call(*n, user)).collect();
    out.extend(sequences.iter().flat_map(|s| [user(s, 0), user(s, 1)]));
    out
}

/// A step of `direct_memory` that is an entry, of the handles `h`.
fn entry(op: u16, bits: u8, h: [u8; 2], shape: u8, numbers: [u16; 2]) -> Vec<u8> {
    let mut out = vec![0, op as u8, bits, h[0], h[1], shape];
    out.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    out
}

/// Sessions as true programs have them, with all that such a session can do, and what disturbs it.
fn direct() -> Vec<Vec<u8>> {
    const POSTED: u8 = 4;
    const ASKED: u8 = 5;
    const CALLED: u8 = 15;
    let data = |mut step: Vec<u8>, bytes: &[u8]| {
        step[5] = 64 + bytes.len() as u8;
        step.extend(bytes);
        step
    };
    let attributes = SetAttr {
        mask: set::MODE | set::GID | set::MTIME | set::ATIME_NOW,
        mode: 0o640,
        gid: 3,
        mtime: 1000,
        ..SetAttr::default()
    };
    let file = [
        entry(op::CREATE, POSTED, [1, 2], 0, [0o666, 0]),
        data(entry(op::WRITE, POSTED, [2, 0], 0, [0, 0]), b"content"),
        data(entry(op::APPEND, POSTED, [2, 0], 0, [0, 0]), b" and more"),
        entry(op::WRITE, POSTED, [2, 0], 140, [5000, 0]),
        entry(op::TRUNCATE, POSTED, [2, 0], 7, [3000, 0]),
        entry(op::READ, ASKED, [2, 0], 7, [0, 4000]),
        entry(op::STAT, ASKED, [2, 0], 7, [0, 0]),
        data(
            entry(op::SETATTR, ASKED, [2, 0], 0, [0, 0]),
            attributes.as_bytes(),
        ),
        entry(op::BARRIER, POSTED, [2, 0], 7, [0, 0]),
        entry(op::SYNC, CALLED, [2, 0], 7, [0, 0]),
        entry(op::DRAIN, ASKED, [0, 0], 7, [0, 0]),
    ];
    let dir = [
        entry(op::READDIR, ASKED, [1, 0], 7, [0, 0]),
        // The first byte of the name is the old one.
        entry(op::RENAME, ASKED, [1, 1], 10, [0, 1]),
        entry(op::LINK, ASKED, [1, 1], 10, [0, 1]),
        entry(op::SYMLINK, ASKED, [1, 0], 10, [0, 1]),
        entry(op::READLINK, ASKED, [1, 0], 1, [0, 0]),
        entry(op::LOOKUP, ASKED, [1, 3], 1, [0, 3]),
        entry(op::MKDIR, POSTED, [1, 4], 2, [0o777, 0]),
        entry(op::CREATE, POSTED, [4, 5], 3, [0o666, 0]),
        entry(op::PATH, CALLED, [4, 0], 7, [0, 0]),
        entry(op::NAME, CALLED, [5, 0], 7, [0, 0]),
        // The kernel looks that name up.
        vec![11, 0, 0, 250, 0],
        entry(op::UNLINK, POSTED, [4, 0], 3, [0, 0]),
        entry(op::RMDIR, POSTED, [1, 0], 2, [0, 0]),
        entry(op::CLOSE, POSTED, [4, 0], 7, [0, 0]),
        entry(op::UNLINK, POSTED, [1, 0], 1, [0, 0]),
        entry(op::CREATE, CALLED, [255, 6], 33, [0o666, 0]),
        entry(op::MKDIR, CALLED, [255, 7], 34, [0o777, 0]),
    ];
    let end = entry(op::END, POSTED, [0, 0], 7, [0, 0]);
    let disturbed: [&[u8]; 16] = [
        &[8, 0xff, 0xff],
        &[8, 0, 16],
        &[9, 0, 255, 255, 0, 0, 0, 0, 0, 0],
        &[9, 2, 255, 255, 0, 0, 0, 0, 0, 0],
        &[9, 4, 5, 0, 0, 0],
        &[9, 5, 1, 0, 0, 0],
        &[10, 0],
        &[10, 3],
        // The kernel looks the held directory up, and what is in it; lists; forgets.
        &[11, 0, 0, 100, 11, 0, 1, 0],
        &[11, 128, 0, 100, 11, 130, 1, 0, 11, 4, 1, 0],
        &[11, 5, 0, 1, 11, 7, 1, 2, 11, 8, 1, 0],
        &[13, 0],
        &[13, 4],
        &[13, 3, 13, 7],
        &[14, 64, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8],
        &[15, 0],
    ];
    let (file, dir) = (file.concat(), dir.concat());
    let mut out = Vec::new();
    for modes in [0, 1, 2, 3, 10, 11] {
        out.push([&[modes][..], &file, &dir, &end].concat());
        out.push([&[modes][..], &dir, &[15, 3], &file].concat());
    }
    for (n, step) in disturbed.iter().enumerate() {
        let modes = [n as u8 % 4];
        out.push([&modes[..], &file, step, &dir].concat());
        out.push([&modes[..], &dir, step, &file].concat());
        out.push([&modes[..], step, &file, &dir, &end].concat());
    }
    // Many of a kind: names, data, up to the ring's end and beyond.
    for (op, h, shape) in [
        (op::CREATE, [1, 2], 32),
        (op::MKDIR, [1, 2], 32),
        (op::APPEND, [2, 0], 255),
        (op::CLOSE, [2, 2], 7),
    ] {
        let mut many = entry(op, POSTED | 128, h, shape, [0o777, 0]);
        many.push(90);
        out.push([&[0][..], &file, &[15, 1, 0, 60], &many, &dir, &many].concat());
        out.push([&[1][..], &many, &many, &many, &many].concat());
    }
    out
}
