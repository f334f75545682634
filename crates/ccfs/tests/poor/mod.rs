//! A host's file system that lacks what it is told to: a FUSE mount that this process serves, with the files of a directory in it.
use ccfs_fuse::PoolConfig;
use ccfs_fuse::abi::{self, fattr, op};
use ccfs_fuse::server::init::MAX_WRITE;
use ccfs_fuse::transport::channel::Channel;
use ccfs_fuse::transport::dev::Pool;
use ccfs_fuse::wire::{Errno, Handler, Reply, Request, name_and_string, one_name, push_dirent};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What it has. Neither xattrs nor O_TMPFILE, in any case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Has {
    pub links: bool,
    /// rename(2) with flags: RENAME_NOREPLACE.
    pub rename_flags: bool,
    pub fallocate: bool,
    pub direct: bool,
    pub owners: bool,
    pub holes: bool,
}

/// The mount, until it is dropped.
pub struct Host {
    pub dir: PathBuf,
    /// What is in it, by way of another file system.
    pub behind: PathBuf,
}

impl Host {
    pub fn mount(dir: PathBuf, behind: PathBuf, has: Has) -> Host {
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir_all(&behind).unwrap();
        let channel = Channel::open().expect("/dev/fuse");
        let fd = channel.fd().as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let options = CString::new(options).unwrap();
        mount("poor-host", &dir, "fuse", MountFlags::empty(), &*options).expect("a FUSE mount");
        let host = Host { dir, behind };
        channel.handshake(0, MAX_WRITE as usize).expect("INIT");
        let server = Server {
            has,
            nodes: Mutex::new(HashMap::from([(abi::ROOT_ID, vec![host.behind.clone()])])),
            files: Mutex::default(),
            next: AtomicU64::new(1),
        };
        Pool::start(channel, std::sync::Arc::new(server), PoolConfig::default()).unwrap();
        host
    }

    pub fn text(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}

struct Server {
    has: Has,
    /// Names by inode number, which is the node's number.
    nodes: Mutex<HashMap<u64, Vec<PathBuf>>>,
    files: Mutex<HashMap<u64, std::sync::Arc<File>>>,
    next: AtomicU64,
}

type Answer = Result<(), Errno>;

fn io(e: std::io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

fn system(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

fn attr(meta: &Metadata) -> abi::Attr {
    let time = |seconds: i64| seconds as u64;
    abi::Attr {
        ino: meta.ino(),
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime()),
        mtime: time(meta.mtime()),
        ctime: time(meta.ctime()),
        atimensec: meta.atime_nsec() as u32,
        mtimensec: meta.mtime_nsec() as u32,
        ctimensec: meta.ctime_nsec() as u32,
        mode: meta.mode(),
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        blksize: 4096,
        ..Default::default()
    }
}

impl Server {
    fn path(&self, node: u64) -> Result<PathBuf, Errno> {
        let nodes = self.nodes.lock().unwrap();
        let path = nodes.get(&node).and_then(|names| names.first());
        path.cloned().ok_or(Errno(libc::ESTALE))
    }

    fn child(&self, dir: u64, name: &[u8]) -> Result<PathBuf, Errno> {
        Ok(self.path(dir)?.join(OsStr::from_bytes(name)))
    }

    fn file(&self, fh: u64) -> Result<std::sync::Arc<File>, Errno> {
        let files = self.files.lock().unwrap();
        files.get(&fh).cloned().ok_or(Errno(libc::EBADF))
    }

    /// An open file's number.
    fn keep(&self, file: File) -> u64 {
        let fh = self.next.fetch_add(1, Relaxed);
        self.files.lock().unwrap().insert(fh, file.into());
        fh
    }

    fn entry(&self, path: &Path) -> Result<abi::EntryOut, Errno> {
        let meta = path.symlink_metadata().map_err(io)?;
        let mut nodes = self.nodes.lock().unwrap();
        let names = nodes.entry(meta.ino()).or_default();
        if !names.iter().any(|name| name == path) {
            names.push(path.to_path_buf());
        }
        Ok(abi::EntryOut {
            nodeid: meta.ino(),
            attr: attr(&meta),
            ..Default::default()
        })
    }

    /// The name leads elsewhere now, or nowhere.
    fn forget(&self, path: &Path) {
        for names in self.nodes.lock().unwrap().values_mut() {
            names.retain(|name| name != path);
        }
    }

    fn open(&self, path: &Path, flags: u32, mode: Option<u32>) -> Result<u64, Errno> {
        if flags & libc::O_DIRECT as u32 != 0 && !self.has.direct {
            return Err(Errno(libc::EINVAL));
        }
        let access = flags & (libc::O_ACCMODE | libc::O_EXCL | libc::O_TRUNC) as u32;
        let mut how = OFlags::from_bits_retain(access) | OFlags::CLOEXEC;
        if mode.is_some() {
            how |= OFlags::CREATE;
        }
        let mode = Mode::from_raw_mode(mode.unwrap_or(0) & 0o7777);
        let file = rustix::fs::open(path, how, mode).map_err(system)?;
        Ok(self.keep(file.into()))
    }

    fn setattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::SetattrIn = request.arg()?;
        let path = self.path(request.header.nodeid)?;
        let has = |bit: u32| arg.valid & bit != 0;
        if has(fattr::UID | fattr::GID) {
            if !self.has.owners {
                return Err(Errno(libc::EPERM));
            }
            let id = |bit, id| has(bit).then_some(id);
            let (uid, gid) = (id(fattr::UID, arg.uid), id(fattr::GID, arg.gid));
            std::os::unix::fs::lchown(&path, uid, gid).map_err(io)?;
        }
        if has(fattr::MODE) {
            let mode = fs::Permissions::from_mode(arg.mode & 0o7777);
            fs::set_permissions(&path, mode).map_err(io)?;
        }
        if has(fattr::SIZE) {
            let file = File::options().write(true).open(&path).map_err(io)?;
            file.set_len(arg.size).map_err(io)?;
        }
        if has(fattr::ATIME | fattr::MTIME) {
            let time = |bit, seconds: u64, nsec: u32| Timespec {
                tv_sec: seconds as i64,
                tv_nsec: if has(bit) {
                    nsec.into()
                } else {
                    rustix::fs::UTIME_OMIT
                },
            };
            let times = Timestamps {
                last_access: time(fattr::ATIME, arg.atime, arg.atimensec),
                last_modification: time(fattr::MTIME, arg.mtime, arg.mtimensec),
            };
            let link = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, link).map_err(system)?;
        }
        self.getattr(request, reply)
    }

