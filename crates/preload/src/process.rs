//! Calls that are about the process itself, or about several descriptors.
use crate::answer::{Answer, Stop};
use crate::by_path;
use crate::call::Call;
use crate::children;
use crate::count::Reason;
use crate::descriptors;
use crate::real;
use crate::region::Region;
use crate::signals;

/// Makes a call, or prepares for the kernel to make it.
pub fn call(region: &Region, call: &Call) -> Answer {
    let [a, b, c, ..] = call.args;
    match call.rax as i64 {
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            children::begin(region, call)
        }
        libc::SYS_execve => {
            by_path::leave_links_of_processes(call);
            children::become_another(region)
        }
        libc::SYS_execveat => {
            real::descriptor(a as i32, Reason::Executed)?;
            children::become_another(region)
        }
        libc::SYS_rt_sigaction => signals::note_handler(region, a, b),
        libc::SYS_dup2 | libc::SYS_dup3 => {
            let _in = region.gate.enter();
            let flags = match call.rax as i64 {
                libc::SYS_dup3 => c,
                _ => 0,
            };
            descriptors::duplicate_to(region, call, a as i32, b as i32, flags)
        }
        libc::SYS_close_range if c & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0 => children::end(),
        libc::SYS_close_range => {
            let _in = region.gate.enter();
            descriptors::close_range(region, a, b, c)
        }
        libc::SYS_chdir | libc::SYS_fchdir => {
            let _in = region.gate.enter();
            by_path::leave_links_of_processes(call);
            descriptors::change_directory(call)
        }
        libc::SYS_umask => {
            let _in = region.gate.enter();
            descriptors::change_umask(a)
        }
        libc::SYS_umount2 => children::let_go(region),
        libc::SYS_munmap
        | libc::SYS_rt_sigprocmask
        | libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_exit => Err(Stop::Kernel),
        // The kernel refuses most of them, and then they change nothing; what was held is not held any more all the same.
        _ => children::end(),
    }
}
