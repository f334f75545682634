//! Exercisers' targets over the engine, without a mount: an ext4 image in memory.

use super::{file, tree};
use crate::harness::{
    WorkDir, copy_out, flash_chosen, in_memory, kernel_mount, run, run_ok, umount_patiently,
};
use crate::hash::hash;
use crate::kill9::op::{Kind, Op, Seen};
use crate::sys::R;
use ccfs_device::FlashDevice;
use ccfs_disks::MemoryDevice;
use ccfs_engine::{
    Context, DEFAULT_STREAM, Fallocate, Ino, Options, ROOT_INO, RenameFlags, Seek, SetAttr,
    SetTime, StreamId, Volume, WriteFlags,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn errno<T>(r: ccfs_engine::Result<T>) -> R<T> {
    r.map_err(|e| e.errno())
}

/// A volume in memory, mounted by the engine.
pub struct Mounted {
    device: Arc<MemoryDevice>,
    pub volume: Arc<Volume>,
    work: WorkDir,
}

fn options() -> Options {
    Options {
        dirty_limit: 16 << 20,
        ..Options::default()
    }
}

impl Mounted {
    pub fn new(label: &str, size_mib: u64, mke2fs: &[&str]) -> Mounted {
        let work = WorkDir::new(label);
        let image = work.path().join("image");
        let text = image.to_str().expect("plain path");
        std::fs::File::create(&image)
            .and_then(|f| f.set_len(size_mib << 20))
            .expect("image");
        run_ok(
            "mke2fs",
            &[&["-q", "-F", "-t", "ext4"], mke2fs, &[text]].concat(),
        );
        let plain = MemoryDevice::from_file(&image).expect("load the image");
        let device = Arc::new(if flash_chosen() {
            in_memory(&plain)
        } else {
            plain
        });
        let volume = mount(&device);
        Mounted {
            device,
            volume,
            work,
        }
    }
    pub fn remount(&mut self) {
        self.volume.unmount().expect("unmount");
        self.volume = mount(&self.device);
    }
    /// Clean unmount, e2fsck without complaint, and `look` at the volume as the kernel's ext4 mounts it.
    pub fn finish(self, look: impl FnOnce(&Path)) {
        self.volume.unmount().expect("unmount");
        let mut image = self.image();
        self.device.to_file(&image).expect("store the image");
        if flash_chosen() {
            let plain = self.work.path().join("plain");
            copy_out(&image, &plain);
            image = plain;
        }
        let out = run(Command::new("e2fsck").arg("-fn").arg(&image));
        let quiet = |l: &str| {
            l.is_empty()
                || l.starts_with("Pass ")
                || (l.contains(" files (") && l.contains(" blocks"))
        };
        assert!(
            out.code == 0 && out.stdout.lines().all(quiet),
            "e2fsck -fn: exit {}\n{}",
            out.code,
            out.all()
        );
        if crate::sys::geteuid() != 0 || !Path::new("/dev/loop-control").exists() {
            println!("skipped: the kernel's view: needs root and loop devices");
            return;
        }
        let dir = self.work.path().join("kernel");
        std::fs::create_dir_all(&dir).expect("mount point");
        kernel_mount(&image, &dir, "ro,loop").unwrap_or_else(|e| panic!("mount: {e}"));
        look(&dir);
        umount_patiently(&dir);
    }
    fn image(&self) -> PathBuf {
        self.work.path().join("image")
    }
}

fn mount(medium: &Arc<MemoryDevice>) -> Arc<Volume> {
    let device = FlashDevice::or_plain(medium.clone()).expect("open the flash");
    Volume::mount(device, options()).expect("mount")
}

fn context(stream: StreamId) -> Context {
    Context {
        umask: 0o022,
        ..Context::root(stream)
    }
}

/// One file in the root directory.
pub struct File {
    pub mounted: Mounted,
    ino: Ino,
}

impl File {
    pub fn new(mounted: Mounted) -> File {
        let cx = context(DEFAULT_STREAM);
        let made = mounted
            .volume
            .mknod(&cx, ROOT_INO, b"f", libc::S_IFREG as u16 | 0o644, 0);
        let ino = made.expect("create").ino;
        File { mounted, ino }
    }
    fn volume(&self) -> &Volume {
        &self.mounted.volume
    }
    fn cx(&self) -> Context {
        context(DEFAULT_STREAM)
    }
}

impl file::Target for File {
    fn knows(&self, way: file::Way) -> bool {
        way == file::Way::Cached
    }
    fn size(&mut self) -> R<u64> {
        errno(self.volume().getattr(self.ino)).map(|a| a.size)
    }
    fn read(&mut self, _way: file::Way, at: u64, len: usize) -> R<Vec<u8>> {
        let mut out = Vec::new();
        errno(self.volume().read(self.ino, at, len, &mut out))?;
        Ok(out)
    }
    fn write(&mut self, _way: file::Way, at: u64, bytes: &[u8]) -> R<()> {
        let mut done = 0;
        while done < bytes.len() {
            let flags = WriteFlags::default();
            done += errno(self.volume().write(
                &self.cx(),
                self.ino,
                at + done as u64,
                &bytes[done..],
                flags,
            ))?;
        }
        Ok(())
    }
    fn append(&mut self, bytes: &[u8]) -> R<()> {
        let mut done = 0;
        while done < bytes.len() {
            let flags = WriteFlags {
                append: true,
                ..WriteFlags::default()
            };
            done += errno(
                self.volume()
                    .write(&self.cx(), self.ino, 0, &bytes[done..], flags),
            )?;
        }
        Ok(())
    }
    fn truncate(&mut self, len: u64) -> R<()> {
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        errno(self.volume().setattr(&self.cx(), self.ino, &set)).map(drop)
    }
    fn space(&mut self, how: file::Space, at: u64, len: u64) -> R<()> {
        let how = match how {
            file::Space::Allocate { keep_size } => Fallocate::Allocate { keep_size },
            file::Space::Punch => Fallocate::PunchHole,
            file::Space::Zero { keep_size } => Fallocate::ZeroRange { keep_size },
        };
        errno(self.volume().fallocate(&self.cx(), self.ino, how, at, len))
    }
    fn copy(&mut self, from: u64, to: u64, len: u64) -> R<u64> {
        // As the kernel does before it asks a file system.
        let len = len.min(self.size()?.saturating_sub(from));
        let v = self.volume();
        errno(v.copy_range(&self.cx(), self.ino, from, self.ino, to, len))
    }
    fn seek(&mut self, at: u64, data: bool) -> R<u64> {
        errno(
            self.volume()
                .seek(self.ino, at, if data { Seek::Data } else { Seek::Hole }),
        )
    }
    fn sync(&mut self, data_only: bool) -> R<()> {
        errno(self.volume().fsync(&self.cx(), self.ino, data_only))
    }
    fn diagnosis(&self) -> String {
        format!("{:?}", self.volume().status())
    }
    fn refresh(&mut self, deep: bool) {
        if deep {
            self.mounted.remount();
            self.ino = self
                .volume()
                .lookup(ROOT_INO, b"f")
                .expect("the file after a remount")
                .ino;
        } else {
            self.volume().syncfs(&self.cx()).expect("syncfs");
            self.volume().checkpoint().expect("checkpoint");
        }
    }
}

/// The root directory as a tree; resolves paths as the kernel would.
pub struct EngineTree {
    volume: Arc<Volume>,
    streams: Vec<StreamId>,
}

impl EngineTree {
    pub fn new(mounted: &Mounted, streams: usize) -> EngineTree {
        let volume = mounted.volume.clone();
        let streams = (0..streams).map(|_| volume.new_stream()).collect();
        EngineTree { volume, streams }
    }
    fn dir(&self, path: &str) -> R<Ino> {
        let mut at = ROOT_INO;
        for part in path.split('/').filter(|p| !p.is_empty()) {
            let attr = errno(self.volume.lookup(at, part.as_bytes()))?;
            match attr.mode as u32 & libc::S_IFMT {
                libc::S_IFDIR => at = attr.ino,
                // All symlinks of the exerciser dangle.
                libc::S_IFLNK => return Err(libc::ENOENT),
                _ => return Err(libc::ENOTDIR),
            }
        }
        Ok(at)
    }
    fn split<'p>(&self, path: &'p str) -> R<(Ino, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.dir(dir)?, name.as_bytes()))
    }
    fn find(&self, path: &str, follow: bool) -> R<ccfs_engine::Attr> {
        let (dir, name) = self.split(path)?;
        let attr = errno(self.volume.lookup(dir, name))?;
        if follow && attr.mode as u32 & libc::S_IFMT == libc::S_IFLNK {
            Err(libc::ENOENT)
        } else {
            Ok(attr)
        }
    }
    /// The kernel's checks before a rename reaches a file system.
    fn link(&self, cx: &Context, from: &str, to: &str) -> R<()> {
        let attr = self.find(from, false)?;
        let (dir, name) = self.split(to)?;
        if errno(self.volume.lookup(dir, name)).is_ok() {
            return Err(libc::EEXIST);
        }
        if attr.mode as u32 & libc::S_IFMT == libc::S_IFDIR {
            return Err(libc::EPERM);
        }
        errno(self.volume.link(cx, attr.ino, dir, name)).map(drop)
    }
    fn rename(&self, cx: &Context, from: &str, to: &str, exchange: bool) -> R<()> {
        let (dir, name) = self.split(from)?;
        let (to_dir, to_name) = self.split(to)?;
        let moved = errno(self.volume.lookup(dir, name))?;
        let target = errno(self.volume.lookup(to_dir, to_name));
        if exchange {
            target?;
        }
        if to.starts_with(&format!("{from}/")) {
            return Err(libc::EINVAL);
        }
        if from.starts_with(&format!("{to}/")) {
            return Err(if exchange {
                libc::EINVAL
            } else {
                libc::ENOTEMPTY
            });
        }
        if target.as_ref().is_ok_and(|t| t.ino == moved.ino) {
            return Ok(());
        }
        if let (Ok(t), false) = (&target, exchange) {
            let is_dir = |mode: u16| mode as u32 & libc::S_IFMT == libc::S_IFDIR;
            match (is_dir(moved.mode), is_dir(t.mode)) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                _ => {}
            }
        }
        let flags = RenameFlags {
            exchange,
            ..RenameFlags::default()
        };
        errno(self.volume.rename(cx, dir, name, to_dir, to_name, flags))
    }
    fn write(&self, cx: &Context, ino: Ino, mut at: u64, mut bytes: &[u8]) -> R<()> {
        while !bytes.is_empty() {
            let n = errno(self.volume.write(cx, ino, at, bytes, WriteFlags::default()))?;
            at += n as u64;
            bytes = &bytes[n..];
        }
        Ok(())
    }
    fn set(&self, cx: &Context, path: &str, follow: bool, set: SetAttr) -> R<()> {
        let attr = self.find(path, follow)?;
        if set.size.is_some() && attr.mode as u32 & libc::S_IFMT == libc::S_IFDIR {
            return Err(libc::EISDIR);
        }
        errno(self.volume.setattr(cx, attr.ino, &set)).map(drop)
    }
}

