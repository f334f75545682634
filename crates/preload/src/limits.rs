//! Limits of the process.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Does something that takes a descriptor for a moment. Where the program has used up its own the limit is raised for that moment.
pub fn with_room<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {}
        done => return done,
    }
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, most)?;
    let done = work();
    let _ = setrlimit(Resource::Nofile, limit);
    done
}
