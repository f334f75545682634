//! The two checksums of ext4: crc32c ("metadata_csum") and crc16 ("uninit_bg"). Source: the kernel's
//! Documentation/filesystems/ext4 ("Checksums").

/// crc32c as ext4 uses it: no inversion before or after, `seed` is the state to go on from.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !::crc32c::crc32c_append(!seed, bytes)
}

/// The seed of all checksums of an inode's own blocks (extent nodes, directory blocks): volume seed, number, generation.
pub fn inode_seed(volume_seed: u32, ino: u32, generation: u32) -> u32 {
    let seed = crc32c(volume_seed, &ino.to_le_bytes());
    crc32c(seed, &generation.to_le_bytes())
}

const CRC16: [u16; 256] = crc16_table();

/// Table of the reflected polynomial 0x8005.
const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xA001
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

/// crc16 (polynomial 0x8005, reflected), continuing from `seed`.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &b| {
        (crc >> 8) ^ CRC16[usize::from((crc ^ u16::from(b)) & 0xFF)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // The check values of CRC-32C and CRC-16/ARC for "123456789".
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }

    #[test]
    fn continuing_equals_whole() {
        let whole = crc32c(!0, b"hello world");
        assert_eq!(crc32c(crc32c(!0, b"hello "), b"world"), whole);
        assert_eq!(
            crc16(crc16(!0, b"hello "), b"world"),
            crc16(!0, b"hello world")
        );
    }
}
