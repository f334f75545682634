//! A volume with a past: what debugfs and tune2fs can make of it and ccfs never would (21 and 27 in `spots.rs`).
use crate::config::Config;
use crate::e2fsprogs::{TIME, debugfs, run};
use crate::generate::pattern;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Files with these attributes' block in common.
const SHARING: [&str; 3] = ["x1", "x2", "x3"];
/// h_refcount in the head of a block of attributes.
const REFCOUNT: u64 = 4;

/// Fills a fresh volume that has no extents yet, and turns them on.
pub(crate) fn fill(image: &Path, config: &Config) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let host = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
        Ok::<_, String>(path.display().to_string())
    };
    let (none, value) = (host("none", b"")?, host("value", &[b's'; 500])?);
    let (small, large) = (
        host("small", &pattern(1, 0, 30_000))?,
        host("large", &pattern(2, 0, 400_000))?,
    );
    let mut holes = pattern(3, 0, 90_000).to_vec();
    holes[4096..60_000].fill(0);
    let holes = host("holes", &holes)?;
    let mut script = format!("write {small} a\nwrite {large} b\nwrite {holes} hole\nmkdir old\n");
    for i in 0..60 {
        script += &format!("write {none} old/{i}-{}\n", "x".repeat(40));
    }
    for name in SHARING {
        script += &format!("write {none} {name}\n");
    }
    script += &format!("ea_set -f {value} {} user.same\n", SHARING[0]);
    debugfs(image, &host("script", script.as_bytes())?)?;
    let block = attribute_block(image)?;
    let mut script = String::new();
    for name in &SHARING[1..] {
        let sectors = config.block_size / 512;
        script += &format!("sif {name} file_acl {block}\nsif {name} blocks {sectors}\n");
    }
    debugfs(image, &host("script", script.as_bytes())?)?;
    let file = OpenOptions::new().write(true).open(image);
    let shared = (SHARING.len() as u32).to_le_bytes();
    file.and_then(|f| f.write_all_at(&shared, block * u64::from(config.block_size) + REFCOUNT))
        .map_err(|e| e.to_string())?;
    let mut tune = Command::new("tune2fs");
    tune.args(["-O", "extents"]).arg(image);
    run(tune.env(TIME.0, TIME.1), 0)?;
    run(Command::new("e2fsck").args(["-f", "-n"]).arg(image), 0)
}

/// The number of the block with the first one's attributes.
fn attribute_block(image: &Path) -> Result<u64, String> {
    let stat = format!("stat {}", SHARING[0]);
    let out = Command::new("debugfs")
        .args(["-R", &stat])
        .arg(image)
        .output()
        .map_err(|e| format!("debugfs: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let word = text
        .split_once("File ACL: ")
        .and_then(|(_, rest)| rest.split_whitespace().next());
    match word.and_then(|w| w.parse().ok()) {
        Some(block) if block > 0 => Ok(block),
        _ => Err(format!("debugfs made no attributes: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::USED;
    use crate::image::base;
    use crate::run::mount;
    use crate::setting::Setting;
    use ccfs_engine::{FLAG_EXTENTS, FLAG_INDEX, ROOT_INO};
    use std::sync::Arc;

    #[test]
    fn the_volume_has_what_ccfs_never_makes() {
        let config = crate::config::config(USED.name).unwrap();
        let vol = mount(
            Arc::new(base(config).unwrap()),
            Setting::new(config).options(),
        );
        let vol = vol.unwrap();
        let attr = |name: &str| vol.lookup(ROOT_INO, name.as_bytes()).unwrap();
        for name in super::SHARING {
            assert_eq!(
                vol.getxattr(attr(name).ino, b"user.same").unwrap(),
                [b's'; 500]
            );
            // The block counts for each of them (one of 1 KiB).
            assert_eq!(attr(name).blocks512, 2, "{name}");
        }
        let flags = ["a", "b", "hole", "old"].map(|n| attr(n).flags & (FLAG_EXTENTS | FLAG_INDEX));
        assert_eq!(flags, [0; 4]);
        // A hole, and a map of two levels: 400 blocks of data, and blocks of the map.
        assert!(attr("hole").blocks512 < 100 && attr("b").blocks512 > 2 * 391);
        vol.unmount().unwrap();
    }
}
