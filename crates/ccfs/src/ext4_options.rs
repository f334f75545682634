//! Options that lines of /etc/fstab have for ext4, and mount(8) for every file system, and that are none of ccfs' own. Each is
//! decided by name: what holds anyway, what means nothing here, what would be a lie, what mount(8) does by itself.
//!
//! docs/using/options.md has the same table; a test compares both.

/// What becomes of such an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It asks for what always holds.
    Holds,
    /// It is taken and changes nothing. Why is told.
    Idle(&'static str),
    /// It asks for what ccfs cannot do: what to do instead.
    Declined(&'static str),
    /// mount(8) does it, and does not hand it on: how to have it done.
    OfMount(&'static str),
}
use Verdict::{Declined, Holds, Idle, OfMount};

/// Options, separated by spaces, and their verdict. `*` stands for any text. The first that fits counts.
const TABLE: &[(&str, Verdict)] = &[
    // For mount(8), systemd and the kernel's generic layer.
    (
        "defaults auto noauto nouser user=* nofail _netdev loop loop=* comment comment=* uhelper=* helper=* nomand noiversion \
         nolazytime nostrictatime norelatime default_permissions",
        Holds,
    ),
    // What the mount table shows of a FUSE mount, and mount(8) repeats when it remounts.
    (
        "user_id=* group_id=* blksize=* max_read=* rootmode=* seclabel",
        Holds,
    ),
    (
        "acl user_xattr barrier barrier=1 auto_da_alloc auto_da_alloc=1 block_validity nodiscard noquota usrjquota usrjquota= \
         grpjquota grpjquota= dax=never dax=inode check=none nocheck resuid=0 resgid=0 data_err=abort errors=remount-ro",
        Holds,
    ),
    (
        "data=ordered data=journal data=writeback",
        Idle("all updates keep their order, which is more than any data= gives"),
    ),
    (
        "data_err=ignore",
        Idle("after a write error the volume stops"),
    ),
    (
        "nobarrier barrier=0",
        Idle("the device is always told to flush"),
    ),
    (
        "journal_checksum nojournal_checksum journal_async_commit journal_ioprio=* journal=*",
        Idle("ccfs writes a log of its own, with checksums"),
    ),
    (
        "lazytime",
        Idle("times are written with the changes that set them"),
    ),
    (
        "iversion i_version",
        Idle("FUSE has no change counter; ctime, in nanoseconds, tells of changes"),
    ),
    (
        "discard",
        Idle("freed blocks are not discarded by themselves; run fstrim(8)"),
    ),
    ("debug", Idle("CCFS_LOG=debug makes the daemon say more")),
    (
        "delalloc nodelalloc noauto_da_alloc auto_da_alloc=0 stripe=* inode_readahead_blks=* max_batch_time=* min_batch_time=* \
         dioread_lock dioread_nolock nodioread_nolock init_itable init_itable=* noinit_itable mb_optimize_scan=* \
         prefetch_block_bitmaps no_prefetch_block_bitmaps nombcache no_mbcache mblk_io_submit nomblk_io_submit orlov oldalloc bh \
         nobh reservation noreservation noblock_validity warn_on_error nowarn_on_error inlinecrypt",
        Idle("it is about how ext4 works inside"),
    ),
    (
        "strictatime",
        Declined(
            "what the kernel's cache answers does not come to the daemon; leave it out (relatime is the default)",
        ),
    ),
    (
        "mand",
        Declined("there are no mandatory locks any more; leave it out"),
    ),
    (
        "noacl",
        Declined("ACLs always count; leave it out, or remove them (setfacl -b)"),
    ),
    (
        "nouser_xattr",
        Declined("user attributes can always be set; leave it out"),
    ),
    (
        "resuid=* resgid=*",
        Declined(
            "the reserve is root's; leave it out, or `tune2fs -m 0` at rest takes the reserve away",
        ),
    ),
    ("nouid32", Declined("owners have 32 bits; leave it out")),
    (
        "sb=*",
        Declined("e2fsck -b N, at rest, uses another super block"),
    ),
    (
        "check=*",
        Declined("ccfs fsck checks a volume at rest; leave it out"),
    ),
    (
        "errors=*",
        Declined("after a write error the volume always stops (errors=remount-ro)"),
    ),
    (
        "journal_dev=* journal_path=*",
        Declined("the log lies in the volume's own journal; `tune2fs -j` at rest makes one"),
    ),
    (
        "quota usrquota grpquota prjquota usrjquota=* grpjquota=* jqfmt=*",
        Declined("there are no quotas; leave it out"),
    ),
    (
        "dax dax=*",
        Declined("FUSE maps no memory of the device; leave it out"),
    ),
    (
        "max_dir_size_kb=*",
        Declined("nothing limits the size of a directory; leave it out"),
    ),
    (
        "abort debug_want_extra_isize=* fc_debug_force fc_debug_max_replay=* test_dummy_encryption test_dummy_encryption=*",
        Declined("it is for tests of ext4; leave it out"),
    ),
    (
        "context=* fscontext=* defcontext=* rootcontext=*",
        OfMount("where there is SELinux ccfs hands no contexts to the kernel; leave it out"),
    ),
    (
        "offset=* sizelimit=*",
        OfMount("attach that part first: losetup --find --show -o OFFSET --sizelimit SIZE FILE"),
    ),
    (
        "bind rbind move shared rshared private rprivate slave rslave unbindable runbindable",
        OfMount("use mount --bind, --move, --make-private and so on"),
    ),
    ("X-mount.* x-mount.* verity.*", OfMount("use mount -t ccfs")),
    ("x-* X-*", Holds),
];

/// Whether a pattern with at most one `*`, at its end, fits.
fn fits(pattern: &str, option: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => option.starts_with(start),
        None => option == pattern,
    }
}

/// All patterns.
pub fn patterns() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(patterns, _)| patterns.split(' '))
}

