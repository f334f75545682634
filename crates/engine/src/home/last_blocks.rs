//! The last block of files that were written lately, where the end of file lies within it. An append needs it, and so does a read up to the
//! end of file, even where the kernel has the page: it sends such a page by itself and does not count it as read. Once the block is home,
//! both would have to wait for the device.
use crate::base::sync::Mutex;
use crate::base::types::Ino;
use ccfs_device::is_zero;
use ccfs_image::FastMap;

const SHARDS: usize = 16;
/// What an entry takes beside its bytes, about.
const ENTRY: usize = 64;

/// What the image holds of a file's last block.
struct LastBlock {
    lblk: u64,
    pblk: u64,
    /// Without the zeros at its end.
    bytes: Box<[u8]>,
}

impl LastBlock {
    fn memory(&self) -> usize {
        self.bytes.len() + ENTRY
    }
}

/// Those that were kept since the halves changed places, and those from before.
#[derive(Default)]
struct Shard {
    young: FastMap<Ino, LastBlock>,
    /// Memory of the young ones.
    bytes: usize,
    old: FastMap<Ino, LastBlock>,
}

impl Shard {
    fn forget(&mut self, ino: Ino) {
        self.old.remove(&ino);
        if let Some(tail) = self.young.remove(&ino) {
            self.bytes -= tail.memory();
        }
    }
}

/// Such blocks, by inode. What is kept of an inode changes under its lock, when its image does.
pub(crate) struct LastBlocks {
    shards: [Mutex<Shard>; SHARDS],
    /// Memory for a shard's half, bytes.
    half: usize,
}

impl LastBlocks {
    /// In at most so many bytes.
    pub fn new(bytes: usize) -> LastBlocks {
        LastBlocks {
            shards: std::array::from_fn(|_| Mutex::default()),
            half: bytes / 2 / SHARDS,
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Block `lblk` of the file lies at `pblk` and has this content.
    pub fn keep(&self, ino: Ino, lblk: u64, pblk: u64, content: &[u8]) {
        // Most of a block can be zeros: by the piece first.
        let zeros = content.rchunks(64).take_while(|piece| is_zero(piece));
        let head = &content[..content.len() - zeros.map(<[u8]>::len).sum::<usize>()];
        let len = head.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        let bytes = head[..len].into();
        let tail = LastBlock { lblk, pblk, bytes };
        let mut shard = self.shard(ino).lock();
        shard.forget(ino);
        if shard.bytes + tail.memory() > self.half {
            shard.old = std::mem::take(&mut shard.young);
            shard.bytes = 0;
        }
        shard.bytes += tail.memory();
        shard.young.insert(ino, tail);
    }

    /// The file's last block is another one, or will be.
    pub fn forget(&self, ino: Ino) {
        self.shard(ino).lock().forget(ino);
    }

    /// Fills `out` with what block `lblk`, which lies at `pblk`, holds from `within` on. False: it is not here.
    pub fn read(&self, ino: Ino, lblk: u64, pblk: u64, within: usize, out: &mut [u8]) -> bool {
        let shard = self.shard(ino).lock();
        let Some(tail) = shard.young.get(&ino).or_else(|| shard.old.get(&ino)) else {
            return false;
        };
        if (tail.lblk, tail.pblk) != (lblk, pblk) {
            return false;
        }
        let part = tail.bytes.get(within..).unwrap_or_default();
        let part = &part[..part.len().min(out.len())];
        out[..part.len()].copy_from_slice(part);
        out[part.len()..].fill(0);
        true
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_kept_block_is_read_back_until_it_is_forgotten_or_lies_elsewhere() {
        let last_blocks = LastBlocks::new(1 << 20);
        let mut content = vec![0; 1024];
        content[..5].copy_from_slice(b"bytes");
        last_blocks.keep(12, 3, 700, &content);
        let read = |lblk, pblk, within| {
            let mut out = vec![9; 1024 - within];
            let found = last_blocks.read(12, lblk, pblk, within, &mut out);
            found.then_some(out)
        };
        assert_eq!(read(3, 700, 0).unwrap(), content);
        assert_eq!(read(3, 700, 2).unwrap(), content[2..]);
        assert_eq!(read(3, 700, 900).unwrap(), content[900..]);
        assert_eq!((read(4, 700, 0), read(3, 701, 0)), (None, None));
        content[1000] = 1;
        last_blocks.keep(12, 3, 700, &content);
        assert_eq!(read(3, 700, 0).unwrap(), content);
        last_blocks.forget(12);
        assert_eq!(read(3, 700, 0), None);
        last_blocks.keep(12, 3, 700, &[0; 1024]);
        assert_eq!(read(3, 700, 0).unwrap(), [0; 1024]);
    }

    #[test]
    fn the_oldest_go_first_and_memory_is_bounded() {
        const BYTES: usize = 4 << 20;
        for len in [1, 100, 4096] {
            let last_blocks = LastBlocks::new(BYTES);
            let count = (4 * BYTES / (len + ENTRY)) as Ino;
            for ino in 0..count {
                // Some more than once: what they took before counts no more.
                last_blocks.keep(ino, 1, 7, &vec![7; len / 2 + 1]);
                last_blocks.keep(ino, 1, u64::from(ino), &vec![7; len]);
            }
            let kept = |ino: Ino| last_blocks.read(ino, 1, u64::from(ino), 0, &mut [0; 4096]);
            let all = (0..count).filter(|ino| kept(*ino)).count();
            let taken = all * (len + ENTRY);
            assert!((BYTES / 3..=BYTES).contains(&taken), "{len}: {taken}");
            assert!(kept(count - 1) && !kept(0));
        }
    }
}
