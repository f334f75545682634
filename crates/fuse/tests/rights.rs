//! `ccfs_fuse::rights` against the kernel: random callers make random calls on a mount with `default_permissions`, and what the kernel
//! answers must be what the module says of the same attributes.
#![allow(unsafe_code)]
mod common;
mod random_calls;
use ccfs_caller::procfs::Credentials;
use ccfs_engine::acl::Acl;
use ccfs_fuse::FsType;
use ccfs_fuse::rights::{Answer, Caller, Object, Rename, SEARCH, Sysctls, Times};
use ccfs_fuse::wire::Errno;
use ccfs_testkit::Rng;
use common::{TestMount, can_mount};
use random_calls::{ACCESS_LIST, Call, DIRS, NAMES, below, dress, kind_of, mend, somebody};
use rustix::fs::{self, FileType, Gid, Mode, OFlags, RenameFlags, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::time::Instant;

/// Calls that are compared, and the seed where `CCFS_TEST_SEED` is not set.
const CALLS: u32 = 12_000;
const SEED: u64 = 20_271;

/// Answers that a run must have seen, each at least `SEEN_MIN` times: with none of them it would have compared nothing of that kind.
const TO_SEE: &[(&str, &[i32])] = &[
    (
        "open",
        &[0, libc::EACCES, libc::EPERM, libc::EEXIST, libc::ENOTDIR],
    ),
    ("mkdir", &[0, libc::EACCES]),
    ("mkfifo", &[0, libc::EACCES]),
    ("symlink", &[0, libc::EACCES]),
    ("unlink", &[0, libc::EACCES, libc::EPERM]),
    ("rmdir", &[0, libc::EACCES, libc::EPERM]),
    (
        "rename",
        &[0, libc::EACCES, libc::EPERM, libc::ENOTDIR, libc::EISDIR],
    ),
    ("link", &[0, libc::EACCES, libc::EPERM]),
    ("chmod", &[0, libc::EACCES, libc::EPERM]),
    ("chown", &[0, libc::EACCES, libc::EPERM]),
    ("times", &[0, libc::EACCES, libc::EPERM]),
    ("truncate", &[0, libc::EACCES]),
    ("access", &[0, libc::EACCES]),
    ("stat", &[0, libc::EACCES]),
    ("write", &[0]),
];
const SEEN_MIN: u32 = 5;

const PERMISSION: u32 = 0o7777;

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(dir, _)| dir)
}

/// The directories that a walk to `path` searches.
fn walked(path: &str) -> Vec<&str> {
    let ends = path.match_indices('/').map(|(at, _)| &path[..at]);
    std::iter::once(".").chain(ends).collect()
}

/// What root sees of an object.
struct Fact {
    mode: u16,
    uid: u32,
    gid: u32,
    acl: Option<Acl>,
}

impl Fact {
    fn of(path: &str) -> Option<Fact> {
        let stat = fs::lstat(path).ok()?;
        let mut value = [0; 256];
        let acl = match fs::lgetxattr(path, ACCESS_LIST, &mut value[..]) {
            Ok(len) => Acl::from_syscall(&value[..len]).unwrap(),
            Err(_) => None,
        };
        Some(Fact {
            mode: stat.st_mode as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            acl,
        })
    }

    fn object(&self) -> Object<'_> {
        Object {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            acl: self.acl.as_ref(),
        }
    }

    fn is(&self, kind: FileType) -> bool {
        FileType::from_raw_mode(self.mode.into()) == kind
    }
}

/// What the module says.
struct Judge<'a> {
    caller: &'a Caller,
    sysctls: &'a Sysctls,
}

