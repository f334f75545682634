//! What an fsync costs beside one write and one flush of the same emulated device, in virtual time: the same on any machine. Of the processor
//! two calls count, 2 us each.
mod common;
use ccfs_device::{AlignedBuf, Device, SharedBuf, Write};
use ccfs_disks::MemoryDevice;
use common::{flash, image, virtual_time::*};
use std::time::Duration;

const COUNT: u64 = 1000;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Overwrite,
    Append,
    NewFile,
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Medians, microseconds: a write and an fsync, and a bare write and a flush at the same places of the device.
fn cost(base: &MemoryDevice, device: &str, case: Case) -> (f64, f64) {
    let rig = Rig::new(base, device, 0, After::Sync);
    let file = rig.create("f");
    if case == Case::Overwrite {
        (0..BLOCKS).for_each(|block| rig.write(file, block * BLOCK, &[1; BLOCK as usize]));
    }
    rig.begin();
    let mut random = Random(7);
    let mut synced = Vec::new();
    let mut places = Vec::new();
    for n in 0..COUNT {
        let block = match case {
            Case::Overwrite => random.below(BLOCKS),
            Case::Append => n,
            Case::NewFile => 0,
        };
        let start = rig.dev.now();
        let file = match case {
            Case::NewFile => rig.create(&format!("f{n}")),
            _ => file,
        };
        rig.write(file, block * BLOCK, &[n as u8; BLOCK as usize]);
        rig.sync(file);
        synced.push(rig.dev.now() - start);
        places.push(if case == Case::Overwrite { block } else { n });
    }
    rig.v.unmount().unwrap();
    let rig = Rig::new(base, device, 0, After::Sync);
    rig.begin();
    let buf = SharedBuf::from(AlignedBuf::from_bytes(&[9; BLOCK as usize]));
    let mut bare = Vec::new();
    for place in places {
        let start = rig.dev.now();
        let write = Write::new((1 << 28) + place * BLOCK, buf.clone());
        rig.dev.wait(rig.dev.submit(vec![write])).unwrap();
        rig.dev.flush().unwrap();
        bare.push(rig.dev.now() - start);
    }
    (median(synced), median(bare))
}

#[test]
fn an_fsync_costs_little_more_than_a_write_and_a_flush() {
    let test = "an_fsync_costs_little_more_than_a_write_and_a_flush";
    if flash::is_about_the_log(test, "the figures are of the log's writes") {
        return;
    }
    let base = image(&["-b", "4096", "-J", "size=64"], "512M");
    for device in ["ssd", "ssd-plain", "ssd-capacitor", "ufs", "hdd"] {
        for case in [Case::Overwrite, Case::Append, Case::NewFile] {
            let (fsync, bare) = cost(&base, device, case);
            let ratio = fsync / bare;
            println!("| {device} | {case:?} | {fsync:.0} | {bare:.0} | {ratio:.2} |");
            // A capacitor's flush is nothing, and a hard disk's arm goes to the log and to the data.
            if ["ssd", "ssd-plain", "ufs"].contains(&device) {
                assert!(ratio < 1.1, "{device} {case:?}: {ratio}");
            }
        }
    }
}
