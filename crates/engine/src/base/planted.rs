//! Planted bugs: mistakes that the crash exploration must find (docs/planted-bugs.md says which check finds which).
//!
//! They exist only with the feature `planted`, which nothing but that exploration switches on; the one to make is chosen at run
//! time. Without the feature `is` is the constant false and no code remains.
//!
//! Where a bug is planted stands one expression. What it does, if that is more, is here, or for what needs types of a floor above in
//! that floor's `bugs.rs`.
macro_rules! bugs {
    ($($bug:ident $name:literal $what:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code)]
        pub enum Bug { $($bug),* }

        /// Every bug with its name and what is wrong.
        #[cfg(feature = "planted")]
        pub const BUGS: &[(Bug, &str, &str)] = &[$((Bug::$bug, $name, $what)),*];
    };
}

bugs! {
    SkippedFlush "skipped-flush" "a sync call returns without a flush of the device"
    UncheckedData "unchecked-data" "direct data is neither flushed before its commit record nor checksummed in it"
    StaleSum "stale-checksum" "a record's checksums are those of the data before the last change"
    DependencyFile "dependency-file" "a write does not depend on the file's last change by another stream"
    DependencyLink "dependency-link" "link and unlink do not depend on the file's last change by another stream"
    DependencyName "dependency-name" "an entry does not depend on the last change of the same name"
    DependencyCreation "dependency-creation" "an entry does not depend on the creation of its directory"
    DependencyRights "dependency-rights" "an entry does not depend on the last change of its directory's mode or owner"
    DependencyFlags "dependency-flags" "an entry does not depend on the last change of its directory's flags"
    DependencyList "dependency-list" "mode and access ACL of a directory do not depend on each other"
    DependencyRemoval "dependency-removal" "a directory's removal does not depend on the changes of its entries"
    DependencyMove "dependency-move" "the move of a directory does not depend on earlier moves of those on its new path"
    DependencyPath "dependency-path" "the move of a directory depends on the last move of its new parent, not on those of the others on its new path"
    DependencyStream "dependency-stream" "a stream's transaction does not depend on the one before"
    DroppedDeps "dropped-deps" "commit records do not list what they depend on"
    FsyncOwnStream "fsync-own-stream" "fsync forgets what other streams did to the file"
    EarlyBlocks "early-block-reuse" "freed blocks are used again before a checkpoint covers the free"
    EarlyInode "early-inode-reuse" "a freed inode number is used again before the free is durable"
    UnlistedOrphans "unlisted-orphans" "a checkpoint does not list files without a name"
    AbsoluteCount "absolute-counter" "a directory's link count is applied as the value that all streams see"
    LateCapture "late-capture" "a commit takes an inode's attributes of the moment, not those of its transaction"
    LostReservation "lost-reservation" "space that was promised is not set aside"
    WrongVersion "wrong-version" "changing a page that is being committed changes the committed version"
    OrphanForgotten "orphan-forgotten" "recovery does not free files without a name"
    HomeBeforeLog "home-before-log" "a checkpoint writes home before its frames are flushed"
    EarlyTail "early-tail" "the log's tail moves before the home writes are flushed"
    MissingHold "missing-hold" "recovery lets structure take blocks that later records name"
    SumsIgnored "sums-ignored" "recovery does not compare data with its checksums"
    DepsIgnored "deps-ignored" "recovery accepts a transaction without what it depends on"
    EarlyWatermark "early-watermark" "a record says of all earlier ones that they are durable"
    FrozenWatermark "frozen-watermark" "a flush vouches only for what its caller has waited for, not for all that it covers"
    ReplayTwice "replay-twice" "recovery applies the records that the checkpoint contains once more"
    FieldOrder "field-order" "a directory's attributes are those committed last, not those accepted last"
    StaleTail "stale-tail" "neither cutting a file nor growing it zeroes what lies behind its end"
    DependencyBarrier "dependency-barrier" "what a stream does after a barrier does not depend on what others did to the file before it"
    BundleOrder "bundle-order" "a bundle's transactions lie in the log in the reverse order"
    BundleDeps "bundle-deps" "a bundle depends only on what its first transaction depends on"
    BarrierSums "barrier-sums" "data of a transaction that a barrier closed has no checksums, as if somebody flushed it"
    BarrierFlushed "barrier-flushed" "a sync takes what barriers closed and the device has for durable"
    GroupConflict "group-conflict" "an operation that changes what another stream's open group changed is accepted"
    GroupPlace "group-place" "a group is not ordered after what its stream did before its commit"
    GroupSync "group-sync" "a sync of everything takes open groups along"
    GroupNames "group-names" "an abort leaves the names that the group gave"
    GroupTimes "group-times" "an abort leaves the times that the group gave to directories"
    GroupSpace "group-lower" "an abort takes the last change before the group back as well"
    AtomicTorn "atomic-torn" "syncv makes one O_ATOMIC file durable after the other"
    AtomicSync "atomic-sync" "a sync of everything takes unsynced content of O_ATOMIC files along"
    AtomicAttr "atomic-attr" "a change of mode or name takes the unsynced size of an O_ATOMIC file along"
    AtomicClose "atomic-close" "closing an O_ATOMIC file leaves its unsynced content"
    AtomicHoles "atomic-holes" "a sync of an O_ATOMIC file forgets what was cut or punched"
    DeviceSplit "device-split" "a device that commits gets a transaction's data after its structure, as two"
    DeviceLate "device-late" "a block of the image misses its transaction on a device that commits, and goes with the next"
    SharedEarly "shared-flush-early" "a sync call takes the end of a flush that had begun before it had written"
    SharedLate "shared-flush-late" "what was written while a flush was under way counts as covered by it"
    CommitUnawaited "commit-unawaited" "a sync does not wait for what the ordering thread, or another sync, is about to write"
    RoundEarly "round-early" "sync calls of a stream that go together return when all is written, before the flush"
    PieceUnawaited "piece-unawaited" "of a large write that goes by the piece only the last one is waited for before the flush"
    AtomicClaimed "atomic-unawaited" "syncv does not wait for what another call has begun to commit"
    GroupClaimed "group-unawaited" "a group's commit comes after nothing that another call has begun to commit"
    GroupWaited "group-waited" "an operation that waited for a group is not ordered after its commit"
    GrowthUnflushed "growth-unflushed" "a volume takes its new size before the structures of its new groups are flushed"
    GrowthMixed "growth-mixed" "the super block with a new size goes home in no order with what it refers to"
    EarlyBit "early-bit" "unmount clears the in-flight bit before the last checkpoint"
}

