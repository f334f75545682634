//! Calls that are about a descriptor.
use crate::answer::{Answer, Stop};
use crate::call::Call;
use crate::count::Reason;
use crate::descriptors;
use crate::files::{At, On, buffers, one_buffer};
use crate::mounts::mounts;
use crate::real;
use crate::region::Region;
use crate::state::State;

/// What a descriptor stands for here. `Kernel`: nothing.
pub fn stands_for(fd: u64) -> Result<On<'static>, Stop> {
    let state = State::get().ok_or(Stop::Kernel)?;
    let open = state.table.get(fd as i32).ok_or(Stop::Kernel)?;
    Ok(On { state, open })
}

/// Makes a call on what its first argument stands for.
pub fn call(region: &Region, call: &Call) -> Answer {
    let [a, b, c, d, ..] = call.args;
    let number = call.rax as i64;
    if !region.direct.has(a as i32) {
        return match number {
            // The program does not know of it.
            libc::SYS_close if region.own.has(a as i32) => Err(Stop::Errno(libc::EBADF)),
            number if is_sync(number) && mounts().ignores_fsync() => {
                descriptors::sync_is_ignored(a as i32)
            }
            libc::SYS_ioctl if passes_descriptors(b as u32) => {
                real::all(Reason::Passed, false);
                Err(Stop::Kernel)
            }
            // It became the kernel's while this thread waited.
            _ => Err(Stop::Kernel),
        };
    }
    let on = stands_for(a)?;
    if on.open.is_path() && !is_of_paths(number, b) {
        return Err(Stop::Errno(libc::EBADF));
    }
    match number {
        libc::SYS_read => on.read(&one_buffer(b, c)?, At::Position),
        libc::SYS_write => on.write(&one_buffer(b, c)?, At::Position),
        libc::SYS_pread64 => on.read(&one_buffer(b, c)?, At::Offset(d as i64)),
        libc::SYS_pwrite64 => on.write(&one_buffer(b, c)?, At::Offset(d as i64)),
        libc::SYS_readv => on.read(&buffers(b, c)?, At::Position),
        libc::SYS_writev => on.write(&buffers(b, c)?, At::Position),
        libc::SYS_preadv => on.read(&buffers(b, c)?, At::Offset(d as i64)),
        libc::SYS_pwritev => on.write(&buffers(b, c)?, At::Offset(d as i64)),
        libc::SYS_lseek => on.seek(b as i64, c),
        libc::SYS_fstat => on.stat(b),
        libc::SYS_ftruncate => on.truncate(b as i64),
        libc::SYS_sync_file_range if mounts().ignores_fsync() => Ok(0),
        libc::SYS_sync_file_range => on.leave(Reason::Control),
        libc::SYS_fcntl => descriptors::control(&on, b, c),
        libc::SYS_ioctl => match b as u32 {
            // It is no terminal, and no file of another one's content.
            TCGETS => Err(Stop::Errno(libc::ENOTTY)),
            FICLONE => Err(Stop::Errno(libc::EOPNOTSUPP)),
            _ => on.leave(Reason::Control),
        },
        libc::SYS_close => descriptors::close(on.state, a as i32),
        libc::SYS_dup => descriptors::duplicate(&on, 0, false),
        libc::SYS_fchmod => on.chmod(b, false),
        libc::SYS_fchown => on.chown(b, c, false),
        libc::SYS_getdents64 => on.list(b, c),
        // How it will be used changes nothing.
        libc::SYS_fadvise64 => match d as i32 {
            0..=5 => Ok(0),
            _ => Err(Stop::Errno(libc::EINVAL)),
        },
        libc::SYS_fsetxattr => on.set_attribute(b, c, d, call.args[4]),
        libc::SYS_fgetxattr => on.attribute(Err(Stop::Errno(libc::ENODATA))),
        libc::SYS_flistxattr => on.attribute(Ok(0)),
        libc::SYS_fstatfs | libc::SYS_syncfs => descriptors::of_volume(&on, call),
        _ => on.leave(Reason::Control),
    }
}

/// Calls on a descriptor that names something only (O_PATH).
fn is_of_paths(number: i64, command: u64) -> bool {
    const COMMANDS: [i32; 5] = [
        libc::F_GETFL,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_DUPFD,
        libc::F_DUPFD_CLOEXEC,
    ];
    match number {
        libc::SYS_fstat | libc::SYS_fstatfs | libc::SYS_close | libc::SYS_dup => true,
        libc::SYS_fcntl => COMMANDS.contains(&(command as i32)),
        _ => false,
    }
}

/// It waits for nothing that others hold: they go on meanwhile.
pub fn sync(fd: i32) -> Answer {
    let on = stands_for(fd as u64)?;
    match on.open.is_path() {
        true => Err(Stop::Errno(libc::EBADF)),
        false if mounts().ignores_fsync() => Ok(0),
        false => on.sync(),
    }
}

/// Calls that eatmydata makes nothing of, too.
pub fn is_sync(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range
    )
}

/// An ioctl(2) that names another descriptor.
pub fn passes_descriptors(command: u32) -> bool {
    const FICLONERANGE: u32 = 0x4020_940d;
    const FIDEDUPERANGE: u32 = 0xc018_9436;
    const EXT4_IOC_MOVE_EXT: u32 = 0xc028_660f;
    const LOOP_SET_FD: u32 = 0x4c00;
    const LOOP_CHANGE_FD: u32 = 0x4c06;
    const LOOP_CONFIGURE: u32 = 0x4c0a;
    /// The kind of those of ccfs.
    const OURS: u32 = 0xcc;
    matches!(
        command,
        FICLONE
            | FICLONERANGE
            | FIDEDUPERANGE
            | EXT4_IOC_MOVE_EXT
            | LOOP_SET_FD
            | LOOP_CHANGE_FD
            | LOOP_CONFIGURE
    ) || command >> 8 & 0xff == OURS
}

const TCGETS: u32 = 0x5401;
const FICLONE: u32 = 0x4004_9409;
