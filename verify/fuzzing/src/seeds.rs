//! First inputs: what a fuzzer would need long to find by itself.
use crate::base::{BASES, options};
use ccfs_crash::run::root_context;
use ccfs_device::Device;
use ccfs_disks::MemoryDevice;
use ccfs_engine::{ROOT_INO, Volume, WriteFlags};
use ccfs_image::{Image, OpenOptions};
use ccfs_log::{Geometry, Log};
use std::sync::Arc;

/// Inputs of a target by name.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "hostile_image" => images(),
        "log_recovery" => logs(),
        "structures" => structures(),
        "fuse_requests" => requests(),
        "ioctls" => ioctls(),
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
