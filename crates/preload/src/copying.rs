//! Copies from one descriptor to another: copy_file_range(2) and sendfile(2). Where the kernel has one of the two, bytes go through memory of this
//! library, as it would copy them itself.
use crate::answer::{Answer, Stop};
use crate::by_descriptor::stands_for;
use crate::call::Call;
use crate::count::Reason;
use crate::files::{At, On};
use crate::identity::borrowed;
use crate::program;
use crate::raw;
use crate::real;
use crate::state::State;
use crate::table::What;
use rustix::fs::{FileType, FsWord, OFlags, Stat, fcntl_getfl, fstat, fstatfs};
use rustix::io::pread;
use std::sync::OnceLock;

/// Bytes that are copied at a time.
const PIECE: usize = 128 << 10;
/// And by one call. Children are begun, and handlers of signals changed, behind it.
const MOST: u64 = 4 << 20;

/// One of two descriptors.
enum End {
    Ours(On<'static>, i32),
    /// A regular file.
    Kernels(i32, Stat),
}

/// Makes a call of the two.
pub fn call(call: &Call) -> Answer {
    match call.rax as i64 {
        libc::SYS_sendfile => send(call),
        _ => copy_range(call),
    }
}

fn copy_range(call: &Call) -> Answer {
    let [from, from_at, to, to_at, len, flags] = call.args;
    let Some((source, target)) = ends(from, to).filter(|_| flags == 0) else {
        return leave(from, to);
    };
    let done = match (&source, &target) {
        (End::Ours(source, _), End::Ours(target, _)) => source.copy_to(target, from_at, to_at, len),
        _ if from_at != 0 || to_at != 0 => Err(Stop::Kernel),
        _ if source.device() == target.device() || !refuses_others() => {
            copy(&source, None, &target, len)
        }
        _ => Err(Stop::Errno(libc::EXDEV)),
    };
    or_leave(done, from, to)
}

fn send(call: &Call) -> Answer {
    let [to, from, at, len, ..] = call.args;
    let Some((source, target)) = ends(from, to) else {
        return leave(from, to);
    };
    let offset = match at {
        0 => None,
        at => match u64::try_from(program::read::<i64>(at)?) {
            Ok(offset) => Some(offset),
            Err(_) => return leave(from, to),
        },
    };
    // The kernel copies all that there is, and not all programs look how much that was.
    let is_long = || -> Result<bool, Stop> {
        if len <= MOST {
            return Ok(false);
        }
        let begin = offset.map_or_else(|| source.position(), Ok)?;
        Ok(source.size()?.saturating_sub(begin) > MOST)
    };
    let done = match is_long() {
        Ok(false) => copy(&source, offset, &target, len),
        Ok(true) => Err(Stop::Kernel),
        Err(stop) => Err(stop),
    };
    let done = or_leave(done, from, to)?;
    if let Some(offset) = offset {
        program::write(at, &(offset as i64 + done))?;
    }
    Ok(done)
}

/// The two, where a copy between them can be made here.
fn ends(from: u64, to: u64) -> Option<(End, End)> {
    let (source, target) = (End::of(from, false)?, End::of(to, true)?);
    let can_be = match (&source, &target) {
        (End::Ours(source, _), End::Ours(target, _)) => !source.open.may_be_same(&target.open),
        // What is held is nothing that the kernel has. Another file system by FUSE may be this program's own, and wait for it.
        (End::Ours(on, _), End::Kernels(fd, stat)) | (End::Kernels(fd, stat), End::Ours(on, _)) => {
            match stat.st_dev == on.open.device {
                true => on.is_held(),
                false => !is_fuse(*fd),
            }
        }
        (End::Kernels(..), End::Kernels(..)) => false,
    };
    can_be.then_some((source, target))
}

/// One that is another's by now is the kernel's, and then both have to be.
fn or_leave(done: Answer, from: u64, to: u64) -> Answer {
    match done {
        Err(Stop::Kernel) => leave(from, to),
        done => done,
    }
}

/// The kernel makes the call, with descriptors of its own.
fn leave(from: u64, to: u64) -> Answer {
    real::descriptor(from as i32, Reason::Control)?;
    real::descriptor(to as i32, Reason::Control)?;
    Err(Stop::Kernel)
}

/// From an offset, or from the position, which goes on then.
fn copy(from: &End, from_at: Option<u64>, to: &End, len: u64) -> Answer {
    let state = State::get().ok_or(Stop::Kernel)?;
    let begin = match from_at {
        Some(at) => at,
        None => from.position()?,
    };
    let (mut done, most) = (0, len.min(MOST));
    let piece = |done: u64| {
        let len = (most - done).min(PIECE as u64) as usize;
        state.with_buffer(len, |data| {
            let read = from.read(data, begin + done)?;
            let put = to.write(&data[..read])?;
            Ok::<_, Stop>((put, put == len))
        })
    };
    while done < most {
        match piece(done) {
            Ok((put, is_whole)) => {
                done += put as u64;
                if !is_whole {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(stop) => return Err(stop),
        }
    }
    if from_at.is_none() && done > 0 {
        // It may have been closed meanwhile; what was copied was copied.
        let _ = from.go_to(begin + done);
    }
    Ok(done as i64)
}

impl End {
    /// `None`: that is the kernel's to judge.
    fn of(fd: u64, is_target: bool) -> Option<End> {
        let never = match is_target {
            true => OFlags::RDONLY,
            false => OFlags::WRONLY,
        };
        // Neither call writes to what is written at its end only.
        let is_open = |flags: OFlags| {
            let refused = match is_target {
                true => OFlags::APPEND | OFlags::PATH,
                false => OFlags::PATH,
            };
            !flags.intersects(refused) && flags & OFlags::ACCMODE != never
        };
        if let Ok(on) = stands_for(fd) {
            let is_file = matches!(on.open.what, What::File(_));
            let flags = OFlags::from_bits_retain(on.open.flags() as u32);
            return (is_file && is_open(flags)).then_some(End::Ours(on, fd as i32));
        }
        let file = borrowed(fd as i32);
        let flags = fcntl_getfl(file).ok()?;
        let stat = fstat(file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // Memory here is not aligned as it demands.
        let any_memory = !flags.contains(OFlags::DIRECT);
        (is_file && any_memory && is_open(flags)).then_some(End::Kernels(fd as i32, stat))
    }

    fn device(&self) -> u64 {
        match self {
            End::Ours(on, _) => on.open.device,
            End::Kernels(_, stat) => stat.st_dev,
        }
    }

    fn size(&self) -> Result<u64, Stop> {
        match self {
            End::Ours(on, _) => on.size(),
            End::Kernels(_, stat) => Ok(stat.st_size as u64),
        }
    }

    fn position(&self) -> Result<u64, Stop> {
        let at = match self {
            End::Ours(on, _) => on.seek(0, libc::SEEK_CUR as u64)?,
            End::Kernels(fd, _) => seek(*fd, 0, libc::SEEK_CUR)?,
        };
        Ok(at as u64)
    }

    fn go_to(&self, at: u64) -> Result<(), Stop> {
        let kernels = |fd| seek(fd, at as i64, libc::SEEK_SET);
        match self {
            End::Ours(on, fd) => match on.seek(at as i64, libc::SEEK_SET as u64) {
                // It has become the kernel's meanwhile, at its old position.
                Err(Stop::Kernel) => kernels(*fd)?,
                done => done?,
            },
            End::Kernels(fd, _) => kernels(*fd)?,
        };
        Ok(())
    }

    fn read(&self, out: &mut [u8], at: u64) -> Result<usize, Stop> {
        match self {
            End::Ours(on, _) => {
                let buffer = (out.as_mut_ptr() as u64, out.len() as u64);
                Ok(on.read(&[buffer], At::Offset(at as i64))? as usize)
            }
            End::Kernels(fd, _) => Ok(pread(borrowed(*fd), out, at)?),
        }
    }

    /// Where the last call ended.
    fn write(&self, data: &[u8]) -> Result<usize, Stop> {
        match self {
            _ if data.is_empty() => Ok(0),
            End::Ours(on, _) => {
                let buffer = (data.as_ptr() as u64, data.len() as u64);
                Ok(on.write(&[buffer], At::Position)? as usize)
            }
            End::Kernels(fd, _) => Ok(rustix::io::write(borrowed(*fd), data)?),
        }
    }
}

fn seek(fd: i32, offset: i64, whence: i32) -> Result<i64, Stop> {
    Ok(raw::numbers(
        libc::SYS_lseek,
        [fd.into(), offset, whence.into()],
    )?)
}

fn is_fuse(fd: i32) -> bool {
    const FUSE: FsWord = 0x6573_5546;
    fstatfs(borrowed(fd)).is_ok_and(|fs| fs.f_type == FUSE)
}

/// copy_file_range(2) refuses to copy from one file system to another kind: Linux does since 5.19.
fn refuses_others() -> bool {
    static REFUSES: OnceLock<bool> = OnceLock::new();
    *REFUSES.get_or_init(|| {
        let system = rustix::system::uname();
        let release = system.release().to_string_lossy().into_owned();
        let mut numbers = release
            .split(['.', '-'])
            .map_while(|n| n.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(5), Some(19))
    })
}
