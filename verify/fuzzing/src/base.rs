//! Volumes that inputs change: made once per process, with every kind of structure in them.
use ccfs_crash::config::{self, Config};
use ccfs_crash::image;
use ccfs_crash::run::root_context;
use ccfs_device::Device;
use ccfs_disks::MemoryDevice;
use ccfs_engine::{Error, ROOT_INO, Volume, WriteFlags};
use ccfs_image::{Image, OpenOptions, ScrubAt};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// A volume at rest.
pub struct Base {
    pub dev: MemoryDevice,
    pub block_size: u64,
    /// Blocks of structure, and the first ones of the journal.
    pub blocks: Vec<u64>,
}

/// Without checksums damage gets past the front door, so they come first.
pub static BASES: LazyLock<Vec<Base>> =
    LazyLock::new(|| ["nocsum", "ext3", "1k", "4k"].map(make).into());

/// A volume with inode numbers for sessions of direct calls, which are promised some in advance.
pub static ROOMY: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let config = Config {
        name: "roomy",
        inodes: 8192,
        ..*config::config("1k").expect("a known configuration")
    };
    image::base(&config).expect("mke2fs makes a volume")
});

fn fill(vol: &Volume) -> Result<(), Error> {
    let cx = root_context(vol);
    let dir = vol.mkdir(&cx, ROOT_INO, b"large", 0o755)?.ino;
    for n in 0..120 {
        let name = format!("a rather long name, so that the directory soon has many blocks, {n}");
        let file = vol.mknod(&cx, dir, name.as_bytes(), 0o100_644, 0)?.ino;
        if n < 6 {
            vol.setxattr(
                &cx,
                file,
                b"user.long",
                &[n as u8; 300],
                false,
                false,
                false,
            )?;
        }
    }
    let sub = vol.mkdir(&cx, ROOT_INO, b"dir", 0o755)?.ino;
    let file = vol.mknod(&cx, sub, b"file", 0o100_644, 0)?.ino;
    vol.write(&cx, file, 0, b"content", WriteFlags::default())?;
    vol.link(&cx, file, ROOT_INO, b"second name")?;
    let file = vol.mknod(&cx, ROOT_INO, b"pieces", 0o100_644, 0)?.ino;
    for n in 0..200u64 {
        vol.write(
            &cx,
            file,
            n * 8192,
            &[n as u8 | 1; 1024],
            WriteFlags::default(),
        )?;
    }
    vol.symlink(&cx, ROOT_INO, b"link", &[b'x'; 300])?;
    vol.symlink(&cx, ROOT_INO, b"short", b"dir/file")?;
    vol.mknod(&cx, ROOT_INO, b"pipe", 0o010_644, 0)?;
    vol.unmount()
}

/// Fails where mke2fs is missing: then no target can work.
fn make(name: &str) -> Base {
    let config = config::config(name).expect("a known configuration");
    let dev = Arc::new(image::base(config).expect("mke2fs makes a volume"));
    let vol = Volume::mount(dev.clone(), options()).expect("a sound volume");
    fill(&vol).expect("a volume with room");
    let dev = dev.snapshot();
    let image = Image::open(Arc::new(dev.snapshot()), OpenOptions::default()).expect("it is sound");
    let mut blocks = Vec::new();
    let mut at = Some(ScrubAt::default());
    while let Some(now) = at {
        let step = image.scrub(now, 4096, Duration::from_secs(60));
        blocks.extend(step.visited.iter().map(|v| v.pblk));
        at = step.next;
    }
    blocks.sort_unstable();
    blocks.dedup();
    let journal = image.journal_blocks().expect("a journal")[0].pblk;
    blocks.extend(journal..journal + 4);
    Base {
        block_size: config.block_size.into(),
        dev,
        blocks,
    }
}

pub fn options() -> ccfs_engine::Options {
    ccfs_engine::Options {
        background: false,
        // Room for what lies together, too.
        cache_bytes: 1 << 20,
        group_wait: Duration::ZERO,
        ..ccfs_engine::Options::default()
    }
}

/// Overwrites bytes of a device; what lies outside is left out.
pub fn patch(dev: &MemoryDevice, at: u64, bytes: &[u8]) {
    use ccfs_device::{AlignedBuf, Write, write_all};
    let start = at / 512 * 512;
    let end = (at + bytes.len() as u64).next_multiple_of(512);
    if end > dev.size_bytes() || bytes.is_empty() {
        return;
    }
    let mut buf = AlignedBuf::zeroed((end - start) as usize);
    if dev.read(start, &mut buf).is_ok() {
        let from = (at - start) as usize;
        buf[from..from + bytes.len()].copy_from_slice(bytes);
        let _ = write_all(dev, vec![Write::new(start, buf)]);
    }
}
