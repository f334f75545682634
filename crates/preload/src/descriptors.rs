//! Numbers of descriptors: copies, closes, and what becomes of them.
use crate::answer::{Answer, Stop};
use crate::call::Call;
use crate::count::Reason;
use crate::files::On;
use crate::identity::known;
use crate::program;
use crate::raw;
use crate::real;
use crate::region::{DESCRIPTORS, Region};
use crate::state::State;

/// close(2).
pub fn close(state: &State, fd: i32) -> Answer {
    let moves = state.table.moving();
    let open = state.table.remove(fd);
    let done = raw::numbers(libc::SYS_close, [fd.into()]);
    drop(moves);
    drop(open);
    Ok(done?)
}

/// dup(2), and fcntl(2) with F_DUPFD: another number for the same.
pub fn duplicate(on: &On<'_>, lowest: i32, cloexec: bool) -> Answer {
    let moves = on.state.table.moving();
    if on.open.place().gone {
        return Err(Stop::Kernel);
    }
    match on.state.new_descriptor_from(lowest, cloexec) {
        Ok(fd) => Ok(on.state.give(fd, on.open.clone())),
        // The number is too large for this library.
        Err(Stop::Kernel) => {
            drop(moves);
            on.leave(Reason::Control)
        }
        Err(e) => Err(e),
    }
}

/// dup2(2) and dup3(2).
pub fn duplicate_to(region: &Region, call: &Call, from: i32, to: i32, flags: u64) -> Answer {
    let state = State::get().ok_or(Stop::Kernel)?;
    if region.own.has(to) {
        // As if it were above the limit of numbers.
        return Err(Stop::Errno(libc::EBADF));
    }
    if from == to || to < 0 || to as usize >= DESCRIPTORS || flags & !(libc::O_CLOEXEC as u64) != 0
    {
        // It changes nothing, or is refused; a number too large needs what is real.
        if from != to {
            real::descriptor(from, Reason::Control)?;
        }
        return Err(Stop::Kernel);
    }
    let moves = state.table.moving();
    let open = state.table.get(from).filter(|open| !open.place().gone);
    let result = raw::make(call);
    if result < 0 {
        return Ok(result);
    }
    let replaced = state.table.remove(to);
    if let Some(open) = open {
        state.table.put(to, open);
    }
    drop(moves);
    drop(replaced);
    Ok(result)
}

/// close_range(2), but for what is this library's own.
pub fn close_range(region: &Region, first: u64, last: u64, flags: u64) -> Answer {
    const UNSHARE: u64 = libc::CLOSE_RANGE_UNSHARE as u64;
    const CLOEXEC: u64 = libc::CLOSE_RANGE_CLOEXEC as u64;
    let state = State::get().ok_or(Stop::Kernel)?;
    if first > last || flags & !(UNSHARE | CLOEXEC) != 0 {
        return Err(Stop::Kernel);
    }
    let moves = state.table.moving();
    let mut closed = Vec::new();
    if flags & CLOEXEC == 0 {
        let numbers = state.table.all().into_iter().map(|(fd, _)| fd);
        let inside = numbers.filter(|fd| (first..=last).contains(&(*fd as u64)));
        closed.extend(inside.map(|fd| state.table.remove(fd)));
    }
    let mut from = first;
    let mut done = Ok(0);
    for own in region.own.all().map(|fd| fd as u64) {
        if (from..=last).contains(&own) {
            if from < own {
                let args = [from as i64, own as i64 - 1, flags as i64];
                done = done.and(raw::numbers(libc::SYS_close_range, args));
            }
            from = own + 1;
        }
    }
    if from <= last {
        let args = [from as i64, last as i64, flags as i64];
        done = done.and(raw::numbers(libc::SYS_close_range, args));
    }
    drop(moves);
    drop(closed);
    Ok(done?)
}

