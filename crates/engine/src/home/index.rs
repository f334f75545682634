//! Directories that were linear at mount, or grew before the volume had the feature, get a hash tree when they are changed first
//! (`ccfs_image`, dirtree). That is structure: it happens between two records, and recovery may do it elsewhere.
use crate::base::types::*;
use crate::home::Home;
use crate::home::apply::Applier;

/// Pieces of a directory that are put together in one step.
const GATHERED_PIECES: usize = 8;

impl Home {
    /// Before a name in the directory changes.
    pub(crate) fn index_directory(&self, a: &mut Applier, ino: Ino) -> Result<()> {
        if a.linear.contains(&ino) || !self.image.dir_wants_tree(ino)? {
            return Ok(());
        }
        if !self.try_index(a, ino, true)? {
            a.linear.insert(ino);
        }
        Ok(())
    }

    /// At unmount: what there was no room for before, or could not be read. Errors: something is changed in part.
    pub(crate) fn arrange_the_rest(&self) -> Result<()> {
        let mut applier = self.applier.lock();
        let _guard = self.stop_on_panic("indexing directories");
        for ino in std::mem::take(&mut applier.linear) {
            if matches!(self.image.dir_wants_tree(ino), Ok(true)) {
                self.try_index(&mut applier, ino, false)?;
            }
        }
        self.settle_extents(&mut applier)
    }

    /// False: there is no room, or the directory is damaged or cannot be read: no change of a name has asked for all of it. Errors:
    /// a write or a flush failed, or the directory is changed in part.
    fn try_index(&self, a: &mut Applier, ino: Ino, spare: bool) -> Result<bool> {
        // What the step that adopts the tree changes: bitmap and descriptor of each piece, old and new.
        let pieces_max = self.limits().checkpoint_bytes / (self.block_size() as usize + 8) / 6;
        if !self.gather(a, ino, pieces_max)? {
            return Ok(false);
        }
        let flush = || self.flush_device();
        // Nobody but the applier changes the image, so no lock is needed to read it.
        let tree = self.image.dir_build_tree(ino, pieces_max, spare, &flush)?;
        let Some(tree) = tree else {
            return Ok(false);
        };
        let done = {
            let inode = self.inodes.peek(ino);
            let _locked = inode.as_ref().map(|i| i.state.write());
            self.image.dir_adopt_tree(tree)?
        };
        self.structure_changed(a)?;
        Ok(done)
    }

    /// Puts the directory's pieces together until there are at most `pieces_max`.
    fn gather(&self, a: &mut Applier, ino: Ino, pieces_max: usize) -> Result<bool> {
        let mut before = usize::MAX;
        loop {
            let Ok(pieces) = self.image.dir_pieces(ino, usize::MAX) else {
                return Ok(false);
            };
            if pieces <= pieces_max || pieces >= before {
                return Ok(pieces <= pieces_max);
            }
            before = pieces;
            let mut at = 0;
            let flush = || self.flush_device();
            while let Some(copies) = self.image.dir_gather(ino, at, GATHERED_PIECES, &flush)? {
                let next = {
                    let inode = self.inodes.peek(ino);
                    let _locked = inode.as_ref().map(|i| i.state.write());
                    self.image.dir_adopt_gathered(copies)?
                };
                self.structure_changed(a)?;
                match next {
                    Some(next) => at = next,
                    None => return Ok(false),
                }
            }
        }
    }

    fn structure_changed(&self, a: &mut Applier) -> Result<()> {
        self.take_freed(a.applied_id + 1, None);
        self.room_for_record(a)
    }
}