/// `None`: nobody knows it.
pub fn verdict(option: &str) -> Option<Verdict> {
    let fit = |(patterns, _): &&(&str, Verdict)| patterns.split(' ').any(|p| fits(p, option));
    TABLE.iter().find(fit).map(|(_, verdict)| *verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Pairs of a pattern and what becomes of it.
    fn documented() -> BTreeSet<(String, String)> {
        let chapter = ccfs_testkit::user_manual::chapter("Options of ext4");
        let rows = chapter.lines().skip_while(|l| !l.starts_with("|---"));
        let rows = rows.skip(1).take_while(|l| l.starts_with('|'));
        let mut found = BTreeSet::new();
        for row in rows {
            let cells: Vec<&str> = row.split(" | ").collect();
            for option in cells[0].split('`').skip(1).step_by(2) {
                let pattern = match option.strip_suffix("...") {
                    Some(start) => format!("{start}*"),
                    None => option.to_string(),
                };
                assert!(
                    found.insert((pattern, cells[1].to_string())),
                    "{option} twice"
                );
            }
        }
        found
    }

    #[test]
    fn the_table_is_that_of_the_manual() {
        let mut table = BTreeSet::new();
        for (patterns, verdict) in TABLE {
            let word = match verdict {
                Holds => "always so",
                Idle(_) => "taken, changes nothing",
                Declined(_) => "refused",
                OfMount(_) => "mount(8)'s own",
            };
            table.extend(
                patterns
                    .split(' ')
                    .map(|p| (p.to_string(), word.to_string())),
            );
        }
        let (done, others): (BTreeSet<_>, BTreeSet<_>) = documented()
            .into_iter()
            .partition(|(_, word)| word == "done");
        assert_eq!(others, table);
        for (option, _) in done {
            assert_eq!(verdict(&option), None, "{option} is ccfs' own");
        }
    }

    #[test]
    fn the_first_row_that_fits_counts() {
        assert_eq!(verdict("resuid=0"), Some(Holds));
        assert!(matches!(verdict("resuid=7"), Some(Declined(_))));
        assert!(matches!(verdict("dax=always"), Some(Declined(_))));
        assert!(matches!(verdict("X-mount.mkdir=0700"), Some(OfMount(_))));
        assert_eq!(verdict("x-gvfs-show"), Some(Holds));
        assert_eq!(verdict("acl=1"), None);
        assert_eq!(verdict("stripe"), None);
    }
}
