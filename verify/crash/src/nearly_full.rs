//! Volumes that are full but for little: where space for an operation, or for what it needs later, is just there or just not (C9; 18
//! and 20 in `spots.rs`). Files of all kinds hold the space, so that what frees some, and what is written into their unwritten blocks,
//! has something to work on.
use crate::config::Config;
use crate::e2fsprogs::{debugfs, run};
use crate::generate::pattern;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Blocks that extent trees of the files take, and directories.
const TREES: u64 = 40;

/// Fills a fresh volume: in its root `w0`... with data, `u0`... whose blocks are unwritten, `p0`... with such blocks behind their end, and
/// deep below it `b0`..., which hold most of the space.
pub(crate) fn fill(image: &Path, config: &Config) -> Result<(), String> {
    const EACH: u64 = 8;
    const BIG: u64 = 5;
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let bs = u64::from(config.block_size);
    let free = free_blocks(image)?;
    let mut room = free
        .checked_sub(u64::from(config.left_kib) * 1024 / bs + TREES)
        .ok_or("the volume is too small to be filled")?;
    let mut script = String::from("mkdir d\nmkdir d/d\nmkdir d/d/d\n");
    let none = dir.path().join("none");
    std::fs::write(&none, b"").map_err(|e| e.to_string())?;
    for n in 0..EACH {
        // Of all sizes, the last block written in part.
        let len = 700 + n * n * 2100;
        let data = dir.path().join(format!("w{n}"));
        let bytes = pattern(1 << 30 | n, 0, len as usize);
        std::fs::write(&data, bytes).map_err(|e| e.to_string())?;
        let blocks = len.div_ceil(bs);
        room = room.saturating_sub(3 * blocks);
        let (data, none) = (data.display(), none.display());
        let _ = write!(
            script,
            "write {data} w{n}\n\
             write {none} u{n}\nfallocate u{n} 0 {}\nsif u{n} size {len}\n\
             write {none} p{n}\nfallocate p{n} 0 {}\n",
            blocks - 1,
            blocks - 1
        );
    }
    for n in 0..BIG {
        let (blocks, none) = (room / BIG, none.display());
        let size = blocks * bs * n / BIG;
        let _ = write!(
            script,
            "write {none} d/d/d/b{n}\nfallocate d/d/d/b{n} 0 {}\nsif d/d/d/b{n} size {size}\n",
            blocks - 1
        );
    }
    let file = dir.path().join("script");
    std::fs::write(&file, script).map_err(|e| e.to_string())?;
    debugfs(image, &file.display().to_string())?;
    run(Command::new("e2fsck").args(["-f", "-n"]).arg(image), 0)
}

fn free_blocks(image: &Path) -> Result<u64, String> {
    let out = Command::new("dumpe2fs").arg("-h").arg(image).output();
    let out = out.map_err(|e| format!("dumpe2fs: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find_map(|l| l.strip_prefix("Free blocks:"));
    let number = line.and_then(|n| n.trim().parse().ok());
    number.ok_or_else(|| format!("dumpe2fs names no free blocks: {text}"))
}

#[cfg(test)]
mod tests {
    use crate::config::NEARLY_FULL;
    use crate::image::{base, fsck};
    use crate::run::mount;
    use crate::setting::Setting;
    use ccfs_engine::ROOT_INO;
    use std::sync::Arc;

    #[test]
    fn the_volumes_are_nearly_full_and_the_same_each_time() {
        for config in NEARLY_FULL {
            let dev = base(config).unwrap();
            fsck(&dev).unwrap();
            let vol = mount(Arc::new(dev), Setting::new(config).options()).unwrap();
            let free = vol.statfs().unwrap().bavail * u64::from(config.block_size);
            assert!((20 << 10..400 << 10).contains(&free), "{free} bytes");
            let attr = |name: &[u8]| vol.lookup(ROOT_INO, name).unwrap();
            let (w, u, p) = (attr(b"w7"), attr(b"u7"), attr(b"p7"));
            assert_eq!((w.size, w.blocks512), (u.size, u.blocks512));
            assert_eq!((p.size, p.blocks512), (0, u.blocks512));
            vol.shutdown();
        }
    }
}
