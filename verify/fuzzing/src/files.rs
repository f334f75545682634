//! Files that are open O_ATOMIC, for the ioctls' target: handles and tokens that are true, and some that are not.
use crate::bytes::Input;
use crate::requests::serve;
use ccfs_client::abi::{self as client, AtomicArg, SYNCV_MAX, SyncvArg};
use ccfs_fuse::Server;
use ccfs_fuse::abi::{self, FsyncIn, InHeader, IoctlIn, OpenIn, ReleaseIn, SetattrIn, WriteIn, op};
use ccfs_fuse::wire::{Body, Request};
use zerocopy::IntoBytes;

struct Open {
    node: u64,
    handle: u64,
    /// Of its last call; 0: none.
    token: u64,
    atomic: bool,
}

/// What is open.
#[derive(Default)]
pub struct Files(Vec<Open>);

fn request(server: &Server, opcode: u32, nodeid: u64, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        opcode,
        nodeid,
        pid: std::process::id(),
        unique: 2,
        ..Default::default()
    };
    let body = Body::Whole(body);
    serve(server, &Request::new(header, body))
}

fn ioctl(server: &Server, node: u64, fh: u64, cmd: u32, arg: &[u8]) -> Vec<u8> {
    let head = IoctlIn {
        fh,
        cmd,
        in_size: arg.len() as u32,
        out_size: arg.len() as u32,
        ..Default::default()
    };
    request(server, op::IOCTL, node, &[head.as_bytes(), arg].concat())
}

impl Files {
    /// A step: its kind, and one byte of input that says which file; some take more.
    pub fn step(&mut self, server: &Server, kind: u8, input: &mut Input<'_>) {
        let which = input.u8();
        if kind == 0 {
            return self.open(server, which.into(), input.u8());
        }
        if kind == 6 {
            return self.syncv(server, which, input);
        }
        let len = self.0.len();
        let Some(file) = self.0.get_mut(usize::from(which) % len.max(1)) else {
            return;
        };
        let (node, fh) = (file.node, file.handle);
        match kind {
            1 => {
                let arg = ReleaseIn {
                    fh,
                    ..Default::default()
                };
                request(server, op::RELEASE, node, arg.as_bytes());
                self.0.remove(usize::from(which) % len);
            }
            2 | 3 => self.atomic(server, which, kind == 2, input.u8()),
            4 => {
                let (offset, size) = (u64::from(input.u16()), usize::from(input.u8()));
                let data = input.take(size);
                let write_flags = u32::from(input.u8() & 5);
                let arg = WriteIn {
                    fh,
                    offset,
                    size: data.len() as u32,
                    write_flags,
                    ..Default::default()
                };
                request(server, op::WRITE, node, &[arg.as_bytes(), data].concat());
            }
            5 => {
                let arg = SetattrIn {
                    valid: abi::fattr::SIZE,
                    size: input.u16().into(),
                    ..Default::default()
                };
                request(server, op::SETATTR, node, arg.as_bytes());
            }
            _ => {
                let arg = FsyncIn {
                    fh,
                    ..Default::default()
                };
                request(server, op::FSYNC, node, arg.as_bytes());
            }
        }
    }

    fn open(&mut self, server: &Server, node: u64, flags: u8) {
        let arg = OpenIn {
            flags: u32::from(flags & 3),
            ..Default::default()
        };
        let answer = request(server, op::OPEN, node, arg.as_bytes());
        if let Some(handle) = answer.get(..8).and_then(|b| b.try_into().ok()) {
            self.0.push(Open {
                node,
                handle: u64::from_ne_bytes(handle),
                token: 0,
                atomic: false,
            });
        }
    }

    /// Opens one O_ATOMIC, or asks for its token. A second open of a file would wait for the first one's close, which nobody but us can make.
    fn atomic(&mut self, server: &Server, which: u8, open: bool, flags: u8) {
        let at = usize::from(which) % self.0.len();
        let (node, handle) = (self.0[at].node, self.0[at].handle);
        if open && self.0.iter().any(|o| o.atomic && o.node == node) {
            return;
        }
        let arg = AtomicArg {
            version: client::VERSION,
            flags: u32::from(open) | u32::from(flags & 0xfe),
            ..AtomicArg::default()
        };
        let answer = ioctl(server, node, handle, client::IOC_ATOMIC, arg.as_bytes());
        // The answer's head, and the argument.
        let token = answer.get(16 + 8..16 + 16).and_then(|b| b.try_into().ok());
        if let Some(token) = token {
            self.0[at].token = u64::from_ne_bytes(token);
            self.0[at].atomic |= open;
        }
    }

    fn syncv(&mut self, server: &Server, which: u8, input: &mut Input<'_>) {
        let mut arg = SyncvArg {
            version: client::VERSION,
            count: input.u8().into(),
            tokens: [0; SYNCV_MAX],
        };
        for token in arg.tokens.iter_mut().take(usize::from(which) % 8) {
            let wanted = usize::from(input.u8());
            *token = self.0.get(wanted).map_or(wanted as u64, |o| o.token);
        }
        let (node, fh) = self.0.first().map_or((1, 0), |o| (o.node, o.handle));
        ioctl(server, node, fh, client::IOC_SYNCV, arg.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::server;

    /// The steps are no decoration: files become O_ATOMIC, and two of them are synced together.
    #[test]
    fn steps_reach_syncv() {
        let (_vol, server) = server(true).unwrap();
        let mut files = Files::default();
        let mut step = |bytes: &[u8]| files.step(&server, bytes[0], &mut Input(&bytes[1..]));
        for (which, node) in (11..20u8).enumerate() {
            step(&[0, node, 2]);
            step(&[2, which as u8, 0]);
            step(&[4, which as u8, 0, 0, 3, 1, 2, 3, 0]);
        }
        let tokens: Vec<u64> = files.0.iter().map(|o| o.token).collect();
        assert!(
            tokens.iter().filter(|t| **t != 0).count() >= 2,
            "{tokens:?}"
        );
        let mut arg = SyncvArg {
            version: client::VERSION,
            count: 2,
            tokens: [0; SYNCV_MAX],
        };
        let true_ones = tokens.into_iter().filter(|t| *t != 0);
        arg.tokens
            .iter_mut()
            .zip(true_ones.take(2))
            .for_each(|(to, t)| *to = t);
        let (node, fh) = (files.0[0].node, files.0[0].handle);
        let answer = ioctl(&server, node, fh, client::IOC_SYNCV, arg.as_bytes());
        assert!(!answer.is_empty(), "syncv is answered");
        let _ = server.end();
    }
}
