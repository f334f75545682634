//! Requests as the kernel, or whoever holds /dev/fuse, sends them.
use crate::base::{BASES, options};
use crate::bytes::Input;
use ccfs_disks::MemoryDevice;
use ccfs_engine::Volume;
use ccfs_fuse::abi::{InHeader, op};
use ccfs_fuse::server::init::{Negotiation, WANTED, negotiate};
use ccfs_fuse::transport::channel::Channel;
use ccfs_fuse::wire::{Body, Handler, Reply, Request};
use ccfs_fuse::{CallerConfig, Forks, MountInfo, Server};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A server on a volume in memory, on which files can be opened O_ATOMIC or not.
pub(crate) fn server(atomic_files: bool) -> Option<(Arc<Volume>, Server)> {
    let mount = MountInfo {
        atomic_files,
        ..MountInfo::default()
    };
    server_on(Arc::new(BASES[2].dev.snapshot()), mount)
}

/// A server on this volume.
pub(crate) fn server_on(dev: Arc<MemoryDevice>, mount: MountInfo) -> Option<(Arc<Volume>, Server)> {
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
    let server = Server::new(vol.clone(), agreed, mount, callers).ok()?;
    // No kernel is there to be told of aborts.
    let nobody = std::fs::File::options()
        .write(true)
        .open("/dev/null")
        .ok()?;
    let kernel = Channel::from_fd(nobody.into());
    server.start_notifying(kernel).ok()?;
    Some((vol, server))
}

/// Serves one; the reply must be one that the kernel takes. Returns its body.
pub(crate) fn serve(server: &Server, request: &Request) -> Vec<u8> {
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
    reply.body
}

/// Requests: opcode (1 byte), node (1: small numbers, 255: any, 8 more), user (1), length (2), body. Opcode 255: INIT and a raw request.
pub fn fuse_requests(data: &[u8]) {
    let Some((vol, server)) = server(false) else {
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
        serve(&server, &Request::new(header, body));
    }
    let _ = server.end();
    drop(vol);
}
