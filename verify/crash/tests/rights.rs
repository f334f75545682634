//! Flags, ACLs, killed setuid bits, write-back, copies by the engine's calls, each before and after a power cut. (Random workloads have
//! them too: `rights_percent`.)
use ccfs_crash::config::CONFIGS;
use ccfs_crash::image;
use ccfs_crash::oracle::list_of;
use ccfs_crash::run::mount;
use ccfs_crash::setting::Setting;
use ccfs_disks::{Outcome, SimDevice};
use ccfs_engine::*;
use std::sync::Arc;

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;

fn cx(vol: &Volume) -> Context {
    Context {
        umask: 0o022,
        ..Context::root(vol.new_stream())
    }
}

fn fresh() -> (Arc<SimDevice>, Arc<Volume>) {
    let config = &CONFIGS[0];
    let dev = Arc::new(SimDevice::new(&image::base(config).unwrap()));
    let vol = mount(dev.clone(), Setting::new(config).options()).unwrap();
    (dev, vol)
}

/// The volume after a power cut now that keeps only what was flushed.
fn after_crash(dev: &SimDevice, vol: &Volume) -> Arc<Volume> {
    vol.shutdown();
    let image = Arc::new(dev.crash_image(dev.events(), &Outcome::None));
    Volume::recover(image.clone()).unwrap();
    image::fsck(&image).unwrap();
    mount(image, Setting::new(&CONFIGS[0]).options()).unwrap()
}

fn file(vol: &Volume, cx: &Context, name: &str, mode: u16) -> Ino {
    vol.mknod(cx, ROOT_INO, name.as_bytes(), 0o100000 | mode, 0)
        .unwrap()
        .ino
}

fn text(vol: &Volume, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    vol.read(ino, 0, 1 << 16, &mut out).unwrap();
    out
}

#[track_caller]
fn refused<T>(done: std::result::Result<T, Error>) {
    assert_eq!(done.err().map(|e| e.errno()), Some(libc::EPERM));
}

fn flags_hold(vol: &Volume, cx: &Context) {
    let root = ROOT_INO;
    let [i, a] = [b"i", b"a"].map(|n| vol.lookup(root, n).unwrap().ino);
    let w = WriteFlags::default();
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    assert_eq!(vol.getflags(i).unwrap() & IMMUTABLE, IMMUTABLE);
    assert_eq!(vol.getflags(a).unwrap() & APPEND, APPEND);
    for ino in [i, a] {
        refused(vol.write(cx, ino, 0, b"x", w));
        refused(vol.setattr(cx, ino, &size));
        refused(vol.link(cx, ino, root, b"l"));
        refused(vol.setxattr(cx, ino, b"user.a", b"v", false, false, false));
        refused(vol.fallocate(cx, ino, Fallocate::PunchHole, 0, 1));
    }
    for name in [b"i", b"a"] {
        refused(vol.unlink(cx, root, name));
        refused(vol.rename(cx, root, name, root, b"z", RenameFlags::default()));
    }
    let d = vol.lookup(root, b"d").unwrap().ino;
    refused(vol.mkdir(cx, d, b"e", 0o755));
    refused(vol.unlink(cx, d, b"f"));
    let plain = Context {
        privileged: false,
        posted: false,
        ..*cx
    };
    refused(vol.setflags(&plain, i, vol.getflags(i).unwrap() ^ IMMUTABLE));
    let end = vol.getattr(a).unwrap().size;
    assert_eq!(vol.write(cx, a, end, b"more", w).unwrap(), 4);
}

#[test]
fn flags_refuse_before_and_after_a_crash() {
    let (dev, vol) = fresh();
    let c = cx(&vol);
    let d = vol.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    vol.mknod(&c, d, b"f", 0o100644, 0).unwrap();
    for (name, flag) in [("i", IMMUTABLE), ("a", APPEND)] {
        let ino = file(&vol, &c, name, 0o644);
        vol.write(&c, ino, 0, b"some", WriteFlags::default())
            .unwrap();
        let flags = vol.getflags(ino).unwrap();
        vol.setflags(&c, ino, flags | flag).unwrap();
    }
    let flags = vol.getflags(d).unwrap();
    vol.setflags(&c, d, flags | IMMUTABLE).unwrap();
    flags_hold(&vol, &c);
    vol.streamsync(c.stream).unwrap();
    let vol = after_crash(&dev, &vol);
    flags_hold(&vol, &cx(&vol));
    vol.unmount().unwrap();
}

