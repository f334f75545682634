//! The ioctls, known and unknown, by root and by others, beside the requests that O_ATOMIC files need.
use crate::bytes::Input;
use crate::files::Files;
use crate::requests::{serve, server};
use ccfs_client::abi as client;
use ccfs_fuse::abi::{InHeader, IoctlIn, op};
use ccfs_fuse::wire::{Body, Request};
use zerocopy::IntoBytes;

const FS_IOCTLS: [u32; 11] = [
    0x8008_6601,
    0x4008_6602,
    0x8004_6601,
    0x4004_6602,
    0x8008_7601,
    0x8004_7601,
    0x801c_581f,
    0x401c_5820,
    0x8100_9431,
    0xc018_5879,
    0x8004_587d,
];
const OWN_IOCTLS: [u32; 11] = [
    client::IOC_SET_STREAM,
    client::IOC_GET_STREAM,
    client::IOC_NEW_STREAM,
    client::IOC_STREAM_SYNC,
    client::IOC_STATUS,
    client::IOC_GET_STREAM_OF_PROCESS,
    client::IOC_TRACE,
    client::IOC_SCRUB,
    client::IOC_BARRIER,
    client::IOC_SYNC_VOLUME,
    client::IOC_THAW,
];

/// Of atomic groups, F2FS's among them.
const GROUP_IOCTLS: [u32; 9] = [
    client::IOC_GROUP_BEGIN,
    client::IOC_GROUP_COMMIT,
    client::IOC_GROUP_ABORT,
    client::IOC_GROUP_ENTER,
    client::IOC_GROUP_CHANGES,
    0xf501,
    0xf502,
    0xf505,
    0x8004_f50c,
];
/// First number of a call's byte that means one of these.
const GROUPS_FROM: u8 = 200;
/// ... that means IOC_TUNE.
const TUNE_FROM: u8 = 190;
/// ... that means a step of `Files`.
const FILES_FROM: u8 = 180;

/// Calls: number (1 byte: an index into those known, from 180 on those of O_ATOMIC files, from 190 on of tuning, from 200 on into those of groups; 255:
/// any, 4 more), user (1), node (1), length of the input (2), input.
pub fn ioctls(data: &[u8]) {
    let Some((vol, server)) = server(true) else {
        return;
    };
    let mut input = Input(data);
    let mut files = Files::default();
    let mut left = 32;
    while !input.is_empty() && left > 0 {
        left -= 1;
        let known = FS_IOCTLS.len() + OWN_IOCTLS.len();
        let cmd = match input.u8() {
            n @ FILES_FROM..TUNE_FROM => {
                files.step(&server, n - FILES_FROM, &mut input);
                continue;
            }
            TUNE_FROM..GROUPS_FROM => client::IOC_TUNE,
            255 => input.u32(),
            n @ GROUPS_FROM.. => GROUP_IOCTLS[usize::from(n - GROUPS_FROM) % GROUP_IOCTLS.len()],
            n => *FS_IOCTLS
                .iter()
                .chain(&OWN_IOCTLS)
                .nth(usize::from(n) % known)
                .unwrap_or(&0),
        };
        let uid = u32::from(input.u8() & 1) * 1000;
        let nodeid = u64::from(input.u8());
        let size = (cmd >> 16 & 0x3fff) as usize;
        let len = usize::from(input.u16());
        let mut arg = input.take(len).to_vec();
        // As the kernel does: as many bytes as the number states. Now and then not.
        if len % 8 != 7 {
            arg.resize(size, 0);
            if size >= 4
                && len % 8 != 6
                && (OWN_IOCTLS.contains(&cmd)
                    || GROUP_IOCTLS.contains(&cmd)
                    || cmd == client::IOC_TUNE)
            {
                arg[..4].copy_from_slice(&client::VERSION.to_ne_bytes());
            }
        }
        // Where the call's argument is not sent along (FS_IOC_SHUTDOWN) it is read there.
        let flag = u32::from(input.0.first().copied().unwrap_or(4)) % 5;
        let head = IoctlIn {
            cmd,
            arg: (&raw const flag) as u64,
            in_size: arg.len() as u32,
            out_size: size as u32,
            ..Default::default()
        };
        let bytes = [head.as_bytes(), &arg].concat();
        let header = InHeader {
            opcode: op::IOCTL,
            nodeid,
            uid,
            gid: uid,
            // A process that is there, and one that cannot be.
            pid: if len % 2 == 0 {
                std::process::id()
            } else {
                u32::MAX
            },
            unique: 2,
            ..Default::default()
        };
        let body = Body::Whole(&bytes);
        serve(&server, &Request::new(header, body));
    }
    let _ = server.end();
    drop(vol);
}