impl tree::Target for EngineTree {
    fn enter(&self, _stream: usize) {}

    fn diagnosis(&self) -> String {
        format!("{:?}", self.volume.status())
    }

    fn run(&self, stream: usize, op: &Op, bytes: &[u8]) -> R<()> {
        let cx = &context(self.streams[stream]);
        let v = &self.volume;
        match op {
            Op::Create { path, mode } => {
                let (dir, name) = self.split(path)?;
                errno(v.mknod(cx, dir, name, libc::S_IFREG as u16 | *mode as u16, 0)).map(drop)
            }
            Op::Mkdir { path } => {
                let (dir, name) = self.split(path)?;
                errno(v.mkdir(cx, dir, name, 0o755)).map(drop)
            }
            Op::Symlink { path, target } => {
                let (dir, name) = self.split(path)?;
                errno(v.symlink(cx, dir, name, target.as_bytes())).map(drop)
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.split(path)?;
                errno(v.rmdir(cx, dir, name))
            }
            Op::Unlink { path } => {
                let (dir, name) = self.split(path)?;
                errno(v.unlink(cx, dir, name))
            }
            Op::Link { from, to } => self.link(cx, from, to),
            Op::Rename { from, to } => self.rename(cx, from, to, false),
            Op::Exchange { a, b } => self.rename(cx, a, b, true),
            Op::Write { path, at, .. } => {
                let attr = self.find(path, true)?;
                if attr.mode as u32 & libc::S_IFMT == libc::S_IFDIR {
                    return Err(libc::EISDIR);
                }
                self.write(cx, attr.ino, *at, bytes)
            }
            Op::Truncate { path, len } => self.set(
                cx,
                path,
                true,
                SetAttr {
                    size: Some(*len),
                    ..SetAttr::default()
                },
            ),
            Op::Chmod { path, mode } => self.set(
                cx,
                path,
                true,
                SetAttr {
                    mode: Some(*mode as u16),
                    ..SetAttr::default()
                },
            ),
            Op::Utimes { path, mtime } => {
                let mtime = Some(SetTime::At((*mtime, 7)));
                self.set(
                    cx,
                    path,
                    false,
                    SetAttr {
                        mtime,
                        ..SetAttr::default()
                    },
                )
            }
            Op::Xattr { path, .. } => {
                let attr = self.find(path, false)?;
                if attr.mode as u32 & libc::S_IFMT == libc::S_IFLNK {
                    return Err(libc::EPERM);
                }
                errno(v.setxattr(cx, attr.ino, b"user.load", bytes, false, false, false))
            }
            Op::Punch { path, at, len } => errno(v.fallocate(
                cx,
                self.find(path, true)?.ino,
                Fallocate::PunchHole,
                *at,
                *len,
            )),
            Op::Allocate {
                path,
                at,
                len,
                keep_size,
                zero,
            } => {
                let keep_size = *keep_size;
                let how = match zero {
                    true => Fallocate::ZeroRange { keep_size },
                    false => Fallocate::Allocate { keep_size },
                };
                errno(v.fallocate(cx, self.find(path, true)?.ino, how, *at, *len))
            }
            Op::Fsync { path, data_only } => {
                let attr = self.find(path, true).or_else(|_| self.find(path, false))?;
                errno(v.fsync(cx, attr.ino, *data_only))
            }
            Op::StreamSync => errno(v.streamsync(cx.stream)),
            Op::SyncFs => errno(v.syncfs(cx)),
        }
    }

