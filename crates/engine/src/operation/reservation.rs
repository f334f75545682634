//! Reservations: space for an operation before it is accepted.
use crate::base::types::{Context, Result, errno};
use crate::operation::Operations;
use crate::operation::refusal::{Refusal, Tried};
use crate::operation::turn::{Lack, Room};
use ccfs_ext4::Error;

/// Blocks reserved in the allocator for an operation that is about to be accepted; given back if it is not.
pub(crate) struct Reservation<'v> {
    vol: &'v Operations,
    pub data: u64,
    pub structure: u64,
    /// Blocks of structure were wanted and there are none.
    pub short: bool,
    /// So are those for a cut of an unwritten extent.
    pub no_split: bool,
}

impl Reservation<'_> {
    pub(crate) fn hand_over(mut self) -> (u64, u64) {
        (
            std::mem::take(&mut self.data),
            std::mem::take(&mut self.structure),
        )
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.data + self.structure > 0 {
            self.vol
                .space()
                .unreserve(self.vol.image(), self.data, self.structure);
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
        structure: u64,
    ) -> Tried<Reservation<'_>> {
        let reserve = if cx.privileged {
            0
        } else {
            self.image().geometry().root_reserved_blocks
        };
        self.turn.refuse_others(room)?;
        let enough = reserve == 0 || self.has_unreserved(data + structure + reserve);
        if enough && self.space().reserve(self.image(), data, structure) {
            Ok(Reservation {
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

    /// As `reserve`, for an operation that takes up to `most` blocks of structure if others come before it, and `need` as things are:
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
            0 => self.reserve_structure(room, held, most)?,
            _ => self.reserve(cx, room, data, need)?,
        };
        if data + need > 0 && need < most {
            let (_, rest) = self.reserve_structure(room, held, most - need)?.hand_over();
            reservation.structure += rest;
        }
        Ok(reservation)
    }

    /// Reserves blocks for what an operation on existing files makes of their structure, or ENOSPC. Every reserve counts. `held`: see
    /// `Space::draw`.
    pub(crate) fn reserve_structure(
        &self,
        room: &Room,
        held: bool,
        structure: u64,
    ) -> Tried<Reservation<'_>> {
        self.turn.refuse_others(room)?;
        let reservation = self.reserve_if_possible(room, held, structure);
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
        structure: u64,
    ) -> Reservation<'_> {
        let reserve = self.image().geometry().root_reserved_blocks;
        let free = || self.space().reserve(self.image(), 0, structure);
        let got = reserve == 0 || self.has_unreserved(structure + reserve);
        let got = got && free() || self.space().draw(structure, held) || reserve > 0 && free();
        // What an open group or a draft holds comes back for nobody's turn.
        if !got && !held {
            room.note_lack(Some(Lack::Kept));
        }
        self.reservation_of(structure, got, !got)
    }

    /// For operations that do as well without, and cut no unwritten extent: of what is free for everybody, else nothing. Many of them would
    /// take the engine's own reserve away from those that need it.
    pub(crate) fn reserve_if_free(&self, structure: u64) -> Reservation<'_> {
        let got = self.space().reserve(self.image(), 0, structure);
        self.reservation_of(structure, got, false)
    }

    fn reservation_of(&self, structure: u64, got: bool, no_split: bool) -> Reservation<'_> {
        Reservation {
            vol: self,
            data: 0,
            structure: if got { structure } else { 0 },
            short: !got,
            no_split,
        }
    }
}
