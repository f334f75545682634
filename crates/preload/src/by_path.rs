//! Calls that are about paths.
use crate::answer::{Answer, Stop};
use crate::by_descriptor::stands_for;
use crate::call::Call;
use crate::count::Reason;
use crate::path::{self, Path};
use crate::paths;
use crate::program;
use crate::real;
use crate::region::region;
use crate::state::State;
use std::sync::atomic::Ordering::Relaxed;

/// It is newer than the table of numbers that is used here.
pub const FCHMODAT2: i64 = 452;

/// Makes a call, or leaves it to the kernel, with what that needs.
pub fn call(call: &Call) -> Answer {
    let answer = path(call).map_err(|stop| match stop {
        // The daemon is gone: by the path there may be another one's mount.
        Stop::Errno(libc::ENOTCONN) => {
            if let Some(state) = State::get() {
                state.forget_trees();
            }
            Stop::Kernel
        }
        stop => stop,
    });
    if let Err(Stop::Kernel) = answer {
        for n in dirs_of(call.rax as i64) {
            real::descriptor(call.args[*n] as i32, Reason::Uncertain)?;
        }
        leave_links_of_processes(call);
    }
    answer
}

/// Where a call that is about paths has descriptors of directories, each before its path.
fn dirs_of(number: i64) -> &'static [usize] {
    match number {
        libc::SYS_openat
        | libc::SYS_mkdirat
        | libc::SYS_unlinkat
        | libc::SYS_readlinkat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_fchmodat
        | FCHMODAT2
        | libc::SYS_fchownat
        | libc::SYS_utimensat => &[0],
        libc::SYS_linkat | libc::SYS_renameat | libc::SYS_renameat2 => &[0, 2],
        libc::SYS_symlinkat => &[1],
        _ => &[],
    }
}

/// Names of /dev that many programs open, and that lead to no descriptor.
const DEVICES: [&[u8]; 6] = [
    b"/dev/null",
    b"/dev/zero",
    b"/dev/full",
    b"/dev/random",
    b"/dev/urandom",
    b"/dev/tty",
];

/// By names of /proc and /dev the kernel gets to descriptors.
pub fn leave_links_of_processes(call: &Call) {
    let at = path_argument(call);
    let leads = |path: &[u8]| {
        let slashes = path.iter().take_while(|b| **b == b'/').count();
        let path = &path[slashes.saturating_sub(1)..];
        let is_device = DEVICES.contains(&path);
        path.starts_with(b"/proc/") || path.starts_with(b"/dev/") && !is_device
    };
    if region().is_some_and(|r| r.open.load(Relaxed) != 0) && program::path(at).is_ok_and(leads) {
        real::all(Reason::Uncertain, false);
    }
}

/// The first path that a call is about.
fn path_argument(call: &Call) -> u64 {
    let at = match (call.rax as i64, dirs_of(call.rax as i64)) {
        (libc::SYS_symlink | libc::SYS_inotify_add_watch, _) => 1,
        (_, dirs) => dirs.first().map_or(0, |dir| dir + 1),
    };
    call.args[at]
}

const CWD: u64 = libc::AT_FDCWD as u64;

fn path(call: &Call) -> Answer {
    let [a, b, c, d, e, _] = call.args;
    let at = Path::of;
    match call.rax as i64 {
        libc::SYS_open => paths::open(&at(CWD, a)?, b as i32, c),
        libc::SYS_openat => paths::open(&at(a, b)?, c as i32, d),
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            paths::open(&at(CWD, a)?, flags, b)
        }
        libc::SYS_mkdir => paths::make_dir(&at(CWD, a)?, b),
        libc::SYS_mkdirat => paths::make_dir(&at(a, b)?, c),
        libc::SYS_rmdir => paths::remove(&at(CWD, a)?, true),
        libc::SYS_unlink => paths::remove(&at(CWD, a)?, false),
        libc::SYS_unlinkat => {
            only(c, libc::AT_REMOVEDIR)?;
            paths::remove(&at(a, b)?, c != 0)
        }
        libc::SYS_rename => paths::rename(&at(CWD, a)?, &at(CWD, b)?, false),
        libc::SYS_renameat => paths::rename(&at(a, b)?, &at(c, d)?, false),
        libc::SYS_renameat2 => {
            only(e, libc::RENAME_NOREPLACE as i32)?;
            paths::rename(&at(a, b)?, &at(c, d)?, e != 0)
        }
        libc::SYS_link => paths::link(&at(CWD, a)?, &at(CWD, b)?),
        libc::SYS_linkat => {
            only(e, 0)?;
            paths::link(&at(a, b)?, &at(c, d)?)
        }
        libc::SYS_symlink => paths::symlink(a, &at(CWD, b)?),
        libc::SYS_symlinkat => paths::symlink(a, &at(b, c)?),
        libc::SYS_readlink => paths::read_link(&at(CWD, a)?, b, c),
        libc::SYS_readlinkat => paths::read_link(&at(a, b)?, c, d),
        _ => attributes(call),
    }
}

