//! Who holds what, and how that ends.
use super::coming::Look;
use super::session::Session;
use super::{Direct, count};
use crate::server::notifier::STUCK;
use crate::server::{Answer, FOREVER, Server, ino_of};
use crate::wire::{Errno, Request};
use ccfs_engine::{Attr, Calls, FLAG_APPEND, FLAG_EXTENTS, FLAG_IMMUTABLE, Ino, ROOT_INO, Wait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Directories above an inode that are looked at.
const DEPTH_MAX: usize = 256;

/// Entries of a directory that are looked at before it is held.
pub const ENTRIES_MAX: usize = 1 << 16;
/// Changes of such inodes are refused.
const NEVER: u32 = FLAG_IMMUTABLE | FLAG_APPEND;

/// Who holds an inode.
pub struct Hold {
    session: Arc<Session>,
    /// References that the kernel has for locks only.
    known: u64,
}

impl Hold {
    fn of(session: &Arc<Session>) -> Hold {
        Hold {
            session: session.clone(),
            known: 0,
        }
    }
}

/// What is in a directory.
#[derive(Default)]
pub struct Entries {
    /// What the kernel knows, and whether it is a directory.
    pub known: Vec<(Ino, bool)>,
    /// How many there are in all.
    pub count: usize,
    /// Some are such that the directory cannot be held whatever the kernel knows.
    pub unfit: bool,
}

impl Direct {
    pub fn break_all(&self, session: &Arc<Session>) {
        loop {
            let inodes: Vec<Ino> = {
                let holds = self.holds.lock();
                let its = holds
                    .iter()
                    .filter(|(_, h)| Arc::ptr_eq(&h.session, session));
                its.map(|(ino, _)| *ino).collect()
            };
            // More come from directories whose turn has not come: these are first.
            if inodes.is_empty() || session.is_over() {
                return;
            }
            let is_dir = |ino: &Ino| self.volume.getattr(*ino).is_ok_and(|a| a.is_dir());
            let (dirs, files): (Vec<Ino>, Vec<Ino>) = inodes.into_iter().partition(is_dir);
            for ino in dirs.into_iter().chain(files) {
                let _ = self.break_one(ino, Wait::Allowed);
            }
        }
    }

    /// The kernel has references to an inode.
    pub fn kernel_knows(&self, ino: Ino) -> bool {
        let open = self.open.lock().get(&ino).copied().unwrap_or(0);
        self.volume.references(ino) > open as u64
    }

    /// Nobody holds an inode, since the kernel has references to it.
    pub fn kernel_knows_unheld(&self, ino: Ino) -> bool {
        !self.is_held(ino) && self.kernel_knows(ino)
    }

    /// The kernel is not to get to know an inode by a listing.
    pub fn is_secret(&self, ino: Ino) -> bool {
        self.is_held(ino) || self.linked.contains(ino)
    }

    /// The inode is held.
    pub fn is_held(&self, ino: Ino) -> bool {
        self.holds.lock().contains_key(&ino)
    }

    /// The kernel asks for an inode, and its reference is counted already: what was posted is carried out, and nobody holds it any more, nor a directory
    /// in which it has a name: a held directory has no entry that the kernel knows. Error: EAGAIN it would have to wait.
    pub fn break_hold(&self, ino: Ino, wait: Wait) -> Result<(), Errno> {
        self.break_linked(ino, wait)?;
        let session = self.holder(ino);
        let (mut held, mut at) = (Vec::new(), ino);
        for _ in 0..DEPTH_MAX {
            match self.volume.directory_of(at) {
                Some(dir) if dir != at && dir != ROOT_INO => at = dir,
                Some(_) => break,
                None => {
                    // Not in memory: whichever it may be.
                    let its = match session {
                        Some(session) => vec![session],
                        None if at == ino && ino != ROOT_INO => self.holders(),
                        None => Vec::new(),
                    };
                    if wait == Wait::Never && !its.is_empty() {
                        return Err(Errno(libc::EAGAIN));
                    }
                    its.iter().for_each(|session| self.break_all(session));
                    break;
                }
            }
            if self.is_held(at) {
                held.push(at);
            }
        }
        // From above: below what is broken nobody gets a new hold. In general there is none: who came by a path had to know the directories first.
        while let Some(dir) = held.pop() {
            self.break_one(dir, wait)?;
        }
        self.break_one(ino, wait)?;
        // It may have got another name by what was posted before.
        self.break_linked(ino, wait)
    }

    /// Breaks the holds of all directories in which a file has got names while they were held. It gets no more: its reference is counted.
    fn break_linked(&self, ino: Ino, wait: Wait) -> Result<(), Errno> {
        if !self.linked.contains(ino) {
            return Ok(());
        }
        loop {
            // One of them may have gone to another directory meanwhile.
            let mut dirs = self.linked.dirs_of(ino);
            dirs.retain(|dir| self.is_held(*dir));
            if dirs.is_empty() {
                break;
            }
            for dir in dirs {
                self.break_one(dir, wait)?;
            }
        }
        self.linked.forget(ino);
        Ok(())
    }

    /// Sessions that hold something.
    fn holders(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<Arc<Session>> = Vec::new();
        for hold in self.holds.lock().values() {
            if !all.iter().any(|s| Arc::ptr_eq(s, &hold.session)) {
                all.push(hold.session.clone());
            }
        }
        all
    }

    fn break_one(&self, ino: Ino, wait: Wait) -> Result<(), Errno> {
        loop {
            let Some(session) = self.holder(ino) else {
                return Ok(());
            };
            session.begin_breaking(ino);
            let broken = self.break_hold_of(&session, ino, wait);
            session.end_breaking(ino);
            broken?;
        }
    }

    fn break_hold_of(&self, session: &Arc<Session>, ino: Ino, wait: Wait) -> Result<(), Errno> {
        // The program publishes first and looks at the mark then; here it is the other way round (`Ring::publish`).
        session.lock(wait)?.mark(session, ino);
        std::sync::atomic::fence(Ordering::SeqCst);
        let tail = session.tail();
        self.carry_out_to(session, tail, wait)?;
        let mut consumer = session.lock(wait)?;
        if !consumer.no_longer_held(ino) {
            return Ok(());
        }
        if self.let_go(session, ino) {
            count(&self.figures.breaks, 1);
        }
        Ok(())
    }

    pub fn holder(&self, ino: Ino) -> Option<Arc<Session>> {
        let holds = self.holds.lock();
        holds.get(&ino).map(|hold| hold.session.clone())
    }

    /// The session holds an inode no more. False: it did not.
    pub fn let_go(&self, session: &Arc<Session>, ino: Ino) -> bool {
        let mut holds = self.holds.lock();
        match holds.get(&ino) {
            Some(hold) if Arc::ptr_eq(&hold.session, session) => self.note_unheld(ino, hold.known),
            _ => return false,
        }
        holds.remove(&ino);
        true
    }

    /// It holds nothing any more.
    pub fn let_all_go(&self, session: &Arc<Session>) {
        self.holds.lock().retain(|ino, hold| {
            let its = Arc::ptr_eq(&hold.session, session);
            if its {
                self.note_unheld(*ino, hold.known);
            }
            !its
        });
        self.linked.forget_all_of(session);
    }

    /// The kernel has so many references to what is held no more from here on.
    fn note_unheld(&self, ino: Ino, known: u64) {
        if known > 0 {
            // Its size is what the kernel was told last, until it asks again.
            self.notifier.size_is_doubtful(ino);
            self.known.fetch_sub(known as usize, Ordering::SeqCst);
        }
    }

    /// The kernel gets a reference to a held inode for its locks, and keeps nothing of it. False: nobody holds it.
    pub fn known_for_locks(&self, ino: Ino) -> bool {
        let mut holds = self.holds.lock();
        let Some(hold) = holds.get_mut(&ino) else {
            return false;
        };
        hold.known += 1;
        self.known.fetch_add(1, Ordering::SeqCst);
        self.volume.remember(ino, 1);
        true
    }

    /// The kernel gives references back, which are counted until then: of two wrong orders this is the one in which nothing is granted.
    pub fn forgotten(&self, ino: Ino, references: u64) {
        if self.known.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(hold) = self.holds.lock().get_mut(&ino) {
            let its = hold.known.min(references);
            hold.known -= its;
            self.known.fetch_sub(its as usize, Ordering::SeqCst);
        }
    }

    /// The kernel is told that there is no such name in a directory.
    pub fn note_absent(&self, dir: Ino, name: &[u8]) {
        if self.allowed.on {
            self.absent.note(dir, name);
        }
    }

    /// Before it is found out that a name is not there.
    pub fn look_for_coming(&self, dir: Ino, name: &[u8]) -> Look {
        self.coming.look(dir, name)
    }

    /// How long the kernel may remember that a name is not there. Where sessions make names it is told of each; that it has been may take
    /// longer ([`STUCK`]), and from Linux 6.19 on does not wait for a LOOKUP under way, which may come to its end later.
    pub fn absence(&self, before: Look) -> Duration {
        match self.allowed.on {
            _ if self.coming.may_come(before) => Duration::ZERO,
            true => STUCK / 2,
            false => Duration::from_secs(FOREVER),
        }
    }

    /// The kernel has given references to an inode up, which are fewer by now.
    pub fn note_forgotten(&self, ino: Ino) {
        self.absent.forget(ino, || self.kernel_knows(ino));
    }

    /// Rests while the kernel gathers what it has given up, unless somebody waits for it.
    pub fn rest_while_forgets_gather(&self, most: Duration) {
        self.forgets.rest(most);
    }

    /// All that the kernel gave up at once is noted.
    pub fn note_forgets(&self) {
        self.forgets.note();
    }

    /// Somebody asks for the attributes of an inode, and so does not break its hold: they are those after what was posted. True: they change without
    /// the kernel's knowledge.
    pub fn is_changing(&self, ino: Ino, wait: Wait) -> Result<bool, Errno> {
        if self.known.load(Ordering::SeqCst) == 0 {
            return Ok(false);
        }
        match self.holder(ino) {
            Some(session) => self.carry_out(&session, wait).map(|()| true),
            None => Ok(false),
        }
    }

    /// A session may hold an inode from here on: the kernel does not know it, and nobody else holds it. The caller has so many handles of it, each of
    /// which has a reference. Error: EAGAIN, it would have to wait for the device.
    pub fn grant(
        &self,
        session: &Arc<Session>,
        volume: &Calls,
        ino: Ino,
        handles: u64,
    ) -> Result<bool, Errno> {
        {
            let mut holds = self.holds.lock();
            let known = holds.get(&ino).map_or(0, |hold| hold.known);
            if self.volume.references(ino) != handles + known {
                return Ok(false);
            }
            if let Some(hold) = holds.get(&ino) {
                return Ok(Arc::ptr_eq(&hold.session, session));
            }
            if session.is_in_group(&self.callers) || !self.can_be_held(ino) {
                return Ok(false);
            }
            holds.insert(ino, Hold::of(session));
        }
        // Who gets to know an entry from here on sees the hold, and waits for the caller.
        let unknown = match self.unknown_entries(session, volume, ino) {
            Err(e) if e.errno() != libc::EAGAIN => Ok(false),
            unknown => unknown.map_err(|e| Errno(e.errno())),
        };
        if unknown != Ok(true) {
            self.let_go(session, ino);
        }
        unknown
    }

    /// If it is a directory: the kernel knows nothing that is in it, can get to know nothing of it by another name, and would not refuse to have it
    /// removed.
    fn unknown_entries(
        &self,
        session: &Session,
        volume: &Calls,
        dir: Ino,
    ) -> Result<bool, ccfs_engine::Error> {
        let known = self.known_entries(session, volume, dir, ENTRIES_MAX)?;
        Ok(known.is_some_and(|entries| entries.known.is_empty() && !entries.unfit))
    }

    /// What of it the kernel knows. `None`: there is more than so much in it.
    pub fn known_entries(
        &self,
        session: &Session,
        volume: &Calls,
        dir: Ino,
        most: usize,
    ) -> Result<Option<Entries>, ccfs_engine::Error> {
        if !volume.getattr(dir)?.is_dir() {
            return Ok(Some(Entries::default()));
        }
        let Some(entries) = volume.attrs_of_entries(dir, most)? else {
            return Ok(None);
        };
        let can_be = |attr: &Attr| {
            let links = attr.is_dir() || attr.nlink == 1 || self.linked.is_of(session, attr.ino);
            links && attr.flags & NEVER == 0
        };
        let unfit = !entries.iter().all(can_be);
        let count = entries.len();
        let known = entries
            .into_iter()
            .filter(|attr| self.kernel_knows(attr.ino));
        Ok(Some(Entries {
            known: known.map(|attr| (attr.ino, attr.is_dir())).collect(),
            count,
            unfit,
        }))
    }

    /// What is posted to it cannot fail, and no group that is taken back changes it.
    pub fn can_be_held(&self, ino: Ino) -> bool {
        let of_its_kind = self.volume.non_blocking().getattr(ino).is_ok_and(|attr| {
            attr.flags & NEVER == 0 && (attr.is_dir() || attr.flags & FLAG_EXTENTS != 0)
        });
        of_its_kind && !self.volume.is_synchronous(ino) && self.volume.groups_open() == 0
    }

    /// The session holds what was just born in a directory that it holds: nobody else can have seen it.
    pub fn hold_newborn(&self, session: &Arc<Session>, ino: Ino) -> bool {
        self.linked.forget(ino);
        self.holds.lock().insert(ino, Hold::of(session));
        true
    }
}

impl Server {
    /// Before a request is carried out: nobody holds any more what it is about. What the kernel knows for its locks only comes here by nothing else than
    /// its number.
    pub(in crate::server) fn break_before(&self, request: &Request<'_>) -> Answer {
        use crate::abi::{self, op};
        if self.direct.known.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let other = match request.header.opcode {
            // Nothing of the inode itself; its attributes are told without a break (`is_changing`).
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::FLUSH | op::RELEASE => {
                return Ok(());
            }
            op::GETATTR | op::STATX => return Ok(()),
            op::OPEN => {
                let arg = request.arg_and_rest::<abi::OpenIn>();
                match arg.is_ok_and(|(arg, _)| arg.flags & libc::O_TRUNC as u32 == 0) {
                    true => return Ok(()),
                    false => None,
                }
            }
            op::LINK => request
                .arg_and_rest::<abi::LinkIn>()
                .ok()
                .map(|(arg, _)| arg.oldnodeid),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => request
                .arg_and_rest::<abi::CopyIn>()
                .ok()
                .map(|(arg, _)| arg.nodeid_out),
            _ => None,
        };
        for node in [Some(request.header.nodeid), other].into_iter().flatten() {
            if let Ok(ino) = ino_of(node)
                && self.direct.is_held(ino)
            {
                self.direct.break_hold(ino, request.wait)?;
            }
        }
        Ok(())
    }
}
