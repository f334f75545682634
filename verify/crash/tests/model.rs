//! The model against Linux: the same random operations on a tmpfs (or whatever the temporary directory is) and on the model.
//! Needs root for owners and device files, and does nothing without.
use ccfs_crash::generate::{Action, Generator, Mix};
use ccfs_crash::oracle::*;
use rustix::fs::*;
use rustix::io::Errno as Error;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Inodes of the model as descriptors (O_PATH), so that names do not matter.
struct Host {
    fds: HashMap<NodeId, OwnedFd>,
}

impl Host {
    fn path(&self, node: NodeId) -> PathBuf {
        format!("/proc/self/fd/{}", self.fds[&node].as_raw_fd()).into()
    }

    fn writable(&self, node: NodeId) -> Result<File, Error> {
        Ok(File::from(open(
            self.path(node),
            OFlags::WRONLY,
            Mode::empty(),
        )?))
    }

    fn hold(&mut self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<(), Error> {
        let fd = openat(
            &self.fds[&parent],
            name,
            OFlags::PATH | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        self.fds.insert(node, fd);
        Ok(())
    }

    fn own(&self, parent: NodeId, name: &[u8], make: &Make) -> Result<(), Error> {
        // A setgid directory gives its group.
        let given = fstat(&self.fds[&parent])?.st_mode & 0o2000 != 0;
        chownat(
            &self.fds[&parent],
            name,
            Some(rustix::fs::Uid::from_raw(make.uid)),
            (!given).then(|| rustix::fs::Gid::from_raw(make.gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    }

    fn act(&mut self, op: &Op) -> Result<(), Error> {
        let dir = |node: &NodeId| self.fds[node].as_fd();
        match op {
            Op::Mknod {
                parent,
                name,
                make,
                rdev,
            } => self.mknod(*parent, name, make, *rdev),
            Op::Mkdir { parent, name, make } => {
                mkdirat(
                    dir(parent),
                    &**name,
                    Mode::from_raw_mode(u32::from(make.mode)),
                )?;
                self.own(*parent, name, make)?;
                self.hold(make.node, *parent, name)
            }
            Op::Symlink {
                parent,
                name,
                make,
                target,
            } => {
                symlinkat(&**target, dir(parent), &**name)?;
                self.own(*parent, name, make)?;
                self.hold(make.node, *parent, name)
            }
            Op::Tmpfile { parent, make } => self.tmpfile(*parent, make),
            Op::Link { node, parent, name } => linkat(
                CWD,
                self.path(*node),
                dir(parent),
                &**name,
                AtFlags::SYMLINK_FOLLOW,
            ),
            Op::Unlink { parent, name } => unlinkat(dir(parent), &**name, AtFlags::empty()),
            Op::Rmdir { parent, name } => unlinkat(dir(parent), &**name, AtFlags::REMOVEDIR),
            Op::Rename {
                from,
                name,
                to,
                new_name,
                kind,
            } => {
                let flags = match kind {
                    RenameKind::Plain => RenameFlags::empty(),
                    RenameKind::NoReplace => RenameFlags::NOREPLACE,
                    RenameKind::Exchange => RenameFlags::EXCHANGE,
                    RenameKind::Whiteout(_) => RenameFlags::WHITEOUT,
                };
                renameat_with(dir(from), &**name, dir(to), &**new_name, flags)?;
                if let RenameKind::Whiteout(node) = kind {
                    // None is left where both names were links to one file.
                    let _ = self.hold(*node, *from, name);
                }
                Ok(())
            }
            Op::Write {
                node,
                offset,
                data,
                kill,
            } => {
                let file = self.writable(*node)?;
                let write = || file.write_all_at(data, *offset);
                unprivileged(*kill, write)
                    .map_err(|e| Error::from_io_error(&e).unwrap_or(Error::IO))
            }
            Op::Allocate {
                node,
                offset,
                len,
                keep_size,
            } => {
                let flags = if *keep_size {
                    FallocateFlags::KEEP_SIZE
                } else {
                    FallocateFlags::empty()
                };
                fallocate(self.writable(*node)?, flags, *offset, *len)
            }
            Op::Punch { node, offset, len } => fallocate(
                self.writable(*node)?,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                *offset,
                *len,
            ),
            Op::Zero {
                node,
                offset,
                len,
                keep_size,
            } => self.zero(*node, *offset, *len, *keep_size),
            Op::SetAttr { node, set } => self.set_attr(*node, set),
            Op::SetXattr { node, name, value } => {
                setxattr(self.path(*node), &**name, value, XattrFlags::empty())
            }
            Op::RemoveXattr { node, name } => removexattr(self.path(*node), &**name),
            // This workload has none of them.
            Op::SetFlags { .. } | Op::Commit { .. } | Op::Publish { .. } => Ok(()),
        }
    }

    fn mknod(&mut self, parent: NodeId, name: &[u8], make: &Make, rdev: u32) -> Result<(), Error> {
        // The kernel's dev_t in user space has minor and major mixed; this encoding is the one stat shows for small numbers.
        let (kind, mode) = (
            FileType::from_raw_mode(u32::from(make.mode)),
            Mode::from_raw_mode(u32::from(make.mode)),
        );
        mknodat(&self.fds[&parent], name, kind, mode, u64::from(rdev))?;
        self.own(parent, name, make)?;
        self.hold(make.node, parent, name)
    }

    fn tmpfile(&mut self, parent: NodeId, make: &Make) -> Result<(), Error> {
        let mode = Mode::from_raw_mode(u32::from(make.mode));
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let fd = openat(&self.fds[&parent], ".", flags, mode)?;
        fchown(
            &fd,
            Some(rustix::fs::Uid::from_raw(make.uid)),
            Some(rustix::fs::Gid::from_raw(make.gid)),
        )?;
        self.fds.insert(make.node, fd);
        Ok(())
    }

    /// Not every file system has FALLOC_FL_ZERO_RANGE: the same by hand.
    fn zero(&self, node: NodeId, offset: u64, len: u64, keep_size: bool) -> Result<(), Error> {
        let file = self.writable(node)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, offset, len)?;
        if !keep_size {
            fallocate(&file, FallocateFlags::empty(), offset, len)?;
        }
        Ok(())
    }

    fn set_attr(&self, node: NodeId, set: &Set) -> Result<(), Error> {
        let path = self.path(node);
        if let Some(size) = set.size {
            let file = self.writable(node)?;
            unprivileged(set.kill, || ftruncate(&file, size))?;
        }
        let (uid, gid) = (
            set.uid.map(rustix::fs::Uid::from_raw),
            set.gid.map(rustix::fs::Gid::from_raw),
        );
        if uid.is_some() || gid.is_some() {
            chownat(CWD, &path, uid, gid, AtFlags::empty())?;
        }
        if let Some(mode) = set.mode {
            chmod(&path, Mode::from_raw_mode(u32::from(mode)))?;
        }
        if let Some((tv_sec, tv_nsec)) = set.mtime {
            let omit = Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT as _,
            };
            let times = Timestamps {
                last_access: omit,
                last_modification: Timespec {
                    tv_sec,
                    tv_nsec: tv_nsec.into(),
                },
            };
            utimensat(CWD, &path, &times, AtFlags::empty())?;
        }
        Ok(())
    }
}

/// Without the right to keep setuid and setgid where content changes; of this thread alone, so in one of its own.
fn unprivileged<T: Send>(wanted: bool, f: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    if !wanted {
        return f();
    }
    let drop_right = || {
        let mut all = capabilities(None).unwrap();
        all.effective.remove(CapabilitySet::FSETID);
        set_capabilities(None, all).unwrap();
        f()
    };
    std::thread::scope(|scope| scope.spawn(drop_right).join().unwrap())
}

/// Whether a setgid bit goes that lends nothing (nobody of the group may execute the file) depends on the kernel and on the caller's
/// groups; FUSE's protocol keeps it.
fn is_debated(op: &Op, tree: &Tree) -> bool {
    let kills = match op {
        Op::Write { kill, .. } => *kill,
        Op::SetAttr { set, .. } => set.kill,
        _ => false,
    };
    let mode = op.target().and_then(|n| tree.get(n).ok()).map(|n| n.mode);
    kills && mode.is_some_and(|m| m & 0o2010 == 0o2000)
}

/// Whether the file system of a directory knows access control lists at all.
fn has_lists(dir: &Path) -> bool {
    let probed = getxattr(dir, ACL_DEFAULT, &mut [0u8; 64][..]);
    let known = !matches!(probed, Err(Error::OPNOTSUPP | Error::NOSYS));
    if !known {
        println!("skipped: no access control lists on {}", dir.display());
    }
    known
}

/// The tree below a directory as Linux shows it; times are left out.
fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree {
        root: NodeId(0),
        nodes: HashMap::new(),
    };
    tree.root = read_node(root, &mut tree);
    tree
}

fn read_node(path: &Path, tree: &mut Tree) -> NodeId {
    let st = lstat(path).unwrap();
    let id = NodeId(st.st_ino);
    if tree.nodes.contains_key(&id) {
        return id;
    }
    let mut node = (*Tree::empty().nodes[&ROOT]).clone();
    (node.mode, node.uid, node.gid) = (st.st_mode as u16, st.st_uid, st.st_gid);
    (node.nlink, node.rdev) = (st.st_nlink as u32, st.st_rdev as u32);
    node.size = if node.is_dir() { 0 } else { st.st_size as u64 };
    match node.mode & S_IFMT {
        S_IFLNK => node
            .data
            .write(0, readlink(path, Vec::new()).unwrap().as_bytes()),
        S_IFREG => {
            let mut bytes = Vec::new();
            File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
            node.data.write(0, &bytes);
        }
        S_IFDIR => {
            for entry in std::fs::read_dir(path).unwrap() {
                use std::os::unix::ffi::OsStrExt;
                let entry = entry.unwrap();
                let child = read_node(&entry.path(), tree);
                node.entries
                    .insert(entry.file_name().as_bytes().into(), child);
            }
        }
        _ => {}
    }
    let mut names = vec![0u8; 4096];
    let n = llistxattr(path, &mut names[..]).unwrap();
    for name in names[..n].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 4096];
        let n = lgetxattr(path, name, &mut value[..]).unwrap();
        node.xattrs.insert(name.into(), value[..n].into());
    }
    tree.nodes.insert(id, Arc::new(node));
    id
}

