//! Promises: space for an operation before it is accepted.
use crate::base::types::{Context, Result, errno};
use crate::operation::Operations;
use crate::operation::refusal::{Refusal, Tried};
use crate::operation::turn::{Lack, Room};
use ccfs_ext4::Error;

/// Blocks promised by the allocator to an operation that is about to be accepted; given back if it is not.
pub(crate) struct Promise<'v> {
    vol: &'v Operations,
    pub data: u64,
    pub structure: u64,
    /// Blocks of structure were wanted and there are none.
    pub short: bool,
    /// So are those for a cut of an unwritten extent.
    pub no_split: bool,
}

impl Promise<'_> {
    pub(crate) fn hand_over(mut self) -> (u64, u64) {
        (
            std::mem::take(&mut self.data),
            std::mem::take(&mut self.structure),
        )
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if self.data + self.structure > 0 {
            self.vol
                .space()
                .unpromise(self.vol.image(), self.data, self.structure);
        }
    }
}

impl Operations {
    /// Promises blocks, or ENOSPC. Root's reserve is left to privileged callers.
    pub(crate) fn promise(
        &self,
        cx: &Context,
        room: &Room,
        data: u64,
        structure: u64,
    ) -> Tried<Promise<'_>> {
        let reserve = if cx.privileged {
            0
        } else {
            self.image().geometry().root_reserved_blocks
        };
        self.turn.refuse_others(room)?;
        let enough = reserve == 0 || self.has_unpromised(data + structure + reserve);
        if enough && self.space().promise(self.image(), data, structure) {
            Ok(Promise {
                vol: self,
                data,
                structure,
                short: false,
                no_split: false,
            })
        } else {
            room.note_lack(Some(Lack::Free(data + structure)));
            errno(libc::ENOSPC)
        }
    }

    /// As `promise`, for an operation that takes up to `most` blocks of structure if others come before it, and `need` as things are:
    /// that many have to be there for its caller. The rest, which comes back as a rule, may be of any reserve.
    pub(crate) fn promise_for(
        &self,
        cx: &Context,
        room: &Room,
        data: u64,
        most: u64,
        need: impl FnOnce() -> Result<u64>,
    ) -> Tried<Promise<'_>> {
        let all = self.promise(cx, room, data, most);
        if !matches!(all, Err(Refusal::Final(Error::Errno(libc::ENOSPC)))) {
            return all;
        }
        let need = need()?.min(most);
        let held = cx.stream.is_group();
        let mut promise = match data + need {
            0 => self.promise_structure(room, held, most)?,
            _ => self.promise(cx, room, data, need)?,
        };
        if data + need > 0 && need < most {
            let (_, rest) = self.promise_structure(room, held, most - need)?.hand_over();
            promise.structure += rest;
        }
        Ok(promise)
    }

    /// Promises blocks for what an operation on existing files makes of their structure, or ENOSPC. Every reserve counts. `held`: see
    /// `Space::draw`.
    pub(crate) fn promise_structure(
        &self,
        room: &Room,
        held: bool,
        structure: u64,
    ) -> Tried<Promise<'_>> {
        self.turn.refuse_others(room)?;
        let promise = self.promise_if_possible(room, held, structure);
        if promise.short {
            return errno(libc::ENOSPC);
        }
        Ok(promise)
    }

    /// For operations that must not fail for lack of space (C9): what can be promised, of the engine's own reserve if need be, else
    /// nothing: then the operation must do without. Root's reserve comes last. `held`: see `Space::draw`.
    pub(crate) fn promise_if_possible(
        &self,
        room: &Room,
        held: bool,
        structure: u64,
    ) -> Promise<'_> {
        let reserve = self.image().geometry().root_reserved_blocks;
        let free = || self.space().promise(self.image(), 0, structure);
        let got = reserve == 0 || self.has_unpromised(structure + reserve);
        let got = got && free() || self.space().draw(structure, held) || reserve > 0 && free();
        // What an open group or a draft holds comes back for nobody's turn.
        if !got && !held {
            room.note_lack(Some(Lack::Kept));
        }
        self.promise_of(structure, got, !got)
    }

    /// For operations that do as well without, and cut no unwritten extent: of what is free for everybody, else nothing. Many of them would
    /// take the engine's own reserve away from those that need it.
    pub(crate) fn promise_if_free(&self, structure: u64) -> Promise<'_> {
        let got = self.space().promise(self.image(), 0, structure);
        self.promise_of(structure, got, false)
    }

    fn promise_of(&self, structure: u64, got: bool, no_split: bool) -> Promise<'_> {
        Promise {
            vol: self,
            data: 0,
            structure: if got { structure } else { 0 },
            short: !got,
            no_split,
        }
    }
}
