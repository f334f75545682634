//! The directory `.ccfs` in the root: the status as files. It is on no disk, and no listing of the root shows it, so that what walks the
//! tree (rm -r, rsync, tar) never meets it. A real entry of that name wins: then there is no such directory in this mount.
//!
//! No open costs a request here, so a text is made when its name is looked up: each LOOKUP gives a node of its own with the text
//! of that moment, its exact size, and no time to live, so the next open looks it up anew. A node belongs to the user that looked it up
//! (mode 0400) and is dropped with the kernel's last reference; so an open file reads one text, however often.
use super::{Answer, FOREVER, LIST_MAX, Server};
use crate::abi::{self, op};
use crate::show::{self, Viewer, prometheus};
use crate::wire::{Errno, Reply, Request, one_name, padded, push_dirent};
use ccfs_engine::{Attr, Ino, ROOT_INO, Volume};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Its name in the root.
pub const NAME: &[u8] = b".ccfs";
/// Node ids from here on are ours; inodes have 32 bits.
const DIR_NODE: u64 = 1 << 40;
/// What stat shows as the inode's number; the files' follow. Volumes have fewer inodes.
const DIR_INO: Ino = 0xffff_ff00;
const FILES: [Text; 4] = [Text::Metrics, Text::Status, Text::Streams, Text::Trace];
/// Texts that one user, and all users, can hold open.
const TEXTS_PER_USER_MAX: usize = 64;
const TEXTS_MAX: usize = 1024;
/// Events that the file `trace` shows.
const EVENTS_SHOWN: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Metrics,
    Status,
    Streams,
    Trace,
}

impl Text {
    fn name(self) -> &'static [u8] {
        match self {
            Text::Metrics => b"metrics",
            Text::Status => b"status.json",
            Text::Streams => b"streams",
            Text::Trace => b"trace",
        }
    }

    fn ino(self) -> Ino {
        let at = FILES.iter().position(|f| *f == self).unwrap_or(0);
        DIR_INO + 1 + at as Ino
    }
}

/// What a node shows.
#[derive(Clone)]
struct Node {
    text: Arc<[u8]>,
    attr: Attr,
    references: u64,
}

#[derive(Default)]
struct Nodes {
    last: u64,
    by_id: HashMap<u64, Node>,
}

pub struct StatusDir {
    on: bool,
    attr: Attr,
    nodes: Mutex<Nodes>,
}

/// Whether a node id is one of this directory.
pub fn is_ours(node: u64) -> bool {
    node >= DIR_NODE
}

fn now() -> ccfs_engine::Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}

fn attr(ino: Ino, mode: u32, uid: u32, size: usize) -> Attr {
    let now = now();
    Attr {
        ino,
        generation: 0,
        mode: mode as u16,
        uid,
        gid: 0,
        size: size as u64,
        blocks512: 0,
        nlink: if mode & libc::S_IFMT == libc::S_IFDIR {
            2
        } else {
            1
        },
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        flags: 0,
    }
}

