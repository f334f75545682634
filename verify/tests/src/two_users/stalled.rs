//! A FUSE mount of one user's with one file, reads of which are never answered. Memory mapped from it stops whoever touches it, the kernel
//! with the locks that it holds as well. Layouts: linux/fuse.h, protocol 7.31.
use crate::sys;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread::JoinHandle;

/// The file in the mount.
pub const FILE: &str = "file";
pub const FILE_BYTES: usize = 1 << 20;

const ROOT: u64 = 1;
const NODE: u64 = 2;
/// Seconds that the kernel may keep names and attributes.
const VALID_S: u64 = 3600;
/// As large as any request: `MAX_WRITE` and its headers.
const BUFFER: usize = 64 << 10;
const MAX_WRITE: u32 = 4096;
/// `FOPEN_KEEP_CACHE`.
const KEEP_CACHE: u32 = 2;

mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
}

/// The mount; dropped, it is aborted and taken away. It dies with this process as well: the kernel aborts it then.
pub struct Stalled {
    point: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl Stalled {
    /// Mounts it on `point`, which it makes. Only this user can use it.
    pub fn mount(point: PathBuf, uid: u32, gid: u32) -> Stalled {
        std::fs::create_dir_all(&point).expect("mount point");
        let device = sys::open("/dev/fuse", libc::O_RDWR, 0).expect("/dev/fuse");
        sys::mount_fuse(&device, &point, uid, gid).expect("mount the stalled file");
        let server = std::thread::spawn(move || serve(&device, uid, gid));
        Stalled {
            point,
            server: Some(server),
        }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        if sys::umount_abort(&self.point).is_ok()
            && let Some(server) = self.server.take()
        {
            let _ = server.join();
        }
    }
}

/// Fields in the byte order of the machine, one after the other.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u16s(mut self, values: &[u16]) -> Out {
        values.iter().for_each(|v| self.0.extend(v.to_ne_bytes()));
        self
    }
    fn u32s(mut self, values: &[u32]) -> Out {
        values.iter().for_each(|v| self.0.extend(v.to_ne_bytes()));
        self
    }
    fn u64s(mut self, values: &[u64]) -> Out {
        values.iter().for_each(|v| self.0.extend(v.to_ne_bytes()));
        self
    }
    /// `struct fuse_attr`.
    fn attributes(self, node: u64, uid: u32, gid: u32) -> Out {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o644, FILE_BYTES as u64),
        };
        let times = [0; 3];
        let (links, device, block) = (1, 0, 4096);
        self.u64s(&[node, size, size / 512])
            .u64s(&times)
            .u32s(&[0; 3])
            .u32s(&[mode, links, uid, gid, device, block, 0])
    }
}

/// Answers requests until the mount is gone, but no READ.
fn serve(device: &OwnedFd, uid: u32, gid: u32) {
    let mut request = vec![0u8; BUFFER];
    loop {
        let n = match sys::read(device, &mut request) {
            Ok(n) => n,
            // The request was taken back before it was fetched.
            Err(libc::ENOENT | libc::EINTR) => continue,
            Err(_) => return,
        };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("8 bytes"));
        // `struct fuse_in_header`: length, opcode, unique, node, and 16 bytes more.
        let (opcode, unique, node) = (word(4), long(8), long(16));
        if let Some(answer) = answer(opcode, node, &request[40..n], uid, gid) {
            let (error, body) = match answer {
                Ok(body) => (0, body.0),
                Err(errno) => (-errno, Vec::new()),
            };
            let mut reply = Out::default()
                .u32s(&[16 + body.len() as u32, error as u32])
                .u64s(&[unique])
                .0;
            reply.extend(body);
            let _ = sys::write(device, &reply);
        }
    }
}

/// `None`: there is none.
fn answer(opcode: u32, node: u64, body: &[u8], uid: u32, gid: u32) -> Option<Result<Out, i32>> {
    let out = Out::default();
    Some(match opcode {
        opcode::READ | opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => return None,
        // major, minor, read-ahead, flags, background, congestion, max_write, granularity of times, and what is zero.
        opcode::INIT => Ok(out
            .u32s(&[7, 31, 0, 0])
            .u16s(&[64, 48])
            .u32s(&[MAX_WRITE, 1])
            .u32s(&[0; 9])),
        // node, generation, how long name and attributes hold: seconds, nanoseconds.
        opcode::LOOKUP if body == [FILE.as_bytes(), &[0]].concat() => Ok(out
            .u64s(&[NODE, 0, VALID_S, VALID_S])
            .u32s(&[0; 2])
            .attributes(NODE, uid, gid)),
        opcode::LOOKUP => Err(libc::ENOENT),
        opcode::GETATTR => Ok(out
            .u64s(&[VALID_S])
            .u32s(&[0; 2])
            .attributes(node, uid, gid)),
        // Without it each later open would wait for the pages that are being read.
        opcode::OPEN => Ok(out.u64s(&[0]).u32s(&[KEEP_CACHE, 0])),
        opcode::FLUSH => Ok(out),
        _ => Err(libc::ENOSYS),
    })
}
