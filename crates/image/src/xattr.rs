//! Extended attributes of inodes: in the inode's own rest, and in one block that other inodes may share.

use crate::cache::{Checked, Kind};
use crate::{Image, Ino, Pblk};
use ccfs_device::SharedBuf;
use ccfs_ext4::features::compat;
use ccfs_ext4::inode::{CORE_SIZE, core_mut, extra_isize, extra_isize_ok};
use ccfs_ext4::xattr::{self, Attr, AttrRef, Plan};
use ccfs_ext4::{Error, Result};
use std::ops::Range;

/// Where an inode's rest lies. Empty for inodes of 128 bytes, and for larger ones that old tools wrote without extra fields.
fn body_range(inode: &[u8]) -> Result<Range<usize>> {
    if extra_isize(inode) == 0 {
        return Ok(inode.len()..inode.len());
    }
    if !extra_isize_ok(inode) {
        return Err(Error::corrupt("impossible i_extra_isize".into()));
    }
    Ok(CORE_SIZE + extra_isize(inode)..inode.len())
}

/// Rules that every list follows: a known kind of name, no name twice. EINVAL or ERANGE.
fn check(all: &[Attr]) -> Result<()> {
    for (i, (index, name, _)) in all.iter().enumerate() {
        if name.len() > xattr::NAME_MAX {
            return Err(Error::Errno(libc::ERANGE));
        }
        let nameless_ok = matches!(index, 2 | 3 | 8);
        let twice = all[..i]
            .iter()
            .any(|(other, n, _)| other == index && n == name);
        if *index == 0 || (name.is_empty() && !nameless_ok) || name.contains(&0) || twice {
            return Err(Error::Errno(libc::EINVAL));
        }
    }
    Ok(())
}

static BLOCK: Checked = Checked::new("attribute block", xattr::csum_ok, xattr::set_csum);

impl Image {
    pub(crate) fn xattr_kind(&self, pblk: Pblk) -> Kind {
        let seed = xattr::block_seed(self.core.layout.csum_seed, pblk);
        Kind::Checked { how: &BLOCK, seed }
    }

    fn xattr_block(&self, pblk: Pblk) -> Result<SharedBuf> {
        if !self.core.may_belong_to_file(pblk, 1)? {
            return Err(Error::corrupt(format!(
                "an inode names block {pblk} for its attributes"
            )));
        }
        self.core.read(pblk, self.xattr_kind(pblk))
    }

    /// Calls `f` with each attribute, the inode's own first, until it returns false.
    fn xattr_each(&self, ino: Ino, f: &mut dyn FnMut(&AttrRef) -> bool) -> Result<()> {
        let inode = self.core.inode(ino)?;
        let body = &inode.bytes()[body_range(inode.bytes())?];
        let more = xattr::body_attrs(body)?.iter().all(&mut *f);
        let block = inode.core().file_acl();
        if more && block != 0 {
            let bytes = self.xattr_block(block)?;
            let attrs = xattr::block_attrs(&bytes).map_err(|e| e.in_block(block))?;
            attrs.iter().all(f);
        }
        Ok(())
    }