/// fcntl(2).
pub fn control(on: &On<'_>, command: u64, argument: u64) -> Answer {
    match command as i32 {
        // The number's own flag: the kernel has it.
        libc::F_GETFD | libc::F_SETFD => Err(Stop::Kernel),
        libc::F_DUPFD => duplicate(on, argument as i32, false),
        libc::F_DUPFD_CLOEXEC => duplicate(on, argument as i32, true),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => on.leave(Reason::Locked),
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => on.leave(Reason::Locked),
        _ => match on.status_flags(command, argument) {
            Some(answer) => answer,
            None => on.leave(Reason::Control),
        },
    }
}

/// A sync call of a descriptor that this library does not stand for.
pub fn sync_is_ignored(fd: i32) -> Answer {
    known(fd, b"").map(|_| 0)
}

/// fstatfs(2) and syncfs(2): of the volume, whatever it is called by.
pub fn of_volume(on: &On<'_>, call: &Call) -> Answer {
    let own = on.state.tree().a_descriptor(on.open.device);
    let Some(own) = own else {
        return on.leave(Reason::Control);
    };
    let mut args = call.args;
    args[0] = own as u64;
    Ok(raw::call(call.rax as i64, args))
}

/// chdir(2) and fchdir(2), made here, to know when it is done.
pub fn change_directory(call: &Call) -> Answer {
    let state = State::get().ok_or(Stop::Kernel)?;
    if call.rax as i64 == libc::SYS_fchdir {
        real::descriptor(call.args[0] as i32, Reason::Control)?;
    }
    // Who looks meanwhile finds the old one or the new one; who looks later the new one. It may be on any file system: nothing is locked.
    let result = raw::make(call);
    state.tree().forget_cwd();
    Ok(result)
}

/// umask(2): sessions have it, too.
pub fn change_umask(mask: u64) -> Answer {
    let state = State::get().ok_or(Stop::Kernel)?;
    let tree = state.tree();
    let before = raw::numbers(libc::SYS_umask, [mask as i64])?;
    for session in tree.sessions() {
        session.set_umask(mask as u32 & 0o777);
    }
    Ok(before)
}

/// Descriptors in what the call points to become real.
pub fn leave_those_of(call: &Call, why: Reason) -> Answer {
    let [a, b, c, d, ..] = call.args;
    match call.rax as i64 {
        libc::SYS_poll | libc::SYS_ppoll => {
            for n in 0..b.min(1 << 16) {
                let one: libc::pollfd = program::read(a + n * size_of::<libc::pollfd>() as u64)?;
                real::descriptor(one.fd, why)?;
            }
        }
        libc::SYS_select | libc::SYS_pselect6 => {
            let most = a.min(DESCRIPTORS as u64);
            for set in [b, c, d].into_iter().filter(|set| *set != 0) {
                for word in 0..most.div_ceil(64) {
                    let mut bits: u64 = program::read(set + word * 8)?;
                    while bits != 0 {
                        real::descriptor((word * 64) as i32 + bits.trailing_zeros() as i32, why)?;
                        bits &= bits - 1;
                    }
                }
            }
        }
        libc::SYS_sendmsg => {
            real::descriptor(a as i32, why)?;
            leave_passed(b)?;
        }
        libc::SYS_sendmmsg => {
            real::descriptor(a as i32, why)?;
            for n in 0..c.min(1024) {
                leave_passed(b + n * size_of::<libc::mmsghdr>() as u64)?;
            }
        }
        _ => real::all(why, false),
    }
    Err(Stop::Kernel)
}

/// Those that a message passes (SCM_RIGHTS).
fn leave_passed(message: u64) -> Result<(), Stop> {
    const HEAD: u64 = size_of::<libc::cmsghdr>() as u64;
    let message: libc::msghdr = program::read(message)?;
    let start = message.msg_control as u64;
    if start == 0 {
        return Ok(());
    }
    let (mut at, end) = (start, start + message.msg_controllen as u64);
    while at + HEAD <= end {
        let head: libc::cmsghdr = program::read(at)?;
        let len = (head.cmsg_len as u64).min(end - at);
        if len < HEAD {
            break;
        }
        if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for n in 0..(len - HEAD) / 4 {
                real::descriptor(program::read(at + HEAD + n * 4)?, Reason::Passed)?;
            }
        }
        at += len.next_multiple_of(8);
    }
    Ok(())
}
