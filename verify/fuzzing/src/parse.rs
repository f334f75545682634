//! The parsers of ext4's structures, on bytes.
use crate::bytes::Input;
use ccfs_device::AlignedBuf;
use ccfs_ext4::acl::Acl;
use ccfs_ext4::dirent::DirFormat;
use ccfs_ext4::extent::Node;
use ccfs_ext4::superblock::{Layout, RawSuper, SUPER_SIZE};
use ccfs_ext4::{htree, inode, xattr};
use zerocopy::FromBytes;

/// Kind of structure (1 byte), a size (1), then the structure's bytes; they are repeated with zeros to a block.
pub fn structures(data: &[u8]) {
    let mut input = Input(data);
    let (kind, size) = (input.u8(), input.u8());
    let block_size = 1024usize << (size % 3);
    let mut block = AlignedBuf::zeroed(block_size);
    let len = input.0.len().min(block_size);
    block[..len].copy_from_slice(&input.0[..len]);
    let format = DirFormat {
        block_size,
        filetype: size & 8 == 0,
        csum: size & 16 == 0,
        inodes_count: 1024,
    };
    match kind % 6 {
        0 => leaf(&format, &mut block, size),
        1 => index(&format, &mut block),
        2 => extents(&block, size),
        3 => attributes(&block, input.0),
        4 => super_block(&block, size),
        _ => inodes(&block),
    }
}

fn leaf(format: &DirFormat, block: &mut [u8], size: u8) {
    let whole = format.entries(block).all(|e| e.is_ok());
    let names: Vec<Vec<u8>> = format
        .entries(block)
        .map_while(Result::ok)
        .map(|e| e.name.to_vec())
        .collect();
    let _ = format.entries_of_index(block).count();
    let _ = format.max_free(block);
    let _ = format.csum_ok(block, 5);
    let new = vec![b'n'; usize::from(size).max(1)];
    let inserted = format.insert(block, &new, 12, 1);
    if let Some(name) = names.first() {
        let _ = format.find(block, name);
        let _ = format.remove(block, name);
    }
    if whole && inserted.is_ok() {
        let sound = format.entries(block).all(|e| e.is_ok());
        assert!(sound, "a sound block was made unsound");
    }
    format.set_csum(block, 5);
}

fn index(format: &DirFormat, block: &mut [u8]) {
    let _ = htree::root_info(format, block);
    for kind in [htree::Kind::Root, htree::Kind::Node] {
        let Ok(pairs) = htree::pairs(format, kind, block) else {
            continue;
        };
        let _ = pairs.search(u32::MAX / 2);
        let (len, limit) = (pairs.to_vec().len(), pairs.limit);
        let pair = htree::Pair { hash: 77, block: 1 };
        let done = htree::insert_pair(format, kind, block, len, pair);
        assert_eq!(done.is_ok(), len < limit);
        htree::set_csum(format, kind, block, 5);
        assert!(htree::csum_ok(format, kind, block, 5));
    }
}

fn extents(block: &[u8], size: u8) {
    for bytes in [&block[..60], block] {
        let node = Node(bytes);
        let depth = (size & 1 == 0).then_some(u16::from(size >> 5));
        if node
            .check(depth, 0..1 << 32, &mut |p, n| {
                p.checked_add(n).is_some_and(|e| e < 1 << 24)
            })
            .is_ok()
        {
            for i in 0..node.count() {
                let _ = match node.depth() {
                    0 => node.extent(i).end(),
                    _ => node.index(i).pblk,
                };
            }
            for lblk in [0, 1, 1 << 20, u64::from(u32::MAX), u64::MAX] {
                assert!(node.upper_bound(lblk) <= node.count());
            }
        }
        let _ = ccfs_ext4::extent::checksum_ok(bytes, 5);
    }
}

fn attributes(block: &[u8], raw: &[u8]) {
    let all = |attrs: ccfs_ext4::Result<Vec<xattr::AttrRef>>| {
        let bytes: usize = attrs
            .iter()
            .flatten()
            .map(|a| a.name.len() + a.value.len())
            .sum();
        assert!(bytes <= 64 * block.len());
    };
    all(xattr::block_attrs(block));
    all(xattr::body_attrs(raw));
    let _ = (xattr::refcount(block), xattr::csum_ok(block, 1));
    for acl in [
        Acl::from_disk(raw).ok(),
        Acl::from_syscall(raw).ok().flatten(),
    ]
    .into_iter()
    .flatten()
    {
        assert_eq!(Acl::from_disk(&acl.to_disk()).ok().as_ref(), Some(&acl));
        let _ = (
            acl.equiv_mode(0o644),
            acl.create_masq(0o644),
            acl.chmod_masq(0o644),
        );
    }
}

fn super_block(block: &[u8], size: u8) {
    let Ok(raw) = RawSuper::read_from_bytes(&block[..SUPER_SIZE]) else {
        return;
    };
    for bytes in [1 << 24, 1 << 40, u64::MAX / 2] {
        if let Ok(layout) = Layout::check(&raw, bytes, size & 32 == 0) {
            let last = layout.groups - 1;
            assert!(
                layout.group_first_block(last) + u64::from(layout.group_len(last))
                    <= layout.blocks_count
            );
            let _ = (
                layout.backup_groups().len(),
                layout.group_head(last),
                layout.itable_blocks(),
            );
        }
    }
}

fn inodes(block: &[u8]) {
    for size in [128, 256, 512, 1024] {
        let bytes = &block[..size];
        if inode::extra_isize_ok(bytes) {
            let _ = inode::extra_isize(bytes);
        }
        let core = inode::core(bytes);
        let _ = (
            core.size(),
            core.file_acl(),
            inode::decode_rdev(&core.block),
        );
    }
}
