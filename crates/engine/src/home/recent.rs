//! Blocks of files that were written lately. The last one, where the end of file lies within it: an append needs it, and so does a read up to
//! the end of file, even where the kernel has the page: it sends such a page by itself and does not count it as read. Once the block is home,
//! both would have to wait for the device. And all blocks of small files that somebody writes by direct calls: he has no other cache.
use crate::base::sync::Mutex;
use crate::base::types::Ino;
use ccfs_device::{SharedBuf, is_zero};
use ccfs_image::FastMap;
use smallvec::SmallVec;

const SHARDS: usize = 16;
/// What an entry takes beside its bytes, about.
const ENTRY: usize = 64;

/// What the image holds of a file's block.
struct Recent {
    lblk: u64,
    pblk: u64,
    content: Content,
}

/// Of a block.
pub(crate) enum Content {
    /// Without the zeros at its end.
    Cut(Box<[u8]>),
    Whole(SharedBuf),
}

impl Content {
    /// A copy without the zeros at its end.
    pub fn cut(content: &[u8]) -> Content {
        // Most of a block can be zeros: by the piece first.
        let zeros = content.rchunks(64).take_while(|piece| is_zero(piece));
        let head = &content[..content.len() - zeros.map(<[u8]>::len).sum::<usize>()];
        let len = head.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        Content::Cut(head[..len].into())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Content::Cut(bytes) => bytes,
            Content::Whole(page) => page,
        }
    }
}

/// Blocks of one file, in no order.
type Blocks = SmallVec<[Recent; 1]>;

fn memory(blocks: &Blocks) -> usize {
    let bytes = blocks.iter().map(|block| block.content.bytes().len());
    bytes.map(|bytes| bytes + ENTRY).sum()
}

/// Those that were kept since the halves changed places, and those from before.
#[derive(Default)]
struct Shard {
    young: FastMap<Ino, Blocks>,
    /// Memory of the young ones.
    bytes: usize,
    old: FastMap<Ino, Blocks>,
}

impl Shard {
    fn take(&mut self, ino: Ino) -> Blocks {
        let (young, old) = (self.young.remove(&ino), self.old.remove(&ino));
        self.bytes -= young.as_ref().map_or(0, memory);
        young.or(old).unwrap_or_default()
    }

