//! Real servers as devices: what every device does, against an array of bytes; and servers that break the protocol.
use ccfs_device::{AlignedBuf, Device, OpenError, OpenMode, SharedBuf, Slice, Write, write_all};
use ccfs_remote::{Settings, open};
use ccfs_testkit::Rng;
use ccfs_testkit::place::Place;
use ccfs_testkit::stores::{Ceph, Server, skips};
use std::io::{Read, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: usize = 8 << 20;

fn device(name: &str, mode: OpenMode) -> Result<Arc<dyn Device>, OpenError> {
    open(Path::new(name), mode, Settings::default())
}

/// Batches of writes in parts, reads of any place and length, flushes and discards.
fn as_any_device(name: &str, seed: u64) {
    let dev = device(name, OpenMode::ReadWrite).unwrap();
    let size = dev.size_bytes() as usize;
    // The owner's claim is at the beginning.
    let first = 1024;
    let mut model = vec![0u8; size];
    write_all(
        &*dev,
        vec![Write::new(first as u64, AlignedBuf::zeroed(size - first))],
    )
    .unwrap();
    let mut rng = Rng::new(seed);
    for _ in 0..300 {
        match rng.below(6) {
            0 => dev.flush().unwrap(),
            1 => {
                let at =
                    (first as u64 + rng.below((size - first) as u64 - 8192)) / 4096 * 4096 + 4096;
                let len = 4096 * (1 + rng.below(4)).min((size as u64 - at) / 4096);
                dev.discard(at, len).unwrap();
                // Nothing of value: as somebody writes it next.
                let (from, to) = (at as usize, (at + len) as usize);
                write_all(
                    &*dev,
                    vec![Write::new(at, AlignedBuf::zeroed(len as usize))],
                )
                .unwrap();
                model[from..to].fill(0);
            }
            2 | 3 => {
                let at = first + rng.below((size - first) as u64) as usize;
                let len = 1 + rng.size((size - at) as u64).min((size - at) as u64 - 1) as usize;
                let mut found = vec![0; len];
                dev.read(at as u64, &mut found).unwrap();
                assert!(found == model[at..at + len], "{len} bytes at {at}");
            }
            _ => {
                // Apart from each other: what overlaps has no order.
                let (mut at, mut batch) = (first, Vec::new());
                while batch.len() < 40 {
                    at += 512 * rng.below(400) as usize;
                    let parts: Vec<usize> = (0..1 + rng.below(5))
                        .map(|_| 512 * (1 + rng.below(20) as usize))
                        .collect();
                    let len: usize = parts.iter().sum();
                    if at + len > size {
                        break;
                    }
                    let bytes = rng.bytes(len);
                    model[at..at + len].copy_from_slice(&bytes);
                    let mut from = 0;
                    let parts = parts.into_iter().map(|len| {
                        let part = Slice::whole(SharedBuf::from(AlignedBuf::from_bytes(
                            &bytes[from..from + len],
                        )));
                        from += len;
                        part
                    });
                    let offset = at as u64;
                    batch.push(Write {
                        offset,
                        parts: parts.collect(),
                    });
                    at += len;
                }
                write_all(&*dev, batch).unwrap();
            }
        }
    }
    dev.flush().unwrap();
    let past = dev.read(size as u64 - 100, &mut [0; 200]);
    assert_eq!(past.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    drop(dev);
    // By another connection, and read only.
    let dev = device(name, OpenMode::ReadOnly).unwrap();
    let mut found = vec![0; size - first];
    dev.read(first as u64, &mut found).unwrap();
    assert!(found == model[first..]);
    let refused = write_all(&*dev, vec![Write::new(4096, AlignedBuf::zeroed(512))]);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    // The claim is gone.
    let mut head = [9; 1024];
    dev.read(0, &mut head).unwrap();
    assert_eq!(head, [0; 1024]);
}

#[test]
fn nbdkit() {
    if skips(&["nbdkit"]) {
        return;
    }
    for filters in [
        &[][..],
        &["--filter=delay", "rdelay=1ms", "wdelay=1ms"],
        &[
            "--filter=blocksize-policy",
            "blocksize-minimum=4096",
            "blocksize-preferred=4096",
            "blocksize-maximum=64K",
            "blocksize-error-policy=error",
        ],
    ] {
        let place = Place::new();
        let (before, behind): (Vec<&str>, Vec<&str>) =
            filters.iter().partition(|f| f.starts_with('-'));
        let args = [&before[..], &["memory", "8M"], &behind].concat();
        let server = Server::nbdkit(&place.path("."), &args);
        as_any_device(&server.uri(), 1);
    }
}

#[test]
fn qemu_nbd() {
    if skips(&["qemu-nbd"]) {
        return;
    }
    let place = Place::new();
    let image = place.path("image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(SIZE as u64)
        .unwrap();
    let server = Server::qemu_nbd(&place.path("."), &image);
    as_any_device(&server.uri(), 2);
}

#[test]
fn ceph() {
    if skips(Ceph::PROGRAMS) {
        return;
    }
    let place = Place::new();
    let ceph = Ceph::start(&place.path("."));
    ceph.tool("rbd", &["create", "--size", "8", "rbd/image"]);
    as_any_device(&ceph.name("image"), 3);
}

/// What a server says that does not keep to the protocol.
#[derive(Clone, Copy, Debug)]
enum Bad {
    Nothing,
    Garbage,
    Gone,
    HalfAnAnswer,
    AnotherNumber,
    TwoAnswers,
    Endless,
}

/// A server for one export of 1 MiB (the NBD project's doc/proto.md: fixed newstyle, NBD_OPT_GO), which is bad from the first request on.
fn bad_server(mut to: UnixStream, bad: Bad) -> std::io::Result<()> {
    to.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    to.read_exact(&mut [0; 4])?;
    loop {
        let mut head = [0; 16];
        to.read_exact(&mut head)?;
        let option = u32::from_be_bytes(head[8..12].try_into().unwrap());
        let len = u32::from_be_bytes(head[12..].try_into().unwrap());
        to.read_exact(&mut vec![0; len as usize])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut all = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
            all.extend(option.to_be_bytes());
            all.extend(kind.to_be_bytes());
            all.extend((data.len() as u32).to_be_bytes());
            all.extend(data);
            to.write_all(&all)
        };
        if option != 7 {
            // Unsupported.
            reply(0x8000_0001, &[])?;
            continue;
        }
        // Size, and flags: there is a flush.
        let info = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &[0, 0b101]].concat();
        reply(3, &info)?;
        reply(1, &[])?;
        break;
    }
    loop {
        let mut head = [0; 28];
        to.read_exact(&mut head)?;
        let len = u32::from_be_bytes(head[24..].try_into().unwrap()) as usize;
        let mut answer = 0x6744_6698u32.to_be_bytes().to_vec();
        answer.extend([0; 4]);
        answer.extend(&head[8..16]);
        answer.extend(vec![0; len]);
        match bad {
            Bad::Nothing => {}
            Bad::Garbage => to.write_all(&[0x55; 64])?,
            Bad::Gone => return Ok(()),
            Bad::HalfAnAnswer => {
                to.write_all(&answer[..10])?;
                return Ok(());
            }
            Bad::AnotherNumber => {
                answer[9] ^= 0xff;
                to.write_all(&answer)?;
            }
            Bad::TwoAnswers => {
                to.write_all(&answer)?;
                to.write_all(&answer)?;
            }
            Bad::Endless => loop {
                to.write_all(&answer)?;
            },
        }
    }
}

#[test]
fn servers_that_break_the_protocol() {
    let kinds = [
        Bad::Nothing,
        Bad::Garbage,
        Bad::Gone,
        Bad::HalfAnAnswer,
        Bad::AnotherNumber,
        Bad::TwoAnswers,
        Bad::Endless,
    ];
    std::thread::scope(|scope| {
        for bad in kinds {
            scope.spawn(move || {
                let place = Place::new();
                let listener = UnixListener::bind(place.path("s")).unwrap();
                std::thread::spawn(move || {
                    for connection in listener.incoming().flatten() {
                        std::thread::spawn(move || bad_server(connection, bad));
                    }
                });
                let name = format!("nbd+unix:///?socket={}", place.text("s"));
                let settings = Settings {
                    patience: Duration::from_secs(6),
                    ..Settings::default()
                };
                let begun = Instant::now();
                let opened = open(Path::new(&name), OpenMode::ReadWrite, settings);
                // Whatever it is: an error, and not a hang.
                let ended = match opened {
                    Err(_) => true,
                    Ok(dev) => {
                        let write = Write::new(4096, AlignedBuf::zeroed(4096));
                        write_all(&*dev, vec![write]).is_err() || matches!(bad, Bad::TwoAnswers)
                    }
                };
                assert!(ended, "{bad:?} goes on");
                let took = begun.elapsed();
                assert!(took < Duration::from_secs(40), "{bad:?}: {took:?}");
            });
        }
    });
}