#[cfg(feature = "planted")]
mod chosen {
    use super::{BUGS, Bug};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static CHOSEN: AtomicUsize = AtomicUsize::new(usize::MAX);

    /// Bugs that show only where threads meet.
    pub const THREADED: &[&str] = &[
        "shared-flush-early",
        "shared-flush-late",
        "commit-unawaited",
        "round-early",
        "piece-unawaited",
    ];

    /// Those of them that show with atomic groups and failure-atomic files only.
    pub const GROUPED: &[&str] = &["atomic-unawaited", "group-unawaited", "group-waited"];

    /// Chooses the bug of that name for the whole process; `None` chooses none. False: there is no such bug.
    pub fn choose(name: Option<&str>) -> bool {
        let index = name.map(|n| BUGS.iter().position(|b| b.1 == n));
        CHOSEN.store(index.flatten().unwrap_or(usize::MAX), Ordering::Relaxed);
        index.is_none_or(|i| i.is_some())
    }

    pub(crate) fn is(bug: Bug) -> bool {
        CHOSEN.load(Ordering::Relaxed) == bug as usize
    }

    thread_local! {
        /// The inode number that was freed last, for `EarlyInode`.
        static FREED: Cell<u32> = const { Cell::new(0) };
        /// The operation under way has waited for a group, for `GroupWaited`.
        static WAITED: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn freed_inode(ino: u32) {
        FREED.set(ino);
    }

    pub(crate) fn note_wait(waited: bool) {
        WAITED.set(waited);
    }

    pub(crate) fn has_waited() -> bool {
        WAITED.get() && is(Bug::GroupWaited)
    }

    /// A number for a new inode that is not free yet.
    pub(crate) fn reused_inode() -> Option<u32> {
        Some(FREED.take()).filter(|ino| *ino != 0 && is(Bug::EarlyInode))
    }
}

#[cfg(feature = "planted")]
pub use chosen::{GROUPED, THREADED, choose};
#[cfg(feature = "planted")]
pub(crate) use chosen::{freed_inode, has_waited, is, note_wait, reused_inode};

/// Whether this bug is to be made: never.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Bug) -> bool {
    false
}

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn freed_inode(_: u32) {}

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn reused_inode() -> Option<u32> {
    None
}

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn note_wait(_: bool) {}

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn has_waited() -> bool {
    false
}

/// What a bug does besides what is right.
#[inline(always)]
pub(crate) fn also<T>(bug: Bug, wrong: impl FnOnce() -> T) -> Option<T> {
    is(bug).then(wrong)
}

/// What a bug takes in the place of what is right.
#[inline(always)]
pub(crate) fn instead<T>(bug: Bug, right: T, wrong: impl FnOnce() -> T) -> T {
    if is(bug) { wrong() } else { right }
}

/// What a bug loses: the last of more than so many.
#[inline(always)]
pub(crate) fn lost<T>(bug: Bug, list: &mut Vec<T>, more_than: usize) -> Option<T> {
    if is(bug) && list.len() > more_than {
        list.pop()
    } else {
        None
    }
}

/// `value`, unless a bug forgets it.
#[inline(always)]
pub(crate) fn unless_forgotten<T>(forgotten: bool, value: T) -> Option<T> {
    if forgotten {
        std::mem::forget(value);
        return None;
    }
    Some(value)
}
