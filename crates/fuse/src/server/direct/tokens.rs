//! Names that are good for one open: by them a program goes on with a held file through the mount (`.ccfs-direct-` and 128 random bits).
//!
//! # The mode at such an open
//! A descriptor keeps the access that it was opened with, whatever the mode becomes: `open(O_RDWR | O_CREAT, 0444)`, `fchmod(fd, 0)`. An open by a name is
//! checked anew, by the kernel (`default_permissions`), against the mode. So for this one check the owner has the bits that the program's handle has.
//!
//! LOOKUP tells the true mode, with a lifetime of zero. So the kernel, before it checks, asks for the attributes again, in the thread that opens. That
//! one question ([`Tokens::opens`]) is answered with the bits, again with a lifetime of zero: the kernel uses them for the check, and asks before it
//! uses them for anything else. Nobody else's question is answered so: stat(2) shows the reply to its own. Nothing has to be taken back
//! after the open, which the daemon does not see without OPEN; and as nothing of it is in the engine, nothing of it becomes durable.
//!
//! An answer is dropped by the kernel if the attributes have changed meanwhile; then the open fails with EACCES, and the library tries again.
//!
//! Only an owner gets bits: nobody else could change the mode while he had the file, and others' bits can stand in an access list. He could change the mode
//! himself, so if another thread of his is between its own question and its check in that moment, it gets nothing that he may not have. Root needs none.
use super::{Direct, Session};
use crate::wire::Errno;
use ccfs_caller::random;
use ccfs_client::direct::layout::{READING, WRITING};
use ccfs_client::direct::sync::AtomicUsize;
use ccfs_engine::sync::Mutex;
use ccfs_engine::{Attr, FastMap, Ino};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Names that wait to be opened once.
const TOKENS_MAX: usize = 4096;
/// How they begin.
const TOKEN: &str = ".ccfs-direct-";

/// What a name that is good for one LOOKUP stands for.
#[derive(Clone, Copy)]
pub(in crate::server) struct Token {
    pub ino: Ino,
    pub for_locks: bool,
    /// Who may open it although the mode does not let him, and what for: `layout::READING`, `layout::WRITING`.
    pub keeps: Option<(u32, u32)>,
}

/// An open by such a name, after its LOOKUP.
struct Opening {
    token: String,
    ino: Ino,
    /// What the mode is to have besides.
    bits: u16,
}

/// All of a mount.
#[derive(Default)]
pub(super) struct Tokens {
    waiting: Mutex<HashMap<String, Token>>,
    /// By the thread that opens: it does nothing else meanwhile.
    opening: Mutex<FastMap<u32, Opening>>,
    /// How many of them there are.
    opens: AtomicUsize,
}

impl Tokens {
    /// Those that wait to be opened.
    pub fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    fn forget(&self, name: &str) {
        self.waiting.lock().remove(name);
        if self.opens.load(Ordering::SeqCst) > 0 {
            let mut opening = self.opening.lock();
            opening.retain(|_, open| open.token != name);
            self.opens.store(opening.len(), Ordering::SeqCst);
        }
    }

    /// A thread's question for attributes is the one in its open: the bits that the mode has for that. Once.
    fn opens(&self, thread: u32, ino: Ino) -> Option<u16> {
        if self.opens.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut opening = self.opening.lock();
        opening.get(&thread).filter(|open| open.ino == ino)?;
        let open = opening.remove(&thread);
        self.opens.store(opening.len(), Ordering::SeqCst);
        open.map(|open| open.bits)
    }
}

impl Direct {
    /// A name by which an inode can be opened once. Error: ENFILE too many wait to be opened.
    pub(super) fn new_token(&self, token: Token) -> Result<String, Errno> {
        let name = format!("{TOKEN}{:016x}{:016x}", random()?, random()?);
        let mut waiting = self.tokens.waiting.lock();
        if waiting.len() >= TOKENS_MAX {
            return Err(Errno(libc::ENFILE));
        }
        waiting.insert(name.clone(), token);
        Ok(name)
    }

    /// Its handle is closed: nobody opens it any more, and the kernel would keep the file for its sake.
    pub(super) fn forget_token(&self, session: &Session, token: &str) {
        self.tokens.forget(token);
        let (user, dir) = (session.user.uid, session.root);
        self.notifier.name_gone(user, dir, token.as_bytes());
    }

    /// What such a name is for.
    pub fn token(&self, name: &[u8]) -> Option<Token> {
        if !self.is_active() || !name.starts_with(TOKEN.as_bytes()) {
            return None;
        }
        let name = std::str::from_utf8(name).ok()?;
        self.tokens.waiting.lock().get(name).copied()
    }

    /// Somebody opens the inode by such a name, which is used up. False: it is already, or nobody has the handle any more.
    pub fn use_token(&self, name: &[u8]) -> bool {
        let name = String::from_utf8_lossy(name);
        self.tokens.waiting.lock().remove(&*name).is_some()
    }

    /// A thread of a user opens an inode by such a name, which was used up by that. True: the mode does not let him, and his next question for its
    /// attributes is answered otherwise (`mode_to_open`).
    pub fn keeps_access(
        &self,
        (thread, uid): (u32, u32),
        name: &[u8],
        token: Token,
        attr: &Attr,
    ) -> bool {
        let bits = token.bits_kept(uid, attr);
        if bits == 0 || thread == 0 {
            return false;
        }
        let tokens = &self.tokens;
        let open = Opening {
            token: String::from_utf8_lossy(name).into_owned(),
            ino: token.ino,
            bits,
        };
        let mut opening = tokens.opening.lock();
        opening.insert(thread, open);
        tokens.opens.store(opening.len(), Ordering::SeqCst);
        true
    }

    /// A thread asks for attributes. The mode that it is told, which nobody may believe afterwards; `None`: the true one.
    pub fn mode_to_open(&self, thread: u32, attr: &Attr) -> Option<u16> {
        let bits = self.tokens.opens(thread, attr.ino)?;
        Some(attr.mode | bits)
    }
}

impl Token {
    /// Bits that the mode lacks for what a user may do with it all the same.
    fn bits_kept(&self, uid: u32, attr: &Attr) -> u16 {
        match self.keeps {
            Some((owner, access)) if owner == uid && attr.uid == uid => {
                let bit = |of, bit| if access & of != 0 { bit } else { 0 };
                let wanted = bit(READING, libc::S_IRUSR) | bit(WRITING, libc::S_IWUSR);
                wanted as u16 & !attr.mode
            }
            _ => 0,
        }
    }
}
