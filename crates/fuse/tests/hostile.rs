//! C10: whatever bytes come as a request, the answer is a reply or an error, and the volume stays whole.
mod common;
use ccfs_engine::{Options, Volume};
use ccfs_fuse::abi::{InHeader, IoctlIn, op};
use ccfs_fuse::server::init::{Negotiation, WANTED, negotiate};
use ccfs_fuse::wire::{Body, Handler, Reply, Request};
use ccfs_fuse::{MountInfo, Server};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::Arc;
use zerocopy::IntoBytes;

struct Bench {
    work: tempfile::TempDir,
    volume: Arc<Volume>,
    server: Server,
}

impl Bench {
    fn new() -> Bench {
        let work = tempfile::tempdir().unwrap();
        let image = work.path().join("image");
        common::make_image(&image);
        let volume = Volume::mount(
            common::open(&image),
            Options {
                background: false,
                ..Options::default()
            },
        )
        .unwrap();
        let init = [7u32, 34, 0, u32::MAX];
        let Negotiation::Agreed(agreed, _) = negotiate(init.as_bytes(), WANTED) else {
            panic!()
        };
        let server = Server::new(
            volume.clone(),
            agreed,
            MountInfo::default(),
            Default::default(),
        )
        .unwrap();
        Bench {
            work,
            volume,
            server,
        }
    }

    fn send(&self, opcode: u32, nodeid: u64, body: Body<'_>) -> Reply {
        let header = InHeader {
            opcode,
            nodeid,
            uid: 1000,
            gid: 1000,
            unique: 2,
            ..Default::default()
        };
        let request = Request::new(header, body);
        self.server.may_block(&request);
        let mut reply = Reply::default();
        self.server.handle(&request, &mut reply);
        assert!(
            (0..=511).contains(&reply.errno),
            "the kernel refuses other error numbers: {}",
            reply.errno
        );
        assert!(reply.errno == 0 || reply.body.is_empty());
        reply
    }

    /// Nothing panicked (that would have stopped the volume), and what is on the disk is an ext4.
    fn finish(self) {
        assert_eq!(self.volume.status().stopped, "");
        self.server.end().unwrap();
        common::fsck(&self.work.path().join("image"));
    }
}

/// DESTROY ends the volume: that is what it is for.
fn opcodes() -> impl Strategy<Value = u32> {
    prop_oneof![20 => 0..60u32, 1 => any::<u32>()]
        .prop_filter("not the end", |opcode| *opcode != op::DESTROY)
}

fn nodeids() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(1u64), 6 => 11..20u64, 2 => 0..40u64, 1 => any::<u64>(), 1 => 0..1u64 << 32]
}

/// Words of the argument structures: sizes, offsets, flags, node ids, as they are and absurd.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        3 => Just(0u64),
        3 => 0..64u64,
        2 => 0..1u64 << 21,
        1 => any::<u64>(),
        1 => Just(u64::MAX),
        1 => Just(i64::MAX as u64),
    ];
    vec(word, 0..12).prop_map(|words| words.as_bytes().to_vec())
}

fn strings() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just(b"a".to_vec()),
        Just(b"b".to_vec()),
        Just(b"user.x".to_vec()),
        Just(b"system.posix_acl_access".to_vec()),
        Just(b"..".to_vec()),
        vec(any::<u8>(), 0..300),
    ];
    vec(name, 0..3).prop_map(|names| {
        names
            .into_iter()
            .flat_map(|mut name| {
                name.push(0);
                name
            })
            .collect()
    })
}

fn runner() -> TestRunner {
    // Seeded: a failure prints its minimal case and comes again.
    TestRunner::new_with_rng(
        Config {
            cases: 40_000,
            failure_persistence: None,
            ..Config::default()
        },
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    )
}

