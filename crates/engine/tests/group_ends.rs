//! Why a group ended, and what it was too large for, is known also when it is gone.
mod common;
use ccfs_engine::*;
use common::groups::{HOME, OTHER, begin, errno, file};
use common::{cx, image, mount_on};
use std::sync::Arc;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(1);

fn volume(options: Options) -> Arc<Volume> {
    let options = Options {
        background: false,
        ..options
    };
    mount_on(Arc::new(image(&[], "64M")), options).unwrap()
}

/// What becomes of a group that `end` ends, in whose stream it is done.
fn fate(v: &Volume, end: impl FnOnce(StreamId, &Context)) -> Arc<Fate> {
    let (id, g) = begin(v);
    let fate = v.group_fate(id).unwrap();
    assert!(fate.is_open() && fate.taken_back().is_none());
    end(id, &g);
    assert!(!fate.is_open() && v.group_fate(id).is_none());
    fate
}

#[test]
fn each_end_has_its_reason() {
    let v = volume(Options {
        group_wait: Duration::ZERO,
        ..Options::default()
    });
    let asked = fate(&v, |id, _| v.group_abort(id).unwrap());
    assert_eq!(asked.taken_back(), Some(Reason::Asked));
    let left = fate(&v, |id, _| v.group_abandon(id).unwrap());
    assert_eq!(left.taken_back(), Some(Reason::Left));
    let committed = fate(&v, |id, _| v.group_commit(id, true).unwrap());
    assert!(committed.is_committed() && committed.taken_back().is_none());
    let f = file(&v, &cx(OTHER), "f", b"before");
    let write = |c: &Context| v.write(c, f.ino, 0, b"now", WriteFlags::default());
    let waited = fate(&v, |_, g| {
        write(g).unwrap();
        write(&cx(OTHER)).unwrap();
        assert_eq!(errno(write(g)), libc::ECANCELED);
    });
    assert_eq!(waited.taken_back(), Some(Reason::Waited));
    let lost = fate(&v, |id, g| {
        write(g).unwrap();
        v.refused_page(f.ino, &Error::Errno(libc::EDQUOT));
        assert_eq!(errno(v.group_commit(id, true)), libc::EDQUOT);
    });
    assert_eq!(lost.taken_back(), Some(Reason::StoresTooLarge));
    let open = fate(&v, |_, _| v.unmount().unwrap());
    assert_eq!(open.taken_back(), Some(Reason::Unmounted));
}

/// A rename between directories would keep all others waiting in the kernel.
#[test]
fn what_waits_for_nobody_is_told_apart() {
    let v = volume(Options {
        group_wait: Duration::from_secs(3600),
        ..Options::default()
    });
    file(&v, &cx(OTHER), "f", b"before");
    let dir = v.mkdir(&cx(OTHER), ROOT_INO, b"d", 0o755).unwrap();
    let rename =
        |c: &Context, from: Ino, to: Ino| v.rename(c, from, b"f", to, b"f", RenameFlags::default());
    let moved = fate(&v, |_, g| {
        rename(g, ROOT_INO, dir.ino).unwrap();
        assert_eq!(errno(rename(&cx(OTHER), dir.ino, ROOT_INO)), libc::ENOENT);
    });
    assert_eq!(moved.taken_back(), Some(Reason::WaitsForNobody));
    v.unmount().unwrap();
}

#[test]
fn whose_time_was_up_is_known() {
    let of = |own: Option<Duration>, mounts: Option<Duration>| {
        let v = volume(Options {
            group_timeout: mounts,
            ..Options::default()
        });
        let id = v.group_begin(StreamId(HOME), 0, own).unwrap();
        let fate = v.group_fate(id).unwrap();
        while fate.is_open() {
            v.tick(Duration::from_secs(3600)).unwrap();
        }
        v.unmount().unwrap();
        (fate.taken_back().unwrap(), fate.time().unwrap())
    };
    let long = Some(Duration::from_secs(3600));
    assert_eq!(of(Some(SHORT), None), (Reason::OwnTime, SHORT));
    assert_eq!(of(Some(SHORT), long), (Reason::OwnTime, SHORT));
    assert_eq!(of(long, Some(SHORT)), (Reason::MountTime, SHORT));
    assert_eq!(of(None, Some(SHORT)), (Reason::MountTime, SHORT));
}

#[test]
fn what_it_was_too_large_for_is_known() {
    let v = volume(Options {
        dirty_limit: 8 << 20,
        ..Options::default()
    });
    let memory = fate(&v, |id, g| {
        let f = file(&v, g, "f", b"");
        let mut at = 0;
        while let Ok(n) = v.write(g, f.ino, at, &[3; 1 << 18], WriteFlags::default()) {
            at += n as u64;
        }
        v.group_abort(id).unwrap();
    });
    assert_eq!(memory.refused(), Some((Limit::Memory, 4 << 20)));
    assert_eq!(memory.taken_back(), Some(Reason::Asked));
    v.unmount().unwrap();
    // With memory enough the log, which is small, is what bounds it.
    let v = volume(Options::default());
    let many = fate(&v, |id, g| {
        for n in 0u32.. {
            let name = format!("{n:0200}");
            if v.mkdir(g, ROOT_INO, name.as_bytes(), 0o755).is_err() {
                break;
            }
        }
        v.group_abort(id).unwrap();
    });
    let (limit, size) = many.refused().unwrap();
    assert!(matches!(limit, Limit::Log | Limit::Names), "{limit:?}");
    assert!(size > 0 && size < 64 << 20);
    v.unmount().unwrap();
}
