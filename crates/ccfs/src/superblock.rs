//! The super block as the commands look at it, before anything of the volume is trusted.
use ccfs_device::{Device, FLASH_MAGIC};
use ccfs_ext4::superblock::{MAGIC, RawSuper, SUPER_OFFSET, SUPER_SIZE};
use ccfs_ext4::{Error, Result, features};
use std::path::Path;
use zerocopy::FromBytes;

/// Reads the primary super block.
///
/// Errors: the device's; `Refused` where no ext2/3/4 file system begins there.
pub fn read(device: &dyn Device) -> Result<RawSuper> {
    let mut bytes = [0u8; SUPER_SIZE];
    if device.size_bytes() < SUPER_OFFSET + SUPER_SIZE as u64 {
        return Err(Error::Refused("too small for a file system".into()));
    }
    let mut head = [0; FLASH_MAGIC.len()];
    device.read(0, &mut head)?;
    if head == FLASH_MAGIC {
        return Err(Error::Refused(
            "it is a flash file, whose volume only `ccfs mount`, `fsck`, `inspect` and the commands that work without a mount read".into(),
        ));
    }
    device.read(SUPER_OFFSET, &mut bytes)?;
    parse(&bytes)
}

/// Errors: `Refused` where these bytes are no super block.
pub fn parse(bytes: &[u8; SUPER_SIZE]) -> Result<RawSuper> {
    let sb = RawSuper::read_from_bytes(bytes).map_err(|_| Error::corrupt("super block".into()))?;
    if sb.magic.get() != MAGIC {
        return Err(Error::Refused(
            "no ext2, ext3 or ext4 file system is on it; `ccfs mkfs` makes one".into(),
        ));
    }
    Ok(sb)
}

/// Whether the file or device holds a volume, as far as its head tells. What cannot be read may hold one: whoever opens it says why it cannot.
pub fn is_volume(path: &Path) -> bool {
    use std::os::unix::fs::{FileExt, FileTypeExt};
    let Ok(meta) = path.metadata() else {
        return true;
    };
    if !meta.is_file() && !meta.file_type().is_block_device() {
        return false;
    }
    let Ok(file) = std::fs::File::open(path) else {
        return true;
    };
    let mut head = [0u8; SUPER_OFFSET as usize + SUPER_SIZE];
    match file.read_exact_at(&mut head, 0) {
        Err(e) => e.kind() != std::io::ErrorKind::UnexpectedEof,
        Ok(()) => {
            let sb = head[SUPER_OFFSET as usize..].try_into();
            head.starts_with(&FLASH_MAGIC) || sb.is_ok_and(|sb| parse(sb).is_ok())
        }
    }
}

/// True where a crash may have left changes in the log. Bit and checksum lie in different sectors and can be torn apart:
/// a volume counts as in flight if either says so; recovery decides (docs/format.md).
pub fn in_flight(sb: &RawSuper) -> bool {
    let mut with_bit = *sb;
    with_bit.feature_incompat = (sb.feature_incompat.get() | features::IN_FLIGHT).into();
    sb.has_incompat(features::IN_FLIGHT) || (!sb.checksum_ok() && with_bit.checksum_ok())
}

/// What there is to say where the file or device ends before its file system does. (What is missing may be less than a unit of the device:
/// nobody sees that.) A damaged super block says nothing.
pub fn cut_off(sb: &RawSuper, device: &dyn Device, target: &Path) -> Option<String> {
    let block_size = 1024u64.checked_shl(sb.log_block_size.get())?;
    let wanted = sb.blocks_count().checked_mul(block_size)?;
    let there = device.size_bytes();
    let sound = sb.checksum_ok() || in_flight(sb);
    if !sound || wanted < there + device.min_io() {
        return None;
    }
    Some(format!(
        "cut off: its file system has {wanted} bytes, and only {there} are there; restore the rest, or a copy. Without one, as the last \
         resort: `truncate -s {wanted} {0}` puts zeros there, and `ccfs fsck -fy {0}` repairs what can be repaired",
        target.display()
    ))
}

/// Names of the features that are set, each with what ccfs does with it; bits without a name by number.
pub fn feature_names(sb: &RawSuper) -> Vec<(String, features::Support)> {
    use features::Class;
    let words = [
        (Class::Compat, sb.feature_compat.get()),
        (Class::Incompat, sb.feature_incompat.get()),
        (Class::RoCompat, sb.feature_ro_compat.get()),
    ];
    let mut out = Vec::new();
    for (class, word) in words {
        for bit in (0..32).map(|n| 1u32 << n).filter(|bit| word & bit != 0) {
            match features::TABLE
                .iter()
                .find(|f| f.class == class && f.bit == bit)
            {
                Some(f) => out.push((f.name.to_string(), f.support)),
                None => out.push((format!("{class:?}:{bit:#x}"), features::Support::Refused)),
            }
        }
    }
    out
}

/// A UUID in its usual form.
pub fn show_uuid(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Text up to the first NUL.
pub fn show_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// One of the errors that the super block remembers, from its JSON form; `None` for null.
pub fn error_line(error: &serde_json::Value) -> Option<String> {
    let number = |key: &str| error[key].as_u64().unwrap_or(0);
    let function = error["function"].as_str()?;
    let what = match number("code") {
        0 => String::new(),
        2 => "read or write error, ".into(),
        4 => "wrong checksum, ".into(),
        5 => "impossible value, ".into(),
        other => format!("error code {other}, "),
    };
    let (inode, block) = (number("inode"), number("block"));
    Some(format!(
        "{what}inode {inode}, block {block}, found by {function}:{} at {} s since 1970",
        number("line"),
        number("time")
    ))
}
