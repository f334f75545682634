//! A copy_file_range that is served on the thread of a ring's queue, and has to wait for the kernel, is left before it has changed anything.
mod common;
use ccfs_engine::{Context, DEFAULT_STREAM, Options, Volume, WriteFlags};
use ccfs_fuse::abi::{CopyIn, InHeader, op};
use ccfs_fuse::server::init::{Negotiation, WANTED, negotiate};
use ccfs_fuse::wire::{Body, Handler, Reply, Request};
use ccfs_fuse::{MountInfo, Server};
use std::sync::Arc;
use zerocopy::IntoBytes;

const ROOT: u32 = 2;
const SETUID: u16 = (libc::S_IFREG | 0o4755) as u16;
const SOMEBODY: u32 = 1000;

fn context() -> Context {
    Context::root(DEFAULT_STREAM)
}

/// A setuid file of 100 bytes, and one to copy from, that the kernel has seen.
fn files(volume: &Arc<Volume>) -> (u32, u32) {
    let cx = context();
    let file = |name: &[u8]| {
        let ino = volume.mknod(&cx, ROOT, name, SETUID, 0).unwrap().ino;
        let flags = WriteFlags::default();
        assert_eq!(volume.write(&cx, ino, 0, &[1; 100], flags).unwrap(), 100);
        ino
    };
    (file(b"from"), file(b"to"))
}

#[test]
fn a_copy_that_would_wait_changes_nothing() {
    let work = tempfile::tempdir().unwrap();
    let image = work.path().join("image");
    common::make_image(&image);
    let options = Options {
        background: false,
        ..Options::default()
    };
    let volume = Volume::mount(common::open(&image), options).unwrap();
    let init = [7u32, 34, 0, u32::MAX];
    let Negotiation::Agreed(agreed, _) = negotiate(init.as_bytes(), WANTED) else {
        panic!()
    };
    let info = MountInfo::default();
    let server = Server::new(volume.clone(), agreed, info, Default::default()).unwrap();
    let (from, to) = files(&volume);
    let copy = || {
        let arg = CopyIn {
            fh_in: 0,
            off_in: 0,
            nodeid_out: to.into(),
            fh_out: 0,
            off_out: 5000,
            len: 100,
            flags: 0,
        };
        let header = InHeader {
            opcode: op::COPY_FILE_RANGE,
            nodeid: from.into(),
            uid: SOMEBODY,
            gid: SOMEBODY,
            unique: 2,
            ..Default::default()
        };
        let body = Body::Whole(arg.as_bytes());
        let mut reply = Reply::default();
        server.handle(&Request::new(header, body), &mut reply);
        let attr = volume.getattr(to).unwrap();
        (reply.errno, attr.mode, attr.size)
    };
    // A mapping may have changed its last page: the kernel has read it.
    volume.read(to, 0, 100, &mut Vec::new()).unwrap();
    assert!(volume.tail_that_may_be_mapped(to, 4096).unwrap().is_some());
    assert_eq!(copy(), (libc::EOPNOTSUPP, SETUID, 100));
    volume.gives_pages_back(to, 0);
    assert_eq!(copy(), (0, SETUID & !0o4000, 5100));
    server.end().unwrap();
    common::fsck(&image);
}
