//! A program beside a hostile one: it keeps the rules of direct calls, and must see nothing of the other.
use crate::kernel::{BOUND, Kernel, ROOT};
use ccfs_client::direct::layout::{Attr, BROKEN, BY_CALL, Entry, NO_HANDLE, WOULD_WAIT, op, word};
use ccfs_client::direct::ring::{Posted, Ring};
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

pub struct Honest {
    ring: Ring,
    session: u64,
    thread: u32,
    rounds: u32,
}

impl Honest {
    /// Only where a session can be had.
    pub fn begin(kernel: &mut Kernel<'_>) -> Honest {
        let (memory, session) = kernel.begin().expect("a session can be had");
        let mut honest = Honest {
            ring: Ring::new(memory),
            session,
            thread: 0,
            rounds: 0,
        };
        let known = Entry {
            op: op::THREAD,
            ..Entry::default()
        };
        assert_eq!(honest.call(kernel, known, b"").0, 0, "its thread is known");
        honest
    }

    /// Has an entry carried out by a system call: its result, and how the daemon calls the thread.
    fn call(&mut self, kernel: &mut Kernel<'_>, mut entry: Entry, name: &[u8]) -> (i32, u32) {
        (entry.flags, entry.thread) = (BY_CALL, self.thread);
        let asked = self.ring.ask(entry, &[name], size_of::<Attr>(), &within());
        let asked = asked.expect("its ring has room");
        let thread = kernel.call(self.session, asked.position);
        self.thread = thread.expect("its call is carried out");
        (asked.reply().0, self.thread)
    }

    /// Asks, by a call where that would wait: the result, and what there is of the reply.
    fn ask(&self, kernel: &mut Kernel<'_>, entry: Entry, bytes: &[u8], out: &mut [u8]) -> i32 {
        let room = out.len().max(size_of::<Attr>());
        let asked = self.ring.ask(entry, &[bytes], room, &within());
        let asked = asked.expect("its ring has room");
        let (mut result, mut len) = asked.wait(&within()).expect("it is answered");
        if result == WOULD_WAIT {
            let called = kernel.call(self.session, asked.position);
            called.expect("its call is carried out");
            (result, len) = asked.reply();
        }
        assert!(result != 0 || len >= out.len(), "{len} bytes of a reply");
        asked.copy(out);
        result
    }

    /// Posts, or asks where it may not post.
    fn post(&self, kernel: &mut Kernel<'_>, entry: Entry, bytes: &[u8]) -> i32 {
        match self.ring.post(entry, &[bytes], &within()) {
            Ok(Posted::Accepted(_)) => 0,
            Ok(Posted::InDoubt(asked)) => asked.wait_carried_out(&within()).expect("it is done"),
            Ok(Posted::NotAllowed) => self.ask(kernel, entry, bytes, &mut []),
            Err(e) => panic!("its session has ended: {e}"),
        }
    }

    /// Makes a directory and a file in it, and reads that back, directly and through the mount. The volume may be full.
    pub fn round(&mut self, kernel: &mut Kernel<'_>) {
        self.rounds += 1;
        let (dir, file) = (self.rounds * 2 + 1, self.rounds * 2 + 2);
        let (name, content) = (format!("honest{}", self.rounds), b"what it says".repeat(9));
        let entry = Entry {
            op: op::MKDIR,
            h: NO_HANDLE,
            h2: dir,
            b: 0o777,
            ..Entry::default()
        };
        match self.call(kernel, entry, name.as_bytes()).0 {
            0 => {}
            libc::ENOSPC => return,
            errno => panic!("it cannot make a directory: {}", shown(errno)),
        }
        let entry = Entry {
            op: op::CREATE,
            thread: self.thread,
            h: dir,
            h2: file,
            b: 0o666,
            ..Entry::default()
        };
        let write = Entry {
            op: op::WRITE,
            h: file,
            ..entry
        };
        for (entry, bytes) in [(entry, &b"f"[..]), (write, &content[..])] {
            match self.post(kernel, entry, bytes) {
                0 => {}
                libc::ENOSPC => return,
                errno => panic!("entry {} failed: {}", entry.op, shown(errno)),
            }
        }
        let read = Entry {
            op: op::READ,
            b: content.len() as u64,
            ..write
        };
        let mut seen = vec![0; content.len()];
        let result = self.ask(kernel, read, b"", &mut seen);
        assert_eq!((result, &seen), (0, &content), "{}", shown(result));
        let found = kernel
            .look_up(ROOT, &name)
            .and_then(|dir| kernel.look_up(dir, "f"))
            .and_then(|file| kernel.read(file, 4096));
        assert_eq!(found, Ok(content), "through the mount");
        for handle in [file, dir] {
            let close = Entry {
                op: op::CLOSE,
                h: handle,
                ..entry
            };
            assert_eq!(self.post(kernel, close, b""), 0);
        }
        let ended = self.ring.memory().u32(word::ENDED).load(SeqCst);
        assert_eq!(ended, 0, "its session has ended: {}", shown(ended as i32));
    }

    pub fn end(&self) {
        let end = Entry {
            op: op::END,
            ..Entry::default()
        };
        let posted = self.ring.post(end, &[], &within());
        assert!(posted.is_ok(), "its session has ended");
    }
}

/// The daemon has so long for an answer.
fn within() -> impl Fn() -> io::Result<()> {
    let begun = Instant::now();
    move || match begun.elapsed() < BOUND {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn shown(result: i32) -> String {
    match result {
        BROKEN => "its hold is broken".into(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}