    fn put(&mut self, ino: Ino, blocks: Blocks, half: usize) {
        let bytes = memory(&blocks);
        if bytes > half {
            return;
        }
        if self.bytes + bytes > half {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.young.insert(ino, blocks);
    }
}

/// Such blocks, by inode. What is kept of an inode changes under its lock, when its image does.
pub(crate) struct RecentBlocks {
    shards: [Mutex<Shard>; SHARDS],
    /// Memory for a shard's half, bytes.
    half: usize,
}

impl RecentBlocks {
    /// In at most so many bytes.
    pub fn new(bytes: usize) -> RecentBlocks {
        RecentBlocks {
            shards: std::array::from_fn(|_| Mutex::default()),
            half: bytes / 2 / SHARDS,
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// A file has changed: these blocks of it are to be kept, each with where it lies. What is kept of others stays, but for those that are `gone`: they
    /// hold something else by now, or nothing.
    pub fn keep(
        &self,
        ino: Ino,
        changed: impl Iterator<Item = (u64, u64, Content)>,
        gone: impl Fn(u64) -> bool,
    ) {
        let mut shard = self.shard(ino).lock();
        let mut blocks = shard.take(ino);
        blocks.retain(|block| !gone(block.lblk));
        for (lblk, pblk, content) in changed {
            let new = Recent {
                lblk,
                pblk,
                content,
            };
            match blocks.iter_mut().find(|block| block.lblk == lblk) {
                Some(block) => *block = new,
                None => blocks.push(new),
            }
        }
        if !blocks.is_empty() {
            shard.put(ino, blocks, self.half);
        }
    }

    /// Fills `out` with what block `lblk`, which lies at `pblk`, holds from `within` on. False: it is not here.
    pub fn read(&self, ino: Ino, lblk: u64, pblk: u64, within: usize, out: &mut [u8]) -> bool {
        let shard = self.shard(ino).lock();
        let blocks = shard.young.get(&ino).or_else(|| shard.old.get(&ino));
        let here = |block: &&Recent| (block.lblk, block.pblk) == (lblk, pblk);
        let Some(block) = blocks.and_then(|blocks| blocks.iter().find(here)) else {
            return false;
        };
        let part = block.content.bytes().get(within..).unwrap_or_default();
        let part = &part[..part.len().min(out.len())];
        out[..part.len()].copy_from_slice(part);
        out[part.len()..].fill(0);
        true
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Of a file's last block.
    fn keep(recent: &RecentBlocks, ino: Ino, lblk: u64, pblk: u64, content: &[u8]) {
        let blocks = [(lblk, pblk, Content::cut(content))];
        recent.keep(ino, blocks.into_iter(), |_| true);
    }

    #[test]
    fn blocks_of_a_file_stay_until_they_change() {
        let recent = RecentBlocks::new(1 << 20);
        let page = |byte| {
            Content::Whole(SharedBuf::from(ccfs_device::AlignedBuf::from_bytes(
                &[byte; 1024],
            )))
        };
        let blocks = (0..4).map(|lblk| (lblk, 100 + lblk, page(lblk as u8)));
        recent.keep(7, blocks, |_| false);
        let first = |lblk, pblk| {
            let mut out = [9];
            recent.read(7, lblk, pblk, 0, &mut out).then_some(out[0])
        };
        assert_eq!((0..4).filter_map(|n| first(n, 100 + n)).sum::<u8>(), 6);
        // One is written anew, one is cut off.
        recent.keep(7, [(1, 201, page(50))].into_iter(), |lblk| lblk == 3);
        let all = [(0, 100), (1, 101), (1, 201), (2, 102), (3, 103)];
        let found = all.map(|(lblk, pblk)| first(lblk, pblk));
        assert_eq!(found, [Some(0), None, Some(50), Some(2), None]);
    }

    #[test]
    fn a_kept_block_is_read_back_until_it_is_gone_or_lies_elsewhere() {
        let recent = RecentBlocks::new(1 << 20);
        let mut content = vec![0; 1024];
        content[..5].copy_from_slice(b"bytes");
        keep(&recent, 12, 3, 700, &content);
        let read = |lblk, pblk, within| {
            let mut out = vec![9; 1024 - within];
            let found = recent.read(12, lblk, pblk, within, &mut out);
            found.then_some(out)
        };
        assert_eq!(read(3, 700, 0).unwrap(), content);
        assert_eq!(read(3, 700, 2).unwrap(), content[2..]);
        assert_eq!(read(3, 700, 900).unwrap(), content[900..]);
        assert_eq!((read(4, 700, 0), read(3, 701, 0)), (None, None));
        content[1000] = 1;
        keep(&recent, 12, 3, 700, &content);
        assert_eq!(read(3, 700, 0).unwrap(), content);
        recent.keep(12, std::iter::empty(), |lblk| lblk == 3);
        assert_eq!(read(3, 700, 0), None);
        keep(&recent, 12, 3, 700, &[0; 1024]);
        assert_eq!(read(3, 700, 0).unwrap(), [0; 1024]);
    }

    #[test]
    fn the_oldest_go_first_and_memory_is_bounded() {
        const BYTES: usize = 4 << 20;
        for len in [1, 100, 4096] {
            let recent = RecentBlocks::new(BYTES);
            let count = (4 * BYTES / (len + ENTRY)) as Ino;
            for ino in 0..count {
                // Some more than once: what they took before counts no more.
                keep(&recent, ino, 1, 7, &vec![7; len / 2 + 1]);
                keep(&recent, ino, 1, u64::from(ino), &vec![7; len]);
            }
            let kept = |ino: Ino| recent.read(ino, 1, u64::from(ino), 0, &mut [0; 4096]);
            let all = (0..count).filter(|ino| kept(*ino)).count();
            let taken = all * (len + ENTRY);
            assert!((BYTES / 3..=BYTES).contains(&taken), "{len}: {taken}");
            assert!(kept(count - 1) && !kept(0));
        }
    }
}
