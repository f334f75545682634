//! A log with sound frames and hostile content is recovered: checksums keep nobody out who writes them.
use crate::base::{BASES, options};
use crate::bytes::Input;
use crate::volume::use_it;
use ccfs_device::write_all;
use ccfs_disks::MemoryDevice;
use ccfs_engine::Volume;
use ccfs_image::{Image, OpenOptions};
use ccfs_log::{Geometry, Kind, Log, Meta};
use std::sync::Arc;

/// Which volume (1 byte), then groups of frames: kind (1), watermark (1), number of dependencies (1) and their distances (1 each),
/// length of the payload (2), payload.
pub fn log_recovery(data: &[u8]) {
    let mut input = Input(data);
    let base = &BASES[usize::from(input.u8()) % BASES.len()];
    let dev = Arc::new(base.dev.snapshot());
    let _ = write_log(&dev, &mut input);
    if let Ok(true) = Volume::recover(dev.clone())
        && let Ok(vol) = Volume::mount(dev, options())
    {
        use_it(&vol);
    }
}

fn write_log(dev: &Arc<MemoryDevice>, input: &mut Input) -> Result<(), ccfs_engine::Error> {
    let image = Image::open(dev.clone(), OpenOptions::default())?;
    let runs = image.journal_blocks()?;
    let geometry = Geometry {
        block_size: image.geometry().block_size,
        runs: runs.iter().map(|r| (r.pblk, r.len)).collect(),
    };
    let log = Log::create(dev.clone(), geometry, 1)?;
    image.write_in_flight(true)?;
    while !input.is_empty() {
        let kind = match input.u8() % 8 {
            0 => Kind::Checkpoint,
            _ => Kind::Txn,
        };
        let watermark = u64::from(input.u8());
        let deps: Vec<u8> = input
            .u8()
            .checked_rem(4)
            .map_or(Vec::new(), |n| input.take(n.into()).to_vec());
        let len = usize::from(input.u16());
        let mut payload = input.take(len).to_vec();
        if kind == Kind::Checkpoint {
            // Images of the blocks that the note names.
            payload.resize(
                payload.len() + 4 * image.geometry().block_size as usize,
                0x11,
            );
        }
        let frames = log.frames_for(payload.len() as u64, deps.len());
        let Some(slot) = log.take_slot(frames, kind) else {
            return Ok(());
        };
        let id = slot.id;
        let is_txn = kind == Kind::Txn;
        let deps = deps.iter().map(|d| id.saturating_sub(1 + u64::from(*d)));
        let mut deps: Vec<u64> = deps.filter(|d| is_txn && *d > 0).collect();
        deps.dedup();
        let meta = Meta {
            kind,
            id,
            watermark: if is_txn {
                watermark.min(id - 1)
            } else {
                watermark
            },
            deps,
            flags: 0,
        };
        write_all(&**dev, log.encode(&slot, &meta, &[&payload])?)?;
        if kind == Kind::Checkpoint {
            log.abandon(slot);
        }
    }
    Ok(())
}