impl Judge<'_> {
    fn walk(&self, path: &str) -> Answer {
        for dir in walked(path) {
            self.caller.may(&Fact::of(dir).unwrap().object(), SEARCH)?;
        }
        Ok(())
    }

    /// What is there, after a walk to it.
    fn found(&self, path: &str) -> Result<Fact, Errno> {
        self.walk(path)?;
        Fact::of(path).ok_or(Errno(libc::ENOENT))
    }

    /// The directory in which the name is free.
    fn free(&self, path: &str) -> Result<Fact, Errno> {
        match self.found(path) {
            Err(Errno(libc::ENOENT)) => Ok(Fact::of(parent(path)).unwrap()),
            Err(e) => Err(e),
            Ok(_) => Err(Errno(libc::EEXIST)),
        }
    }

    /// The permission bits that the path's object has after the call, if they are known then.
    fn judge(&self, call: &Call) -> Result<Option<u16>, Errno> {
        let caller = self.caller;
        match call {
            Call::Open(path, flags, mode) => return self.open(path, *flags, *mode as u16),
            Call::Mkdir(path, mode) => {
                let dir = self.free(path)?;
                caller.may_create(&dir.object())?;
                return Ok(Some(*mode as u16 & 0o1777 | dir.mode & 0o2000));
            }
            Call::Mkfifo(path, mode) => {
                let dir = self.free(path)?;
                caller.may_create(&dir.object())?;
                return Ok(Some(caller.mode_of_new(&dir.object(), *mode as u16)));
            }
            Call::Symlink(path) => caller.may_create(&self.free(path)?.object())?,
            Call::Unlink(path) | Call::Rmdir(path) => {
                let victim = self.found(path)?;
                let dir = Fact::of(parent(path)).unwrap();
                caller.may_remove(&dir.object(), &victim.object())?;
                let is_dir = victim.is(FileType::Directory);
                match (call, is_dir) {
                    (Call::Unlink(_), true) => return Err(Errno(libc::EISDIR)),
                    (Call::Rmdir(_), false) => return Err(Errno(libc::ENOTDIR)),
                    (Call::Rmdir(_), true) => full(path)?,
                    _ => {}
                }
            }
            Call::Rename(old, new, flags) => self.rename(old, new, *flags)?,
            Call::Link(old, new) => {
                let file = self.found(old)?;
                let dir = self.free(new)?;
                caller.may_link(&dir.object(), &file.object(), self.sysctls)?;
                if file.is(FileType::Directory) {
                    return Err(Errno(libc::EPERM));
                }
            }
            Call::Chmod(path, mode) => {
                let object = self.found(path)?;
                return caller.may_chmod(&object.object(), *mode as u16).map(Some);
            }
            Call::Chown(path, uid, gid) => {
                let object = self.found(path)?;
                caller.may_chown(&object.object(), *uid, *gid)?;
                let nothing = uid.is_none() && gid.is_none();
                let dropped = caller.dropped_by_chown(&object.object());
                return Ok((!nothing).then(|| dropped.of(object.mode)));
            }
            Call::Times(_, [UTIME_OMIT, UTIME_OMIT]) => {}
            Call::Times(path, nanoseconds) => {
                let times = match nanoseconds {
                    [UTIME_NOW, UTIME_NOW] => Times::Now,
                    _ => Times::Given,
                };
                caller.may_set_times(&self.found(path)?.object(), times)?;
            }
            Call::Truncate(path, _) => {
                let file = self.found(path)?;
                caller.may_resize(&file.object())?;
                let dropped = caller.dropped_by_write(&file.object());
                return Ok(Some(dropped.of(file.mode)));
            }
            Call::Access(path, want) => caller.may(&self.found(path)?.object(), *want)?,
            Call::Stat(path) => drop(self.found(path)?),
            Call::Write(path) => {
                let file = Fact::of(path).unwrap();
                let dropped = caller.dropped_by_write(&file.object());
                let written = file.is(FileType::RegularFile);
                return Ok(written.then(|| dropped.of(file.mode)));
            }
        }
        Ok(None)
    }

    fn open(&self, path: &str, flags: i32, mode: u16) -> Result<Option<u16>, Errno> {
        let has = |flag: i32| flags & flag != 0;
        let dir = || Fact::of(parent(path)).unwrap();
        let object = match self.found(path) {
            Err(Errno(libc::ENOENT)) if has(libc::O_CREAT) => {
                self.caller.may_create(&dir().object())?;
                return Ok(Some(self.caller.mode_of_new(&dir().object(), mode)));
            }
            found => found?,
        };
        self.caller
            .may_open_name(&dir().object(), &object.object(), flags, self.sysctls)?;
        if object.is(FileType::Fifo) && !has(libc::O_PATH) {
            match flags & libc::O_ACCMODE {
                libc::O_WRONLY => return Err(Errno(libc::ENXIO)),
                3 => return Err(Errno(libc::EINVAL)),
                _ => {}
            }
        }
        let cut = has(libc::O_TRUNC) && object.is(FileType::RegularFile);
        let dropped = self.caller.dropped_by_write(&object.object());
        Ok(cut.then(|| dropped.of(object.mode)))
    }

    fn rename(&self, old: &str, new: &str, flags: RenameFlags) -> Answer {
        let exchange = flags == RenameFlags::EXCHANGE;
        self.walk(old)?;
        self.walk(new)?;
        let moved = self.found(old)?;
        let target = Fact::of(new);
        if flags == RenameFlags::NOREPLACE && target.is_some() {
            return Err(Errno(libc::EEXIST));
        }
        if exchange && target.is_none() {
            return Err(Errno(libc::ENOENT));
        }
        if below(new, old) || exchange && below(old, new) {
            return Err(Errno(libc::EINVAL));
        }
        if below(old, new) {
            return Err(Errno(libc::ENOTEMPTY));
        }
        if old == new {
            return Ok(());
        }
        let (from, to) = (parent(old), parent(new));
        let (source, goal) = (Fact::of(from).unwrap(), Fact::of(to).unwrap());
        self.caller.may_rename(&Rename {
            from: source.object(),
            to: goal.object(),
            other_parent: from != to,
            moved: moved.object(),
            target: target.as_ref().map(Fact::object),
            exchange,
        })?;
        match target {
            Some(target) if target.is(FileType::Directory) && !exchange => full(new),
            _ => Ok(()),
        }
    }
}