#[test]
fn any_request() {
    let bench = Bench::new();
    let requests = (opcodes(), nodeids(), words(), strings(), any::<bool>());
    let outcome = runner().run(&requests, |(opcode, nodeid, mut args, names, split)| {
        if split {
            bench.send(
                opcode,
                nodeid,
                Body::Split {
                    first: &args,
                    rest: &names,
                },
            );
        } else {
            args.extend_from_slice(&names);
            bench.send(opcode, nodeid, Body::Whole(&args));
        }
        prop_assert_eq!(bench.volume.status().stopped, "");
        Ok(())
    });
    outcome.unwrap();
    bench.finish();
}

#[test]
fn any_ioctl() {
    let bench = Bench::new();
    const NUMBERS: [u32; 14] = [
        0x8008_6601,
        0x4008_6602,
        0x8004_6601,
        0x4004_6602,
        0x8008_7601,
        0x801c_581f,
        0x401c_5820,
        0x8100_9431,
        0xc018_5879,
        ccfs_client::abi::IOC_SET_STREAM,
        ccfs_client::abi::IOC_GET_STREAM,
        ccfs_client::abi::IOC_NEW_STREAM,
        ccfs_client::abi::IOC_STREAM_SYNC,
        ccfs_client::abi::IOC_STATUS,
    ];
    let cmds = prop_oneof![10 => proptest::sample::select(&NUMBERS[..]), 1 => any::<u32>()];
    let requests = (
        nodeids(),
        cmds,
        vec(any::<u8>(), 0..40),
        any::<u16>(),
        any::<bool>(),
    );
    let outcome = runner().run(&requests, |(nodeid, cmd, data, out_size, honest)| {
        let in_size = if honest {
            data.len() as u32
        } else {
            data.len() as u32 + 7
        };
        let arg = IoctlIn {
            fh: 0,
            flags: 0,
            cmd,
            arg: 0,
            in_size,
            out_size: out_size.into(),
        };
        let mut body = arg.as_bytes().to_vec();
        body.extend_from_slice(&data);
        let reply = bench.send(op::IOCTL, nodeid, Body::Whole(&body));
        prop_assert!(reply.body.len() <= 16 + usize::from(out_size));
        prop_assert_eq!(bench.volume.status().stopped, "");
        Ok(())
    });
    outcome.unwrap();
    bench.finish();
}

/// Listings never exceed the room that the caller has, and continue where they stopped.
#[test]
fn listings_fit() {
    let bench = Bench::new();
    for i in 0..50 {
        let mut body = vec![0; 16];
        body[..4].copy_from_slice(&(libc::S_IFREG | 0o644).to_ne_bytes());
        body.extend_from_slice(format!("name-{i:0width$}\0", width = i * 4 + 1).as_bytes());
        assert_eq!(bench.send(op::MKNOD, 1, Body::Whole(&body)).errno, 0);
    }
    for opcode in [op::READDIR, op::READDIRPLUS] {
        for size in [0u32, 8, 150, 440, 1000, 1 << 20, u32::MAX] {
            let (mut offset, mut entries) = (0u64, 0);
            loop {
                let mut body = [0u8; 40];
                body[8..16].copy_from_slice(&offset.to_ne_bytes());
                body[16..20].copy_from_slice(&size.to_ne_bytes());
                let reply = bench.send(opcode, 1, Body::Whole(&body));
                assert_eq!(reply.errno, 0);
                assert!(reply.body.len() <= size as usize && reply.body.len().is_multiple_of(8));
                let entry_head = if opcode == op::READDIR { 0 } else { 128 };
                let mut rest = &reply.body[..];
                while !rest.is_empty() {
                    let word = |at: usize| {
                        u64::from_ne_bytes(rest[entry_head + at..][..8].try_into().unwrap())
                    };
                    offset = word(8);
                    let len = entry_head + 24 + (word(16) as u32 as usize);
                    rest = &rest[len.next_multiple_of(8)..];
                    entries += 1;
                }
                bench.server.undelivered(&reply);
                if reply.body.is_empty() {
                    break;
                }
            }
            if size >= 440 {
                // With ".", ".." and lost+found.
                assert_eq!(entries, 53, "{opcode} {size}");
            }
        }
    }
    bench.finish();
}
