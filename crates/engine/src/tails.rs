//! The last block of files that were written lately, where the end of file lies within it. An append needs it, and so does a read up to the
//! end of file; once it is home, both would have to wait for the device.
use crate::file::is_zero;
use crate::sync::Mutex;
use crate::types::Ino;
use ccfs_image::FastMap;

/// Memory for them, bytes: a half for those that were kept since the halves changed places, a half for those from before.
const BYTES: usize = 8 << 20;
const SHARDS: usize = 16;

/// What the image holds of a file's last block.
struct Tail {
    lblk: u64,
    pblk: u64,
    /// Without the zeros at its end.
    bytes: Box<[u8]>,
}

#[derive(Default)]
struct Shard {
    young: FastMap<Ino, Tail>,
    old: FastMap<Ino, Tail>,
}

/// Such blocks, by inode. What is kept of an inode changes under its lock, when its image does.
pub(crate) struct Tails {
    shards: [Mutex<Shard>; SHARDS],
    /// Entries of a shard's half.
    half: usize,
}

impl Tails {
    pub fn new(block_size: u32) -> Tails {
        Tails {
            shards: std::array::from_fn(|_| Mutex::default()),
            half: BYTES / 2 / SHARDS / block_size as usize,
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
        let mut shard = self.shard(ino).lock();
        shard.old.remove(&ino);
        if shard.young.len() >= self.half {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert(ino, Tail { lblk, pblk, bytes });
    }

    /// The file's last block is another one, or will be.
    pub fn forget(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        shard.young.remove(&ino);
        shard.old.remove(&ino);
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
        let tails = Tails::new(1024);
        let mut content = vec![0; 1024];
        content[..5].copy_from_slice(b"bytes");
        tails.keep(12, 3, 700, &content);
        let read = |lblk, pblk, within| {
            let mut out = vec![9; 1024 - within];
            let found = tails.read(12, lblk, pblk, within, &mut out);
            found.then_some(out)
        };
        assert_eq!(read(3, 700, 0).unwrap(), content);
        assert_eq!(read(3, 700, 2).unwrap(), content[2..]);
        assert_eq!(read(3, 700, 900).unwrap(), content[900..]);
        assert_eq!((read(4, 700, 0), read(3, 701, 0)), (None, None));
        content[1000] = 1;
        tails.keep(12, 3, 700, &content);
        assert_eq!(read(3, 700, 0).unwrap(), content);
        tails.forget(12);
        assert_eq!(read(3, 700, 0), None);
        tails.keep(12, 3, 700, &[0; 1024]);
        assert_eq!(read(3, 700, 0).unwrap(), [0; 1024]);
    }

    #[test]
    fn the_oldest_go_first_and_memory_is_bounded() {
        let tails = Tails::new(4096);
        let count = 40 * tails.half as Ino * SHARDS as Ino;
        for ino in 0..count {
            tails.keep(ino, 1, u64::from(ino), &[7; 4096]);
        }
        let kept = |ino: Ino| tails.read(ino, 1, u64::from(ino), 0, &mut [0; 4096]);
        let all = (0..count).filter(|ino| kept(*ino)).count();
        assert!(all * 4096 <= BYTES && all * 4096 >= BYTES / 2, "{all}");
        assert!(kept(count - 1) && !kept(0));
    }
}