/// What the engine says after the rights: only `e` is an empty directory.
fn full(dir: &str) -> Answer {
    match dir.ends_with('e') {
        true => Ok(()),
        false => Err(Errno(libc::ENOTEMPTY)),
    }
}

/// Root as this thread was when the test began.
struct Root(CapabilitySets);

impl Root {
    /// What `run` gives as this caller. Threads have credentials of their own; this one keeps what it needs to be root again.
    fn acting_as<T>(&self, who: &Credentials, run: impl FnOnce() -> T) -> T {
        let groups = |ids: &[u32]| {
            let ids: Vec<Gid> = ids.iter().copied().map(Gid::from_raw).collect();
            set_thread_groups(&ids).unwrap();
        };
        let ids = |uid, gid| {
            set_thread_res_gid(Gid::ROOT, Gid::from_raw(gid), Gid::ROOT).unwrap();
            set_thread_res_uid(Uid::ROOT, Uid::from_raw(uid), Uid::ROOT).unwrap();
        };
        groups(&who.groups);
        ids(who.uid, who.gid);
        let effective = CapabilitySet::from_bits_retain(who.capabilities);
        let some = CapabilitySets {
            effective,
            ..self.0
        };
        set_capabilities(None, some).unwrap();
        let result = run();
        set_capabilities(None, self.0).unwrap();
        ids(0, 0);
        groups(&[]);
        result
    }
}