#[test]
fn the_model_does_what_linux_does() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    rustix::process::umask(Mode::empty());
    for seed in 0..36 {
        let dir = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
            "/dev/shm"
        } else {
            "/tmp"
        })
        .unwrap();
        chmod(dir.path(), Mode::from_raw_mode(0o755)).unwrap();
        let root = open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        let mut host = Host {
            fds: HashMap::from([(ROOT, root)]),
        };
        let mut tree = Tree::empty();
        let mix = Mix {
            wrong_percent: 15,
            long_names: seed % 2 == 0,
            depth: 4,
            names: 3 + seed * 2,
            rights_percent: if seed % 3 == 0 || !has_lists(dir.path()) {
                0
            } else {
                25
            },
            ..Mix::default()
        };
        let mut generator = Generator::new(seed, mix, 1);
        for step in 0..1500 {
            let (_, action) = generator.next(&tree);
            // Not every file system has flags.
            let Action::Op(op) = action else { continue };
            if matches!(op, Op::SetFlags { .. }) || is_debated(&op, &tree) {
                continue;
            }
            let expected = tree.check(&op);
            let seen = host.act(&op).map_err(|e| e.raw_os_error());
            assert_eq!(expected, seen, "seed {seed}, step {step}: {op}");
            if expected.is_ok() {
                tree.apply(&op, &[]).unwrap();
            }
        }
        if let Some(d) = tree.difference(&read_tree(dir.path()), false) {
            panic!("seed {seed}: {d}");
        }
    }
}