/// Other flags are the kernel's to judge.
fn only(flags: u64, known: i32) -> Result<(), Stop> {
    match flags as i32 & !known {
        0 => Ok(()),
        _ => Err(Stop::Kernel),
    }
}

/// Calls that ask for attributes, or change them.
fn attributes(call: &Call) -> Answer {
    let [a, b, c, d, e, _] = call.args;
    let at = Path::of;
    let nofollow = |flags: u64| flags as i32 & libc::AT_SYMLINK_NOFOLLOW != 0;
    let empty = |address: u64| address == 0 || program::path(address).is_ok_and(<[u8]>::is_empty);
    match call.rax as i64 {
        libc::SYS_stat => paths::stat(&at(CWD, a)?, b, true),
        libc::SYS_lstat => paths::stat(&at(CWD, a)?, b, false),
        libc::SYS_newfstatat if empty(b) => {
            only(
                d,
                libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT,
            )?;
            match d as i32 & libc::AT_EMPTY_PATH {
                0 => Err(Stop::Kernel),
                _ => stands_for(a)?.stat(c),
            }
        }
        libc::SYS_newfstatat => {
            only(
                d,
                libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT,
            )?;
            paths::stat(&at(a, b)?, c, !nofollow(d))
        }
        libc::SYS_statx => {
            // How fresh it has to be: it always is.
            const SYNC: i32 = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
            const NAMED: i32 = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
            only(c, SYNC | NAMED | libc::AT_EMPTY_PATH)?;
            match empty(b) {
                true if c as i32 & libc::AT_EMPTY_PATH != 0 => stands_for(a)?.statx(e),
                true => Err(Stop::Kernel),
                false => paths::statx(&at(a, b)?, e, !nofollow(c)),
            }
        }
        libc::SYS_access => paths::access(&at(CWD, a)?, b, true),
        libc::SYS_faccessat => paths::access(&at(a, b)?, c, true),
        libc::SYS_faccessat2 => {
            only(d, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EACCESS)?;
            paths::access(&at(a, b)?, c, !nofollow(d))
        }
        libc::SYS_chmod | libc::SYS_fchmodat => {
            let (from, path, bits) = match call.rax as i64 {
                libc::SYS_chmod => (CWD, a, b),
                _ => (a, b, c),
            };
            // As tar does it with what it has opened by O_PATH.
            let named = path::named_descriptor(program::path(path)?);
            match named.and_then(|fd| stands_for(fd as u64).ok()) {
                Some(on) => on.chmod(bits, true),
                None => paths::chmod(&at(from, path)?, bits),
            }
        }
        FCHMODAT2 => {
            only(d, libc::AT_SYMLINK_NOFOLLOW)?;
            paths::chmod(&at(a, b)?, c)
        }
        libc::SYS_chown | libc::SYS_lchown => paths::chown(&at(CWD, a)?, b, c),
        libc::SYS_fchownat if empty(b) && e as i32 == libc::AT_EMPTY_PATH => {
            stands_for(a)?.chown(c, d, true)
        }
        libc::SYS_fchownat => {
            only(e, libc::AT_SYMLINK_NOFOLLOW)?;
            paths::chown(&at(a, b)?, c, d)
        }
        libc::SYS_utimensat if b == 0 => {
            only(d, 0)?;
            stands_for(a)?.set_times(c, false)
        }
        libc::SYS_utimensat => {
            only(d, libc::AT_SYMLINK_NOFOLLOW)?;
            paths::set_times(&at(a, b)?, c)
        }
        libc::SYS_getxattr | libc::SYS_lgetxattr => {
            let follow = call.rax as i64 == libc::SYS_getxattr;
            paths::attribute(&at(CWD, a)?, follow, Err(Stop::Errno(libc::ENODATA)))
        }
        libc::SYS_setxattr | libc::SYS_lsetxattr => paths::set_attribute(&at(CWD, a)?, b, c, d, e),
        libc::SYS_removexattr | libc::SYS_lremovexattr => paths::remove_attribute(&at(CWD, a)?, b),
        libc::SYS_listxattr | libc::SYS_llistxattr => {
            let follow = call.rax as i64 == libc::SYS_listxattr;
            paths::attribute(&at(CWD, a)?, follow, Ok(0))
        }
        _ => Err(Stop::Kernel),
    }
}
