//! Reservations: space for an operation before it is accepted.
use crate::base::types::{Context, Result, errno};
use crate::home::space;
use crate::operation::Operations;
use crate::operation::refusal::{Refusal, Tried};
use crate::operation::turn::{Lack, Room};
use ccfs_ext4::Error;

/// Blocks reserved in the allocator for an operation that is about to be accepted; given back if it is not.
pub(crate) struct Reservation<'v> {
    vol: &'v Operations,
    pub data: u64,
    pub metadata: u64,
    /// Blocks of metadata were wanted and there are none.
    pub short: bool,
    /// So are those for a cut of an unwritten extent.
    pub no_split: bool,
    /// It was drawn on a promise.
    promised: bool,
}

impl Reservation<'_> {
    pub(crate) fn hand_over(mut self) -> (u64, u64) {
        (
            std::mem::take(&mut self.data),
            std::mem::take(&mut self.metadata),
        )
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.data + self.metadata > 0 {
            let space = self.vol.space();
            match self.promised {
                true => space.undraw(self.data, self.metadata),
                false => space.unreserve(self.vol.image(), self.data, self.metadata),
            }
        }
    }
}

impl Operations {
    /// Reserves blocks, or ENOSPC. Root's reserve is left to privileged callers.
    pub(crate) fn reserve(
        &self,
        cx: &Context,
        room: &Room,
        data: u64,
        metadata: u64,
    ) -> Tried<Reservation<'_>> {
        let reserve = if cx.privileged {
            0
        } else {
            self.image().geometry().root_reserved_blocks
        };
        self.turn.refuse_others(room)?;
        let enough = reserve == 0 || self.has_unreserved(data + metadata + reserve);
        let got = enough && self.space().reserve(self.image(), data, metadata);
        let promised = !got && cx.posted && self.space().draw_promised(data, metadata);
        if got || promised {
            Ok(Reservation {
                vol: self,
                data,
                metadata,
                short: false,
                no_split: false,
                promised,
            })
        } else {
            room.note_lack(Some(Lack::Free(data + metadata)));
            self.note_what_promises_fill(data + metadata + reserve);
            errno(libc::ENOSPC)
        }
    }

    /// So many blocks are lacking: who promises blocks is told, if they would be there without what is promised.
    fn note_what_promises_fill(&self, blocks: u64) {
        if self.unreserved_blocks() + self.space().promised() >= blocks {
            space::note_lack();
        }
    }

    /// As `reserve`, for an operation that takes up to `most` blocks of metadata if others come before it, and `need` as things are:
    /// that many have to be there for its caller. The rest, which comes back as a rule, may be of any reserve.
    pub(crate) fn reserve_for(
        &self,
        cx: &Context,
        room: &Room,
        data: u64,
        most: u64,
        need: impl FnOnce() -> Result<u64>,
    ) -> Tried<Reservation<'_>> {
        let all = self.reserve(cx, room, data, most);
        if !matches!(all, Err(Refusal::Final(Error::Errno(libc::ENOSPC)))) {
            return all;
        }
        let need = need()?.min(most);
        let held = cx.stream.is_group();
        let mut reservation = match data + need {
            0 => self.reserve_metadata(room, held, most)?,
            _ => self.reserve(cx, room, data, need)?,
        };
        // What is drawn on a promise is for what is needed.
        if data + need > 0 && need < most && !reservation.promised {
            let (_, rest) = self.reserve_metadata(room, held, most - need)?.hand_over();
            reservation.metadata += rest;
        }
        Ok(reservation)
    }

    /// Reserves blocks for what an operation on existing files makes of their structure, or ENOSPC. Every reserve counts. `held`: see
    /// `Space::draw`.
    pub(crate) fn reserve_metadata(
        &self,
        room: &Room,
        held: bool,
        metadata: u64,
    ) -> Tried<Reservation<'_>> {
        self.turn.refuse_others(room)?;
        let reservation = self.reserve_if_possible(room, held, metadata);
        if reservation.short {
            return errno(libc::ENOSPC);
        }
        Ok(reservation)
    }

    /// For operations that must not fail for lack of space (C9): what can be reserved, of the engine's own reserve if need be, else
    /// nothing: then the operation must do without. Root's reserve comes last. `held`: see `Space::draw`.
    pub(crate) fn reserve_if_possible(
        &self,
        room: &Room,
        held: bool,
        metadata: u64,
    ) -> Reservation<'_> {
        let reserve = self.image().geometry().root_reserved_blocks;
        let free = || self.space().reserve(self.image(), 0, metadata);
        let got = reserve == 0 || self.has_unreserved(metadata + reserve);
        let got = got && free() || self.space().draw(metadata, held) || reserve > 0 && free();
        // What an open group or a draft holds comes back for nobody's turn.
        if !got && !held {
            room.note_lack(Some(Lack::Kept));
        }
        if !got {
            self.note_what_promises_fill(metadata);
        }
        self.reservation_of(metadata, got, !got)
    }

    /// For operations that do as well without, and cut no unwritten extent: of what is free for everybody, else nothing. Many of them would
    /// take the engine's own reserve away from those that need it.
    pub(crate) fn reserve_if_free(&self, metadata: u64) -> Reservation<'_> {
        let got = self.space().reserve(self.image(), 0, metadata);
        self.reservation_of(metadata, got, false)
    }

    fn reservation_of(&self, metadata: u64, got: bool, no_split: bool) -> Reservation<'_> {
        Reservation {
            vol: self,
            data: 0,
            metadata: if got { metadata } else { 0 },
            short: !got,
            no_split,
            promised: false,
        }
    }
}
