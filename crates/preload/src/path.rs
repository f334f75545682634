//! Paths of calls.
use crate::answer::Stop;
use crate::count::Reason;
use crate::mounts::mounts;
use crate::place::Base;
use crate::program;
use crate::real;
use crate::region::region;
use crate::state::State;
use crate::table::What;

/// The number of a descriptor that a path of /proc names.
pub fn named_descriptor(path: &[u8]) -> Option<i32> {
    let number = path.strip_prefix(b"/proc/self/fd/")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// The path of a call.
pub struct Path<'p> {
    pub base: Base,
    pub bytes: &'p [u8],
}

impl<'p> Path<'p> {
    /// Of a call with a descriptor of a directory, or AT_FDCWD, and an address. Where it begins at a directory that is not held any more
    /// that becomes real.
    pub fn of(fd: u64, at: u64) -> Result<Path<'p>, Stop> {
        let bytes = program::path(at)?;
        let fd = fd as i32;
        let is_direct = region().is_some_and(|r| r.direct.has(fd));
        if !is_direct || bytes.first() == Some(&b'/') {
            return Ok(Path {
                base: Base::At(fd),
                bytes,
            });
        }
        let state = State::get().ok_or(Stop::Kernel)?;
        let open = state.table.get(fd).ok_or(Stop::Kernel)?;
        match &open.what {
            What::Dir(dir, id) if dir.is_direct() && state.tree().dir(*id).is_some() => Ok(Path {
                base: Base::Held(*id),
                bytes,
            }),
            _ => {
                real::make(state, &open, Reason::BrokenHold)?;
                Ok(Path {
                    base: Base::At(fd),
                    bytes,
                })
            }
        }
    }
}

/// All but the last name of a path, and that. `None`: it has none that could be made.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|b| *b != b'/')? + 1;
    let start = path[..end]
        .iter()
        .rposition(|b| *b == b'/')
        .map_or(0, |at| at + 1);
    let name = &path[start..end];
    (name != b"." && name != b"..").then_some((&path[..start], name))
}

/// It is relative, or leads to a mount.
pub fn may_lead_there(path: &[u8]) -> bool {
    path.first() != Some(&b'/') || mounts().may_lead_there(path)
}