    fn seen(&self, path: &str) -> R<Option<Seen>> {
        let attr = match self.find(path, false) {
            Ok(attr) => attr,
            Err(libc::ENOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let (kind, content) = match attr.mode as u32 & libc::S_IFMT {
            libc::S_IFDIR => (Kind::Dir, vec![]),
            libc::S_IFLNK => (Kind::Symlink, errno(self.volume.readlink(attr.ino))?),
            _ => {
                let mut out = Vec::new();
                errno(self.volume.read(attr.ino, 0, attr.size as usize, &mut out))?;
                (Kind::File, out)
            }
        };
        let xattr = match errno(self.volume.getxattr(attr.ino, b"user.load")) {
            Ok(value) => Some(value),
            Err(libc::ENODATA) => None,
            Err(e) => return Err(e),
        };
        let mtime = (attr.mtime.0, attr.mtime.1 as i64);
        let (len, mode, nlink) = (attr.size, attr.mode as u32 & 0o7777, attr.nlink as u64);
        Ok(Some(Seen {
            kind,
            content: hash(&content),
            len,
            mode,
            xattr,
            mtime,
            nlink,
        }))
    }

    fn list(&self, dir: &str) -> R<Vec<String>> {
        let dir = self.dir(dir)?;
        let mut names = Vec::new();
        let mut after = 0;
        loop {
            let (mut room, before) = (50, names.len());
            let got = self.volume.readdir(dir, after, &mut |e| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                after = e.next;
                let name = String::from_utf8_lossy(&e.name).into_owned();
                names.push(name);
                true
            });
            errno(got)?;
            if names.len() == before {
                break;
            }
        }
        names.retain(|n| n != "." && n != "..");
        Ok(names)
    }
}