impl StatusDir {
    pub fn new(volume: &Volume, wanted: bool) -> Self {
        let real = wanted && volume.lookup(ROOT_INO, NAME).is_ok();
        if real {
            tracing::warn!(
                "the volume has an entry .ccfs of its own; the status files are not shown"
            );
        }
        StatusDir {
            on: wanted && !real,
            attr: attr(DIR_INO, libc::S_IFDIR | 0o555, 0, 0),
            nodes: Mutex::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether a name in the directory with this node id stands for this directory.
    pub fn is_name(&self, parent: u64, name: &[u8]) -> bool {
        self.on && parent == abi::ROOT_ID && name == NAME
    }

    /// The kernel gives references back.
    pub fn forget(&self, node: u64, count: u64) {
        let mut nodes = self.nodes.lock();
        if let Some(known) = nodes.by_id.get_mut(&node) {
            known.references = known.references.saturating_sub(count);
            if known.references == 0 {
                nodes.by_id.remove(&node);
            }
        }
    }

    /// A node with this text, which its user alone may read. Error: ENFILE.
    fn add(&self, which: Text, viewer: Viewer, text: String) -> Result<(u64, Attr), Errno> {
        let attr = attr(which.ino(), libc::S_IFREG | 0o400, viewer.uid, text.len());
        let mut nodes = self.nodes.lock();
        let own = |n: &&Node| n.attr.uid == viewer.uid;
        let held = nodes.by_id.values().filter(own).count();
        if held >= TEXTS_PER_USER_MAX || nodes.by_id.len() >= TEXTS_MAX {
            return Err(Errno(libc::ENFILE));
        }
        nodes.last += 1;
        let id = DIR_NODE + nodes.last;
        let node = Node {
            text: text.into_bytes().into(),
            attr,
            references: 1,
        };
        nodes.by_id.insert(id, node);
        Ok((id, attr))
    }

    /// Errors: ESTALE for a node that the kernel cannot have.
    fn node(&self, node: u64) -> Result<Node, Errno> {
        if node == DIR_NODE && self.on {
            return Ok(Node {
                text: Arc::default(),
                attr: self.attr,
                references: 0,
            });
        }
        let nodes = self.nodes.lock();
        nodes.by_id.get(&node).cloned().ok_or(Errno(libc::ESTALE))
    }
}

impl Server {
    /// LOOKUP of the directory in the root.
    pub(super) fn lookup_status_dir(&self, reply: &mut Reply) -> Answer {
        reply.push(&abi::EntryOut {
            nodeid: DIR_NODE,
            entry_valid: FOREVER,
            attr_valid: FOREVER,
            attr: self.attr_of(&self.status_dir.attr),
            ..Default::default()
        });
        Ok(())
    }

    /// A request about the directory or one of its files.
    pub(super) fn status_dir_request(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let id = request.header.nodeid;
        match request.header.opcode {
            op::FORGET => {
                reply.silent = true;
                let arg: abi::ForgetIn = request.arg()?;
                self.status_dir.forget(id, arg.nlookup);
            }
            op::GETATTR => self.push_attr(reply, &self.status_dir.node(id)?.attr, FOREVER),
            op::STATX => {
                let stat = self.statx_of(&self.status_dir.node(id)?.attr);
                reply.push(&abi::StatxOut {
                    attr_valid: FOREVER,
                    attr_valid_nsec: 0,
                    flags: 0,
                    spare: [0; 2],
                    stat,
                });
            }
            op::LOOKUP => return self.lookup_text(request, reply),
            op::READ => return self.read_text(request, reply),
            op::READDIR | op::READDIRPLUS => return self.list_texts(request, reply),
            op::LSEEK => return self.seek_text(request, reply),
            // The kernel then copies by itself.
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => return Err(Errno(libc::EXDEV)),
            op::GETXATTR => return Err(Errno(libc::ENODATA)),
            op::LISTXATTR => {
                let arg: abi::GetxattrIn = request.arg()?;
                if arg.size == 0 {
                    reply.push(&abi::GetxattrOut::default());
                }
            }
            op::FSYNC | op::FSYNCDIR | op::RELEASE | op::RELEASEDIR => {}
            op::STATFS => return self.statfs(reply),
            op::SYNCFS => return self.syncfs(request),
            op::IOCTL => return self.ioctl(request, reply),
            op::READLINK => return Err(Errno(libc::EINVAL)),
            op::SETATTR | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK | op::TMPFILE => {
                return Err(Errno(libc::EPERM));
            }
            op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 => return Err(Errno(libc::EPERM)),
            op::WRITE | op::FALLOCATE | op::SETXATTR | op::REMOVEXATTR => {
                return Err(Errno(libc::EPERM));
            }
            // As everywhere: the kernel takes this answer for the whole mount.
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }

    fn lookup_text(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        if request.header.nodeid != DIR_NODE {
            return Err(Errno(libc::ENOTDIR));
        }
        let name = one_name(request.bare())?;
        let Some(which) = FILES.into_iter().find(|f| f.name() == name) else {
            return Err(Errno(libc::ENOENT));
        };
        let viewer = self.user(request);
        let (nodeid, attr) = self
            .status_dir
            .add(which, viewer, self.text(which, viewer))?;
        reply.remembered_text = Some(nodeid);
        reply.push(&abi::EntryOut {
            nodeid,
            attr_valid: FOREVER,
            attr: self.attr_of(&attr),
            ..Default::default()
        });
        Ok(())
    }

    fn text(&self, which: Text, viewer: Viewer) -> String {
        match which {
            Text::Metrics => prometheus::text(&self.status(viewer)),
            Text::Streams => show::table(&self.status(viewer)),
            Text::Status => {
                let mut status = self.status(viewer);
                status["schema"] = 1.into();
                format!("{status:#}\n")
            }
            Text::Trace => {
                let from = self.volume.next_event().saturating_sub(EVENTS_SHOWN);
                let (events, _) = self.volume.events(from, EVENTS_SHOWN as usize);
                let paths = show::Paths::new(&self.volume, viewer);
                let line = |e| show::event(&paths, &self.syncers, e);
                events.iter().map(|e| format!("{}\n", line(e))).collect()
            }
        }
    }

    fn read_text(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::ReadIn = request.arg()?;
        let text = self.status_dir.node(request.header.nodeid)?.text;
        let start = usize::try_from(arg.offset).unwrap_or(usize::MAX);
        let rest = text.get(start..).unwrap_or_default();
        let part = &rest[..rest.len().min(arg.size as usize)];
        reply.body.extend_from_slice(part);
        Ok(())
    }

    /// Names without attributes: those come with the lookup.
    fn list_texts(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        if request.header.nodeid != DIR_NODE {
            return Err(Errno(libc::ENOTDIR));
        }
        let arg: abi::ReadIn = request.arg()?;
        let plus = request.header.opcode == op::READDIRPLUS;
        let files = FILES.map(|f| (f.name(), f.ino(), libc::DT_REG));
        let dots = [
            (&b"."[..], DIR_INO, libc::DT_DIR),
            (b"..", ROOT_INO, libc::DT_DIR),
        ];
        let all = dots.into_iter().chain(files).enumerate();
        let room = (arg.size as usize).min(LIST_MAX);
        for (at, (name, ino, dtype)) in all.skip(usize::try_from(arg.offset).unwrap_or(usize::MAX))
        {
            let head = if plus { size_of::<abi::EntryOut>() } else { 0 };
            let size = padded(head + size_of::<abi::Dirent>() + name.len());
            if reply.body.len() + size > room {
                break;
            }
            if plus {
                reply.push(&abi::EntryOut::default());
            }
            let next = at as u64 + 1;
            push_dirent(&mut reply.body, ino.into(), next, dtype.into(), name);
        }
        Ok(())
    }

    fn seek_text(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::LseekIn = request.arg()?;
        let size = self.status_dir.node(request.header.nodeid)?.attr.size;
        let offset = match arg.whence as i32 {
            _ if arg.offset >= size => return Err(Errno(libc::ENXIO)),
            libc::SEEK_DATA => arg.offset,
            libc::SEEK_HOLE => size,
            _ => return Err(Errno(libc::EINVAL)),
        };
        reply.push(&abi::LseekOut { offset });
        Ok(())
    }
}
