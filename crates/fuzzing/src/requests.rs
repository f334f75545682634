//! Requests as the kernel, or whoever holds /dev/fuse, sends them; and the ioctls among them.
use crate::base::{BASES, options};
use crate::bytes::Input;
use ccfs_client::abi as client;
use ccfs_engine::Volume;
use ccfs_fuse::abi::{InHeader, IoctlIn, op};
use ccfs_fuse::server::init::{Negotiation, WANTED, negotiate};
use ccfs_fuse::transport::channel::Channel;
use ccfs_fuse::wire::{Body, Handler, Reply, Request};
use ccfs_fuse::{CallerConfig, Forks, MountInfo, Server};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A server on a volume in memory.
fn server() -> Option<(Arc<Volume>, Server)> {
    let dev = Arc::new(BASES[2].dev.snapshot());
    let vol = Volume::mount(dev, options()).ok()?;
    let init = [7u32, 40, 0, u32::MAX, u32::MAX];
    let Negotiation::Agreed(agreed, _) = negotiate(init.as_bytes(), WANTED) else {
        return None;
    };
    // Without the process connector, which belongs to the machine and not to the input.
    let callers = CallerConfig {
        forks: Forks::Proc,
        ..CallerConfig::default()
    };
    let server = Server::new(vol.clone(), agreed, MountInfo::default(), callers).ok()?;
    // No kernel is there to be told of aborts.
    let nobody = std::fs::File::options()
        .write(true)
        .open("/dev/null")
        .ok()?;
    let kernel = Channel::from_fd(nobody.into());
    server.start_groups(kernel).ok()?;
    Some((vol, server))
}

/// Serves one; the reply must be one that the kernel takes.
fn serve(server: &Server, request: &Request) {
    server.may_block(request);
    let mut reply = Reply::default();
    server.handle(request, &mut reply);
    assert!(
        (0..=511).contains(&reply.errno),
        "error number {}",
        reply.errno
    );
    assert!(reply.errno == 0 || reply.body.is_empty());
    assert!(
        reply.body.len() <= (1 << 20) + 4096,
        "a reply of {} bytes",
        reply.body.len()
    );
    server.undelivered(&reply);
}

/// Requests: opcode (1 byte), node (1: small numbers, 255: any, 8 more), user (1), length (2), body. Opcode 255: INIT and a raw request.
pub fn fuse_requests(data: &[u8]) {
    let Some((vol, server)) = server() else {
        return;
    };
    let mut input = Input(data);
    let mut left = 64;
    while !input.is_empty() && left > 0 {
        left -= 1;
        let opcode = u32::from(input.u8());
        let nodeid = match input.u8() {
            255 => input.u64(),
            n => n.into(),
        };
        let uid = u32::from(input.u8() & 1) * 1000;
        let len = usize::from(input.u16());
        let bytes = input.take(len);
        if opcode == 255 {
            let _ = negotiate(bytes, WANTED);
            if let Some(request) = Request::parse(bytes)
                && request.header.opcode != op::DESTROY
            {
                serve(&server, &request);
            }
            continue;
        }
        if opcode == op::DESTROY {
            continue;
        }
        let header = InHeader {
            opcode,
            nodeid,
            uid,
            gid: uid,
            unique: 2,
            ..Default::default()
        };
        let body = if len % 3 == 0 {
            let (first, rest) = bytes.split_at(bytes.len().min(64));
            Body::Split { first, rest }
        } else {
            Body::Whole(bytes)
        };
        serve(&server, &Request { header, body });
    }
    let _ = server.end();
    drop(vol);
}

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
const OWN_IOCTLS: [u32; 9] = [
    client::IOC_SET_STREAM,
    client::IOC_GET_STREAM,
    client::IOC_NEW_STREAM,
    client::IOC_STREAM_SYNC,
    client::IOC_STATUS,
    client::IOC_GET_STREAM_OF_PROCESS,
    client::IOC_TRACE,
    client::IOC_SCRUB,
    client::IOC_BARRIER,
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

/// Calls: number (1 byte: an index into those known, from 200 on into those of groups; 255: any, 4 more), user (1), node (1), length of the input (2), input.
pub fn ioctls(data: &[u8]) {
    let Some((vol, server)) = server() else {
        return;
    };
    let mut input = Input(data);
    let mut left = 32;
    while !input.is_empty() && left > 0 {
        left -= 1;
        let known = FS_IOCTLS.len() + OWN_IOCTLS.len();
        let cmd = match input.u8() {
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
                && (OWN_IOCTLS.contains(&cmd) || GROUP_IOCTLS.contains(&cmd))
            {
                arg[..4].copy_from_slice(&client::VERSION.to_ne_bytes());
            }
        }
        let head = IoctlIn {
            cmd,
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
        serve(&server, &Request { header, body });
    }
    let _ = server.end();
    drop(vol);
}
