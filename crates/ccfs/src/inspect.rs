//! `ccfs inspect`: what is on a volume that is not mounted. Changes nothing.
use crate::cli::InspectArgs;
use crate::{superblock, tags, target};
use ccfs_command::{Failure, Outcome, output::print_json, say, size};
use ccfs_device::{Device, OpenMode};
use ccfs_engine::ErrorStatus;
use ccfs_ext4::Result as Ext4Result;
use ccfs_ext4::features::{Support, incompat};
use ccfs_ext4::superblock::{RawSuper, STATE_ERROR};
use ccfs_image::{Image, OpenOptions};
use ccfs_log::{Geometry, Kind, Log, Scan};
use serde::Serialize;
use std::sync::Arc;

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Inspection {
    schema: u32,
    target: String,
    size_bytes: u64,
    /// "at rest", "in flight", "needs recovery by the kernel", "has errors"
    state: &'static str,
    superblock: Superblock,
    /// Only in flight: at rest the journal's blocks hold an empty jbd2 journal.
    log: Option<LogContent>,
    /// Why an in-flight log cannot be read; empty if it can.
    log_error: String,
}

#[derive(Serialize)]
struct LogContent {
    version: u32,
    incompat: u32,
    nonce: String,
    header_seq: u64,
    ring_frames: u64,
    tail_frame: u64,
    head_frame: u64,
    applied_id: u64,
    applied_records: u64,
    next_id: u64,
    watermark: u64,
    transactions: Vec<Group>,
    torn: Vec<TornGroup>,
    checkpoint_pending: bool,
}

/// A transaction that is whole in the log.
#[derive(Serialize)]
struct Group {
    id: u64,
    first_frame: u64,
    frames: u64,
    payload_bytes: u64,
    depends_on: Vec<u64>,
}

#[derive(Serialize)]
struct TornGroup {
    id: u64,
    kind: &'static str,
    first_frame: u64,
    frames: u64,
    frames_seen: u64,
}

#[derive(Serialize)]
struct Superblock {
    label: String,
    uuid: String,
    checksum_ok: bool,
    block_size: u64,
    blocks: u64,
    free_blocks: u64,
    inodes: u64,
    free_inodes: u64,
    inode_size: u64,
    features: Vec<String>,
    unsupported_features: Vec<String>,
    error_count: u32,
    first_error: Option<ErrorStatus>,
    last_error: Option<ErrorStatus>,
}

pub fn run(args: &InspectArgs) -> Outcome<()> {
    let args = &InspectArgs {
        target: tags::device(&args.target, 1)?,
        ..args.clone()
    };
    let device: Arc<dyn Device> = target::open_volume(&args.target, OpenMode::ReadOnly, 1)?;
    let sb = superblock::read(device.as_ref())
        .map_err(|e| Failure::new(1, format!("{}: {e}", args.target.display())))?;
    let has_log = superblock::in_flight(&sb) && device.transactions().is_none();
    let (log, log_error) = match has_log {
        false => (None, String::new()),
        true => match read_log(device.clone(), &sb) {
            Ok(content) => (Some(content), String::new()),
            Err(e) => (None, e.to_string()),
        },
    };
    let seen = Inspection {
        schema: 1,
        target: args.target.display().to_string(),
        size_bytes: device.size_bytes(),
        state: state(&sb),
        superblock: describe(&sb),
        log,
        log_error,
    };
    if args.json {
        return print_json(&seen);
    }
    show(&seen);
    Ok(())
}

fn state(sb: &RawSuper) -> &'static str {
    if superblock::in_flight(sb) {
        "in flight"
    } else if sb.has_incompat(incompat::NEEDS_RECOVERY) {
        "needs recovery by the kernel"
    } else if sb.state.get() & STATE_ERROR != 0 {
        "has errors"
    } else {
        "at rest"
    }
}

/// Bytes; 0 where the super block says nonsense.
fn block_size(sb: &RawSuper) -> u64 {
    match sb.log_block_size.get() {
        shift @ 0..=6 => 1024 << shift,
        _ => 0,
    }
}

fn describe(sb: &RawSuper) -> Superblock {
    let features = superblock::feature_names(sb);
    let refused = features
        .iter()
        .filter(|(_, s)| *s == Support::Refused)
        .map(|(n, _)| n.clone())
        .collect();
    let (first, last) = sb.errors().unzip();
    Superblock {
        label: superblock::show_text(&sb.volume_name),
        uuid: superblock::show_uuid(&sb.uuid),
        checksum_ok: sb.checksum_ok(),
        block_size: block_size(sb),
        blocks: sb.blocks_count(),
        free_blocks: sb.free_blocks(),
        inodes: sb.inodes_count.get().into(),
        free_inodes: sb.free_inodes.get().into(),
        inode_size: sb.inode_size.get().into(),
        features: features.into_iter().map(|(name, _)| name).collect(),
        unsupported_features: refused,
        error_count: sb.error_count.get(),
        first_error: first.map(Into::into),
        last_error: last.map(Into::into),
    }
}