    fn getattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let meta = self.path(request.header.nodeid)?;
        let meta = meta.symlink_metadata().map_err(io)?;
        reply.push(&abi::AttrOut {
            attr: attr(&meta),
            ..Default::default()
        });
        Ok(())
    }

    fn rename(&self, dir: u64, newdir: u64, names: &[u8]) -> Answer {
        let (old, new) = name_and_string(names)?;
        let (old, new) = (self.child(dir, old)?, self.child(newdir, new)?);
        fs::rename(&old, &new).map_err(io)?;
        self.forget(&new);
        let mut nodes = self.nodes.lock().unwrap();
        let names = nodes.values_mut().flatten();
        names.filter(|n| **n == old).for_each(|n| *n = new.clone());
        Ok(())
    }

    fn list(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::ReadIn = request.arg()?;
        let entries = fs::read_dir(self.path(request.header.nodeid)?).map_err(io)?;
        for (at, entry) in entries.enumerate().skip(arg.offset as usize) {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            if reply.body.len() + 24 + name.len() + 8 > arg.size as usize {
                break;
            }
            let ino = entry.metadata().map_err(io)?.ino();
            push_dirent(&mut reply.body, ino, at as u64 + 1, 0, name.as_bytes());
        }
        Ok(())
    }

    fn names(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let node = request.header.nodeid;
        let made = match request.header.opcode {
            op::LOOKUP => self.child(node, one_name(request.bare())?)?,
            op::MKDIR => {
                let (arg, name) = request.arg_and_rest::<abi::MkdirIn>()?;
                let path = self.child(node, one_name(name)?)?;
                fs::create_dir(&path).map_err(io)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(arg.mode & 0o7777))
                    .map_err(io)?;
                path
            }
            op::SYMLINK => {
                let (name, target) = name_and_string(request.bare())?;
                let path = self.child(node, name)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(target), &path).map_err(io)?;
                path
            }
            op::LINK if !self.has.links => return Err(Errno(libc::EPERM)),
            op::LINK => {
                let (arg, name) = request.arg_and_rest::<abi::LinkIn>()?;
                let path = self.child(node, one_name(name)?)?;
                fs::hard_link(self.path(arg.oldnodeid)?, &path).map_err(io)?;
                path
            }
            _ => {
                let (arg, name) = request.arg_and_rest::<abi::CreateIn>()?;
                let path = self.child(node, one_name(name)?)?;
                let fh = self.open(&path, arg.flags, Some(arg.mode))?;
                reply.push(&self.entry(&path)?);
                reply.push(&abi::OpenOut {
                    fh,
                    ..Default::default()
                });
                return Ok(());
            }
        };
        reply.push(&self.entry(&made)?);
        Ok(())
    }

    fn read(&self, arg: &abi::ReadIn, reply: &mut Reply) -> Answer {
        reply.body.resize(arg.size as usize, 0);
        let file = self.file(arg.fh)?;
        let (mut done, all) = (0, reply.body.len());
        while done < all {
            match file.read_at(&mut reply.body[done..], arg.offset + done as u64) {
                Ok(0) => break,
                got => done += got.map_err(io)?,
            }
        }
        reply.body.truncate(done);
        Ok(())
    }

    fn dispatch(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let node = request.header.nodeid;
        match request.header.opcode {
            op::LOOKUP | op::MKDIR | op::SYMLINK | op::LINK | op::CREATE => {
                return self.names(request, reply);
            }
            op::GETATTR => return self.getattr(request, reply),
            op::SETATTR => return self.setattr(request, reply),
            op::READDIR => return self.list(request, reply),
            op::READLINK => {
                let target = fs::read_link(self.path(node)?).map_err(io)?;
                reply.body.extend_from_slice(target.as_os_str().as_bytes());
            }
            op::UNLINK | op::RMDIR => {
                let path = self.child(node, one_name(request.bare())?)?;
                match request.header.opcode {
                    op::UNLINK => fs::remove_file(&path),
                    _ => fs::remove_dir(&path),
                }
                .map_err(io)?;
                self.forget(&path);
            }
            op::RENAME => {
                let (arg, names) = request.arg_and_rest::<abi::RenameIn>()?;
                return self.rename(node, arg.newdir, names);
            }
            op::RENAME2 if !self.has.rename_flags => return Err(Errno(libc::EINVAL)),
            op::RENAME2 => {
                let (arg, names) = request.arg_and_rest::<abi::Rename2In>()?;
                let (_, new) = name_and_string(names)?;
                if self.child(arg.newdir, new)?.symlink_metadata().is_ok() {
                    return Err(Errno(libc::EEXIST));
                }
                return self.rename(node, arg.newdir, names);
            }
            op::OPEN => {
                let arg: abi::OpenIn = request.arg()?;
                let fh = self.open(&self.path(node)?, arg.flags, None)?;
                reply.push(&abi::OpenOut {
                    fh,
                    ..Default::default()
                });
            }
            op::OPENDIR => reply.push(&abi::OpenOut::default()),
            op::RELEASE => {
                let arg: abi::ReleaseIn = request.arg()?;
                self.files.lock().unwrap().remove(&arg.fh);
            }
            op::READ => return self.read(&request.arg()?, reply),
            op::WRITE => {
                let (arg, data) = request.arg_and_rest::<abi::WriteIn>()?;
                self.file(arg.fh)?
                    .write_all_at(data, arg.offset)
                    .map_err(io)?;
                reply.push(&abi::WriteOut {
                    size: arg.size,
                    padding: 0,
                });
            }
            op::FSYNC => {
                let arg: abi::FsyncIn = request.arg()?;
                self.file(arg.fh)?.sync_all().map_err(io)?;
            }
            op::FALLOCATE if self.has.fallocate => {
                let arg: abi::FallocateIn = request.arg()?;
                let mode = rustix::fs::FallocateFlags::from_bits_retain(arg.mode);
                let file = self.file(arg.fh)?;
                rustix::fs::fallocate(&*file, mode, arg.offset, arg.length).map_err(system)?;
            }
            op::LSEEK if self.has.holes => {
                let arg: abi::LseekIn = request.arg()?;
                let file = self.file(arg.fh)?;
                let from = match arg.whence as i32 {
                    libc::SEEK_DATA => rustix::fs::SeekFrom::Data(arg.offset),
                    _ => rustix::fs::SeekFrom::Hole(arg.offset),
                };
                let offset = rustix::fs::seek(&*file, from).map_err(system)?;
                reply.push(&abi::LseekOut { offset });
            }
            op::STATFS => {
                let host = rustix::fs::statvfs(&self.path(node)?).map_err(system)?;
                reply.push(&abi::Kstatfs {
                    blocks: host.f_blocks,
                    bfree: host.f_bfree,
                    bavail: host.f_bavail,
                    bsize: host.f_bsize as u32,
                    frsize: host.f_frsize as u32,
                    namelen: 255,
                    ..Default::default()
                });
            }
            op::FLUSH | op::RELEASEDIR | op::FSYNCDIR | op::DESTROY => {}
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT => reply.silent = true,
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }
}

impl Handler for Server {
    fn may_block(&self, request: &Request<'_>) -> bool {
        request.header.opcode == op::FSYNC
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) {
        if let Err(Errno(errno)) = self.dispatch(request, reply) {
            reply.body.clear();
            reply.errno = errno;
        }
    }

    fn undelivered(&self, _reply: &Reply) {}
}