fn sysctl(name: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/sys/fs/{name}"));
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

/// The objects of the call, and the directories on the way, as a text.
fn look(call: &Call) -> String {
    let mut text = String::new();
    for path in call.paths() {
        for at in [walked(path), vec![path]].concat() {
            match Fact::of(at) {
                None => writeln!(text, "  {at}: nothing"),
                Some(Fact {
                    mode,
                    uid,
                    gid,
                    acl,
                }) => {
                    writeln!(text, "  {at}: {mode:o} {uid}:{gid} {acl:?}")
                }
            }
            .unwrap();
        }
    }
    text
}

/// How often a call gave an error number.
type Counts = BTreeMap<(String, i32), u32>;

fn compare(seed: u64) -> Counts {
    let mut counts = Counts::new();
    let mut rng = Rng::new(seed);
    let root = Root(capabilities(None).unwrap());
    let sysctls = Sysctls {
        protected_hardlinks: sysctl("protected_hardlinks"),
        protected_regular: sysctl("protected_regular"),
        protected_fifos: sysctl("protected_fifos"),
    };
    for dir in DIRS {
        mend(&mut rng, dir);
        for name in NAMES {
            mend(&mut rng, &format!("{dir}/{name}"));
        }
    }
    for number in 0..CALLS {
        let call = Call::draw(&mut rng);
        let mut involved: Vec<&str> = call.paths();
        involved.extend(call.paths().into_iter().flat_map(walked));
        for path in involved {
            if rng.chance(25) && fs::lstat(path).is_ok() {
                dress(&mut rng, path);
            }
        }
        let who = somebody(&mut rng);
        let caller = Caller::new(&who, true);
        let judge = Judge {
            caller: &caller,
            sysctls: &sysctls,
        };
        let said = judge.judge(&call);
        let path = *call.paths().last().unwrap();
        let file = match &call {
            Call::Write(path) if kind_of(path) == Some(FileType::RegularFile) => {
                Some(fs::open(path, OFlags::WRONLY, Mode::empty()).unwrap())
            }
            _ => None,
        };
        let seen = look(&call);
        let errno = root.acting_as(&who, || call.perform(file.as_ref()));
        let expected = said.err().map_or(0, |e| e.0);
        let about = format!(
            "CCFS_TEST_SEED={seed}, call {number}: {call:?}\n  {who:?}\n{seen}  {sysctls:?}"
        );
        assert_eq!(errno, expected, "kernel, module: {about}");
        *counts.entry((call.name(), errno)).or_default() += 1;
        // The server takes uid 0 for who has CAP_FSETID when it drops setgid for a chown.
        let known =
            !matches!(call, Call::Chown(..)) || (who.uid == 0) == (who.capabilities & 16 != 0);
        if let Ok(Some(mode)) = said
            && known
        {
            let mode = u32::from(mode) & PERMISSION;
            let now = u32::from(Fact::of(path).unwrap().mode) & PERMISSION;
            assert_eq!(now, mode, "mode {now:o}, not {mode:o}: {about}");
        }
        if errno == 0 {
            call.undo();
        }
        for path in call.paths() {
            mend(&mut rng, path);
        }
    }
    counts
}

#[test]
fn as_the_kernel_answers() {
    if !can_mount("as_the_kernel_answers") {
        return;
    }
    let seed = std::env::var("CCFS_TEST_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let mut m = TestMount::new(FsType::Fuse);
    let mnt = m.mnt();
    let start = Instant::now();
    let thread = std::thread::spawn(move || {
        // SAFETY: nothing is shared any more that anybody relies on: working directory and umask become this thread's own.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
        std::env::set_current_dir(mnt).unwrap();
        rustix::process::umask(Mode::empty());
        compare(seed)
    });
    let counts = thread.join().unwrap_or_else(|e| resume_unwind(e));
    println!("{CALLS} calls, {:.1} s", start.elapsed().as_secs_f64());
    for ((call, errno), count) in &counts {
        println!("  {call}, error {errno}: {count} times");
    }
    for (call, answers) in TO_SEE {
        for errno in *answers {
            let seen = counts.get(&(call.to_string(), *errno)).unwrap_or(&0);
            assert!(*seen >= SEEN_MIN, "{call}, error {errno}: {seen} times");
        }
    }
    m.unmount();
}