    /// An attribute's value. `index` is ext4's number of the name's prefix, `name` what follows it.
    pub fn xattr_get(&self, ino: Ino, index: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.xattr_each(ino, &mut |attr| {
            if attr.index == index && attr.name == name {
                found = Some(attr.value.to_vec());
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Index, name and length of the value (bytes) of every attribute.
    pub fn xattr_list(&self, ino: Ino) -> Result<Vec<(u8, Vec<u8>, usize)>> {
        let mut out = Vec::new();
        self.xattr_each(ino, &mut |attr| {
            out.push((attr.index, attr.name.to_vec(), attr.value.len()));
            true
        })?;
        Ok(out)
    }

    /// Every attribute: index, name, value.
    pub fn xattr_all(&self, ino: Ino) -> Result<Vec<Attr>> {
        let mut out = Vec::new();
        self.xattr_each(ino, &mut |attr| {
            out.push((attr.index, attr.name.to_vec(), attr.value.to_vec()));
            true
        })?;
        Ok(out)
    }

    fn xattr_plan(&self, ino: Ino, all: &[Attr]) -> Result<Option<Plan>> {
        check(all)?;
        let body = body_range(self.core.inode(ino)?.bytes())?.len();
        Ok(xattr::plan(all, body, self.core.layout.block_size as usize))
    }

    fn xattr_plan_new(&self, all: &[Attr]) -> Result<Option<Plan>> {
        check(all)?;
        let l = &self.core.layout;
        let body = match usize::from(self.core.fresh_extra_isize()) {
            0 => 0,
            extra => l.inode_size as usize - CORE_SIZE - extra,
        };
        Ok(xattr::plan(all, body, l.block_size as usize))
    }

    /// Would `xattr_replace_all` find room in the inode and one block? (A free block is assumed.)
    pub fn xattr_fits(&self, ino: Ino, all: &[Attr]) -> Result<bool> {
        Ok(self.xattr_plan(ino, all)?.is_some())
    }

    /// As `xattr_fits`, for an inode that `create_inode` will make.
    pub fn xattr_fits_new(&self, all: &[Attr]) -> Result<bool> {
        Ok(self.xattr_plan_new(all)?.is_some())
    }

    /// Blocks that `xattr_replace_all` takes for a set that fits, as the inode is now: 0 or 1. `changed`: before that others replace the set.
    pub fn xattr_blocks_taken(&self, ino: Ino, all: &[Attr], changed: bool) -> Result<u64> {
        if self
            .xattr_plan(ino, all)?
            .is_none_or(|p| p.block.is_empty())
        {
            return Ok(0);
        }
        let old = self.core.inode(ino)?.core().file_acl();
        let own = old != 0 && !changed && xattr::refcount(&self.xattr_block(old)?)? == 1;
        Ok(u64::from(!own))
    }

    /// As `xattr_blocks_taken`, for an inode that `create_inode` will make.
    pub fn xattr_blocks_of_new(&self, all: &[Attr]) -> Result<u64> {
        let plan = self.xattr_plan_new(all)?;
        Ok(u64::from(plan.is_some_and(|p| !p.block.is_empty())))
    }

    /// Replaces the whole set. ENOSPC when it does not fit into the inode and one block, or no block is free; EINVAL and
    /// ERANGE for impossible names. A block that other inodes use too is left to them.
    pub fn xattr_replace_all(&self, ino: Ino, all: &[Attr]) -> Result<()> {
        let plan = self
            .xattr_plan(ino, all)?
            .ok_or(Error::Errno(libc::ENOSPC))?;
        let body: Vec<&Attr> = plan.body.iter().map(|&i| &all[i]).collect();
        let block: Vec<&Attr> = plan.block.iter().map(|&i| &all[i]).collect();
        let old = self.core.inode(ino)?.core().file_acl();
        let users = if old == 0 {
            0
        } else {
            xattr::refcount(&self.xattr_block(old)?).map_err(|e| e.in_block(old))?
        };
        let new = match (block.is_empty(), users) {
            (true, _) => 0,
            (false, 1) => old,
            (false, _) => self
                .alloc()
                .take_metadata_block(self.alloc().goal_for(ino))?,
        };
        if new != 0 {
            self.core.create(new, self.xattr_kind(new), |bytes| {
                xattr::write_block(bytes, &block)
            });
        }
        if new != 0 && new != old {
            self.core.add_blocks(ino, 1)?;
        }
        if !all.is_empty() {
            self.announce_xattrs();
        }
        self.core.modify_inode(ino, |inode| {
            let range = body_range(inode)?;
            xattr::write_body(&mut inode[range], &body);
            core_mut(inode).set_file_acl(new);
            Ok::<(), Error>(())
        })??;
        if old != 0 && old != new {
            self.drop_xattr_block(ino, old)
        } else {
            Ok(())
        }
    }

    /// Gives an inode's attribute block up: the last user frees it. The inode itself still names it afterwards.
    pub(crate) fn drop_xattr_block(&self, ino: Ino, pblk: Pblk) -> Result<()> {
        let users = xattr::refcount(&self.xattr_block(pblk)?).map_err(|e| e.in_block(pblk))?;
        if users <= 1 {
            self.free_metadata_block(pblk)?;
        } else {
            self.core.modify(pblk, self.xattr_kind(pblk), |bytes| {
                xattr::set_refcount(bytes, users - 1)
            })?;
        }
        self.core.add_blocks(ino, -1)
    }

    /// e2fsck wants the feature on volumes with attributes; the kernel sets it at the first one, too.
    fn announce_xattrs(&self) {
        if !self.core.sup.lock().raw.has_compat(compat::EXT_ATTR) {
            self.core.sup.lock().change(|raw| {
                raw.feature_compat = (raw.feature_compat.get() | compat::EXT_ATTR).into();
            });
        }
    }
}