fn show(seen: &Inspection) {
    let sb = &seen.superblock;
    say!(
        "{}: {}, {}",
        seen.target,
        size::show(seen.size_bytes),
        seen.state
    );
    say!(
        "label       {}",
        if sb.label.is_empty() {
            "(none)"
        } else {
            &sb.label
        }
    );
    say!("uuid        {}", sb.uuid);
    say!(
        "blocks      {} of {}, {} free",
        sb.blocks,
        size::show(sb.block_size),
        sb.free_blocks
    );
    say!(
        "inodes      {} of {} bytes, {} free",
        sb.inodes,
        sb.inode_size,
        sb.free_inodes
    );
    say!("features    {}", sb.features.join(" "));
    if !sb.unsupported_features.is_empty() {
        say!("unsupported {}", sb.unsupported_features.join(" "));
    }
    if !sb.checksum_ok {
        say!("checksum    of the super block is wrong");
    }
    if sb.error_count > 0 {
        say!(
            "errors      {}; run ccfs fsck {}",
            sb.error_count,
            seen.target
        );
        for (name, error) in [("first", &sb.first_error), ("last", &sb.last_error)] {
            let error = serde_json::to_value(error).unwrap_or_default();
            if let Some(line) = superblock::error_line(&error) {
                say!("{name:<11} {line}");
            }
        }
    }
    if let Some(log) = &seen.log {
        show_log(log);
    }
    if !seen.log_error.is_empty() {
        say!("log         cannot be read: {}", seen.log_error);
    }
}

/// Scans the log. Only reads: the device is open read-only.
fn read_log(device: Arc<dyn Device>, sb: &RawSuper) -> Ext4Result<LogContent> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let runs = Image::open(device.clone(), options)?.journal_blocks()?;
    let geometry = Geometry {
        block_size: block_size(sb) as u32,
        runs: runs.iter().map(|r| (r.pblk, r.len)).collect(),
    };
    let (log, scan) = Log::open(device, geometry)?;
    Ok(LogContent {
        version: scan.header.version,
        incompat: scan.header.incompat,
        nonce: format!("{:032x}", scan.header.nonce),
        header_seq: scan.header.seq,
        ring_frames: log.ring_len(),
        tail_frame: scan.header.tail,
        head_frame: log.head(),
        applied_id: scan.header.applied_id,
        applied_records: scan.header.applied_records,
        next_id: log.next_id(),
        watermark: scan.watermark,
        transactions: groups(&scan),
        torn: torn(&scan),
        checkpoint_pending: scan.pending.is_some(),
    })
}

fn groups(scan: &Scan) -> Vec<Group> {
    let one = |found: &ccfs_log::Found| Group {
        id: found.meta.id,
        first_frame: found.first,
        frames: found.frames,
        payload_bytes: found.payload_len,
        depends_on: found.meta.deps.clone(),
    };
    scan.txns.iter().map(one).collect()
}

fn torn(scan: &Scan) -> Vec<TornGroup> {
    let one = |torn: &ccfs_log::Torn| TornGroup {
        id: torn.id,
        kind: match torn.kind {
            Kind::Txn => "transaction",
            Kind::Checkpoint => "checkpoint",
        },
        first_frame: torn.first,
        frames: torn.frames,
        frames_seen: torn.seen,
    };
    scan.torn.iter().map(one).collect()
}

fn show_log(log: &LogContent) {
    say!(
        "log         version {}, frames {} to {} of a ring of {}",
        log.version,
        log.tail_frame,
        log.head_frame,
        log.ring_frames
    );
    say!(
        "applied     through transaction {} and {} records of the next; durable through {}",
        log.applied_id,
        log.applied_records,
        log.watermark
    );
    if log.checkpoint_pending {
        say!("checkpoint  to be carried out again");
    }
    for t in &log.transactions {
        let deps: Vec<String> = t.depends_on.iter().map(u64::to_string).collect();
        let after = if deps.is_empty() {
            String::new()
        } else {
            format!(", after {}", deps.join(" "))
        };
        say!(
            "transaction {}: {} frames from {}, {} of records{after}",
            t.id,
            t.frames,
            t.first_frame,
            size::show(t.payload_bytes)
        );
    }
    for t in &log.torn {
        say!(
            "torn        {} {}: {} of {} frames from {}",
            t.kind,
            t.id,
            t.frames_seen,
            t.frames,
            t.first_frame
        );
    }
}

/// What recovery of an in-flight volume would do, for `fsck -n`.
pub fn recovery_plan(device: &Arc<dyn Device>, sb: &RawSuper) -> Outcome<String> {
    let log = match read_log(device.clone(), sb) {
        Ok(log) => log,
        Err(e) => {
            return Ok(format!("its log cannot be read, recovery would fail: {e}"));
        }
    };
    let ids: Vec<u64> = log
        .transactions
        .iter()
        .map(|t| t.id)
        .filter(|id| *id > log.applied_id)
        .collect();
    let mut plan = match (ids.first(), ids.last()) {
        (Some(first), Some(last)) => format!(
            "recovery would apply up to {} transactions ({first} to {last}), those whose predecessors are whole too",
            ids.len()
        ),
        _ => "recovery would find no transaction to apply".to_string(),
    };
    if !log.torn.is_empty() {
        plan += &format!(
            "; it would drop {} torn ones that no sync had promised",
            log.torn.len()
        );
    }
    Ok(plan)
}
