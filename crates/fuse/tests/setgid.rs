//! Setgid of new files, by requests as kernels before Linux 6.0 send them: those leave it to the server to refuse the bit.
mod common;
use ccfs_engine::{Options, Volume};
use ccfs_fuse::abi::{InHeader, op};
use ccfs_fuse::server::init::{Negotiation, WANTED, negotiate};
use ccfs_fuse::wire::{Body, Handler, Reply, Request};
use ccfs_fuse::{MountInfo, Server};
use std::process::{Child, Command, Stdio};
use zerocopy::IntoBytes;

const OWNER: u32 = 1000;
const TEAM: u32 = 2000;
const USER: u32 = 3000;
/// Before Linux 6.0, and as of a kernel that sees to it itself.
const OLD: u32 = 34;
const NEW: u32 = 45;

struct Bench {
    work: tempfile::TempDir,
    volume: std::sync::Arc<Volume>,
    server: Server,
    /// Of the next name.
    count: u32,
}

impl Bench {
    fn new(minor: u32) -> Bench {
        let work = tempfile::tempdir().unwrap();
        let image = work.path().join("image");
        common::make_image(&image);
        let options = Options {
            background: false,
            ..Options::default()
        };
        let volume = Volume::mount(common::open(&image), options).unwrap();
        let init = [7u32, minor, 0, u32::MAX];
        let Negotiation::Agreed(agreed, _) = negotiate(init.as_bytes(), WANTED) else {
            panic!()
        };
        let (info, callers) = (MountInfo::default(), Default::default());
        let server = Server::new(volume.clone(), agreed, info, callers).unwrap();
        Bench {
            work,
            volume,
            server,
            count: 0,
        }
    }

    fn send(&self, opcode: u32, nodeid: u64, who: (u32, u32, u32), body: &[u8]) -> Reply {
        let (pid, uid, gid) = who;
        let header = InHeader {
            opcode,
            nodeid,
            uid,
            gid,
            pid,
            unique: 2,
            ..Default::default()
        };
        let body = Body::Whole(body);
        let request = Request::new(header, body);
        self.server.may_block(&request);
        let mut reply = Reply::default();
        self.server.handle(&request, &mut reply);
        assert_eq!(reply.errno, 0, "opcode {opcode}");
        reply
    }

    /// A directory of TEAM with this mode; its node.
    fn directory(&mut self, mode: u32) -> u64 {
        let node = self.make(op::MKDIR, 1, (0, OWNER, TEAM), mode).0;
        // chmod: mkdir by somebody whose group it is.
        let mut body = [0u32; 22];
        (body[0], body[17]) = (1, mode);
        self.send(op::SETATTR, node, (0, 0, 0), body.as_bytes());
        node
    }

    /// The node and the mode of a new entry of this mode.
    fn make(&mut self, opcode: u32, parent: u64, who: (u32, u32, u32), mode: u32) -> (u64, u32) {
        self.count += 1;
        let mut body = match opcode {
            op::MKDIR => [mode, 0].as_bytes().to_vec(),
            op::MKNOD => [mode, 0, 0, 0].as_bytes().to_vec(),
            _ => [libc::O_RDWR as u32, mode, 0, 0].as_bytes().to_vec(),
        };
        body.extend_from_slice(format!("name{}\0", self.count).as_bytes());
        let reply = self.send(opcode, parent, who, &body);
        let word = |at: usize| u32::from_ne_bytes(reply.body[at..at + 4].try_into().unwrap());
        let node = u64::from_ne_bytes(reply.body[..8].try_into().unwrap());
        // `fuse_entry_out`: 40 bytes, then the attributes, whose mode comes after 60 bytes.
        (node, word(40 + 60) & 0o7777)
    }

    fn finish(self) {
        assert_eq!(self.volume.status().stopped, "");
        self.server.end().unwrap();
        common::fsck(&self.work.path().join("image"));
    }
}

/// A process that waits, with these ids.
struct Somebody(Child);

impl Somebody {
    fn new(arguments: &[&str]) -> Somebody {
        let mut command = Command::new("setpriv");
        command.args(arguments).args(["sh", "-c", "echo; read x"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        Somebody(child)
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn setgid_executables_of_a_foreign_group_are_not_made() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: setgid of new files: needs root");
        return;
    }
    let user = ["--reuid=3000", "--regid=3000"];
    let with = |more: &[&str]| Somebody::new(&[&user, more].concat());
    let keep = [
        "--inh-caps=+fsetid",
        "--ambient-caps=+fsetid",
        "--clear-groups",
    ];
    let (stranger, member) = (with(&["--clear-groups"]), with(&["--groups=7,2000"]));
    let capable = with(&keep);
    let (root, weak) = (
        Somebody::new(&["--clear-groups"]),
        Somebody::new(&[
            "--clear-groups",
            "--bounding-set=-fsetid",
            "--inh-caps=-fsetid",
        ]),
    );
    let by = |process: &Somebody, uid, gid| (process.0.id(), uid, gid);
    let unseen = 0;
    for minor in [OLD, NEW] {
        let mut bench = Bench::new(minor);
        let (team, plain) = (bench.directory(0o2777), bench.directory(0o777));
        let by_the_kernel = minor == NEW;
        for (name, who, keeps) in [
            ("a stranger", by(&stranger, USER, USER), false),
            ("a member", by(&member, USER, USER), true),
            ("of that group now", by(&stranger, USER, TEAM), true),
            ("a capable one", by(&capable, USER, USER), true),
            ("root", by(&root, 0, 0), true),
            ("root without the capability", by(&weak, 0, 0), false),
            // The process is another one than who asks: overlayfs, an NFS server.
            ("for root", by(&stranger, 0, 0), true),
            ("for a user", by(&root, USER, USER), by_the_kernel),
            ("unseen", (unseen, USER, USER), by_the_kernel),
            ("unseen root", (unseen, 0, 0), true),
        ] {
            for (opcode, kind) in [
                (op::MKNOD, libc::S_IFREG),
                (op::MKNOD, libc::S_IFIFO),
                (op::TMPFILE, 0),
            ] {
                let mut made = |parent, mode| bench.make(opcode, parent, who, kind | mode).1;
                let case = format!("{name}, opcode {opcode} {kind:o}, 7.{minor}");
                let expected = if keeps { 0o2755 } else { 0o755 };
                assert_eq!(made(team, 0o2755), expected, "{case}");
                // Not executable by the group; the caller's own group.
                assert_eq!(made(team, 0o2745), 0o2745, "{case}");
                assert_eq!(made(plain, 0o2755), 0o2755, "{case}");
                assert_eq!(made(team, 0o755), 0o755, "{case}");
            }
            let dir = bench.make(op::MKDIR, team, who, 0o755).1;
            assert_eq!(dir, 0o2755, "{name}: a directory inherits it");
        }
        bench.finish();
    }
}
