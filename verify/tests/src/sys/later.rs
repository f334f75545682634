//! Asynchronous I/O: the kernel's aio (what libaio calls), and io_uring.
#![allow(unsafe_code)]

use super::{R, errno};
use io_uring::{IoUring, opcode, types};
use std::os::fd::{AsRawFd, OwnedFd};

/// Which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    Aio,
    Ring,
}

/// A queue for so many transfers at once.
pub struct Later(Queue);

enum Queue {
    Aio(libc::c_ulong),
    Ring(Box<IoUring>),
}

/// include/uapi/linux/aio_abi.h
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    prio: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

const IOCB_CMD_PWRITE: u16 = 1;

impl Later {
    pub fn new(calls: Calls, depth: u32) -> R<Later> {
        if calls == Calls::Ring {
            let ring = IoUring::new(depth);
            let ring = ring.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
            return Ok(Later(Queue::Ring(Box::new(ring))));
        }
        let mut context: libc::c_ulong = 0;
        call!(libc::syscall(libc::SYS_io_setup, depth, &mut context))?;
        Ok(Later(Queue::Aio(context)))
    }

    /// Writes `bytes` from `at` on, in parts of `part` bytes that are all under way at once. What became of each part.
    pub fn write(
        &mut self,
        fd: &OwnedFd,
        bytes: &[u8],
        part: usize,
        at: u64,
        rw_flags: i32,
    ) -> Vec<R<usize>> {
        let parts: Vec<&[u8]> = bytes.chunks(part).collect();
        let mut results = vec![None; parts.len()];
        let offset = |n: usize| at + (n * part) as u64;
        match &mut self.0 {
            Queue::Aio(context) => {
                let mut iocbs: Vec<Iocb> = Vec::new();
                for (n, part) in parts.iter().enumerate() {
                    iocbs.push(Iocb {
                        data: n as u64,
                        key: 0,
                        rw_flags,
                        opcode: IOCB_CMD_PWRITE,
                        prio: 0,
                        fd: fd.as_raw_fd() as u32,
                        buf: part.as_ptr() as u64,
                        len: part.len() as u64,
                        offset: offset(n) as i64,
                        reserved: 0,
                        flags: 0,
                        result_fd: 0,
                    });
                }
                let mut pointers: Vec<*mut Iocb> = iocbs.iter_mut().map(|i| &raw mut *i).collect();
                let mut begun = 0;
                while begun < pointers.len() {
                    let left = &mut pointers[begun..];
                    let more = call!(libc::syscall(
                        libc::SYS_io_submit,
                        *context,
                        left.len(),
                        left.as_mut_ptr()
                    ));
                    begun += more.expect("io_submit") as usize;
                }
                let mut events = vec![IoEvent::default(); parts.len()];
                let mut done = 0;
                while done < parts.len() {
                    let left = &mut events[done..];
                    let more = call!(libc::syscall(
                        libc::SYS_io_getevents,
                        *context,
                        1,
                        left.len(),
                        left.as_mut_ptr(),
                        std::ptr::null_mut::<libc::timespec>()
                    ));
                    done += match more {
                        Err(libc::EINTR) => 0,
                        more => more.expect("io_getevents") as usize,
                    };
                }
                for event in events {
                    results[event.data as usize] = Some(event.result);
                }
            }
            Queue::Ring(ring) => {
                for (n, part) in parts.iter().enumerate() {
                    let fd = types::Fd(fd.as_raw_fd());
                    let entry = opcode::Write::new(fd, part.as_ptr(), part.len() as u32)
                        .offset(offset(n))
                        .rw_flags(rw_flags)
                        .build()
                        .user_data(n as u64);
                    // SAFETY: the bytes are borrowed until all have completed, below.
                    unsafe { ring.submission().push(&entry) }.expect("the ring has room");
                }
                let mut done = 0;
                while done < parts.len() {
                    match ring.submit_and_wait(1) {
                        Ok(_) => {}
                        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::Interrupted, "{e}"),
                    }
                    for event in ring.completion() {
                        results[event.user_data() as usize] = Some(event.result().into());
                        done += 1;
                    }
                }
            }
        }
        let outcome = |result: Option<i64>| match result.expect("each part completes once") {
            bytes @ 0.. => Ok(bytes as usize),
            error => Err(-error as i32),
        };
        results.into_iter().map(outcome).collect()
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if let Queue::Aio(context) = self.0 {
            // SAFETY: made in `new`, destroyed once; nothing is under way between calls.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        }
    }
}