#[test]
fn default_acls_pass_on_before_and_after_a_crash() {
    const NONE: u32 = u32::MAX;
    // user::rwx user:1000:rwx group::r-x mask::rwx other::---
    let default = list_of([
        (1, 7, NONE),
        (2, 7, 1000),
        (4, 5, NONE),
        (16, 7, NONE),
        (32, 0, NONE),
    ])
    .to_vec();
    let (dev, vol) = fresh();
    let c = cx(&vol);
    let d = vol.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    vol.setxattr(
        &c,
        d,
        b"system.posix_acl_default",
        &default,
        false,
        false,
        false,
    )
    .unwrap();
    let f = vol.mknod(&c, d, b"f", 0o100666, 0).unwrap();
    let e = vol.mkdir(&c, d, b"e", 0o777).unwrap();
    // The mask takes the place of the group's bits; the umask does not count.
    assert_eq!((f.mode & 0o777, e.mode & 0o777), (0o660, 0o770));
    let access = list_of([
        (1, 6, NONE),
        (2, 7, 1000),
        (4, 5, NONE),
        (16, 6, NONE),
        (32, 0, NONE),
    ])
    .to_vec();
    let holds = |vol: &Volume| {
        let [f, e] = [b"f", b"e"].map(|n| {
            let d = vol.lookup(ROOT_INO, b"d").unwrap().ino;
            vol.lookup(d, n).unwrap()
        });
        let get = |ino, name: &str| vol.getxattr(ino, name.as_bytes()).unwrap();
        assert_eq!(get(f.ino, "system.posix_acl_access"), access);
        assert_eq!(get(e.ino, "system.posix_acl_default"), default);
        assert_eq!((f.mode & 0o777, e.mode & 0o777), (0o660, 0o770));
    };
    holds(&vol);
    vol.streamsync(c.stream).unwrap();
    let vol = after_crash(&dev, &vol);
    holds(&vol);
    vol.unmount().unwrap();
}

#[test]
fn a_write_and_the_bits_it_kills_are_one_operation() {
    let (dev, vol) = fresh();
    let c = cx(&vol);
    let ino = file(&vol, &c, "f", 0o6755);
    vol.streamsync(c.stream).unwrap();
    let flags = WriteFlags {
        kill_suidgid: true,
        ..WriteFlags::default()
    };
    vol.write(&c, ino, 0, b"data", flags).unwrap();
    vol.streamsync(c.stream).unwrap();
    vol.shutdown();
    for at in 0..=dev.events() {
        for seed in 0..4 {
            let image = Arc::new(dev.crash_image(at, &Outcome::Torn { seed }));
            let vol = mount(image, Setting::new(&CONFIGS[0]).options()).unwrap();
            if let Ok(f) = vol.lookup(ROOT_INO, b"f") {
                let seen = (f.mode & 0o7777, text(&vol, f.ino));
                let (old, new) = ((0o6755, Vec::new()), (0o755, b"data".to_vec()));
                assert!(seen == old || seen == new, "event {at}: {seen:?}");
            }
            vol.shutdown();
        }
    }
}

#[test]
fn write_back_belongs_to_the_last_writer() {
    let (dev, vol) = fresh();
    let (a, b) = (cx(&vol), cx(&vol));
    let ino = file(&vol, &a, "f", 0o644);
    vol.write(&a, ino, 0, b"first", WriteFlags::default())
        .unwrap();
    let flags = WriteFlags {
        writeback: true,
        ..WriteFlags::default()
    };
    vol.write(&b, ino, 0, b"store", flags).unwrap();
    file(&vol, &b, "g", 0o644);
    // What a syncs covers the store, and nothing that b did.
    vol.streamsync(a.stream).unwrap();
    let vol = after_crash(&dev, &vol);
    assert_eq!(text(&vol, ino), b"store");
    assert!(vol.lookup(ROOT_INO, b"g").is_err());
    vol.unmount().unwrap();
}

#[test]
fn copies_survive() {
    let (dev, vol) = fresh();
    let c = cx(&vol);
    let (from, to) = (file(&vol, &c, "from", 0o644), file(&vol, &c, "to", 0o644));
    let data: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
    vol.write(&c, from, 0, &data, WriteFlags::default())
        .unwrap();
    assert_eq!(
        vol.copy_range(&c, from, 1000, to, 77, 20_000).unwrap(),
        20_000
    );
    // No further than the source's end.
    assert_eq!(
        vol.copy_range(&c, from, 29_000, to, 20_077, 5000).unwrap(),
        1000
    );
    let want = [&[0; 77][..], &data[1000..21_000], &data[29_000..]].concat();
    assert_eq!(text(&vol, to), want);
    vol.fsync(&c, to, false).unwrap();
    let vol = after_crash(&dev, &vol);
    assert_eq!(text(&vol, to), want);
    vol.unmount().unwrap();
}
