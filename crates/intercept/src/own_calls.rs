//! Code that makes system calls of its own.
//!
//! To decode a program's code takes too long where it is started. An instruction `syscall` has two bytes, 0F 05, which other
//! instructions have too, above all as a part of how far they jump; then a zero or FF follows soon. So it is counted how often
//! something follows that is the beginning of an instruction after a call. (Of 2,104 programs and libraries of a Debian 12
//! 25 have three such places and more: the C library, what is linked statically, liburing, sanitizers, programs in Rust with
//! rustix, some that are very large.)
use memchr::memmem;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// Places from which on it is believed, if they are a quarter of all.
const MIN: usize = 3;
/// Places from which on it is believed in any case.
const SURE: usize = 8;

/// The loader, whose calls are about its own descriptors, and the kernel's own code.
pub fn is_known(name: &[u8]) -> bool {
    let file = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
    file.starts_with(b"ld-linux") || file.starts_with(b"linux-vdso") || file == b"libc.so.6"
}

/// This code makes some.
pub fn makes(code: &[u8]) -> bool {
    let (mut all, mut likely) = (0, 0);
    for at in memmem::find_iter(code, &SYSCALL) {
        all += 1;
        let next = code.get(at + 2..at + 4).unwrap_or_default();
        if let [first, second] = next
            && begins_after_a_call(*first)
            && !matches!(second, 0 | 0xFF)
        {
            likely += 1;
        }
        if likely >= SURE {
            return true;
        }
    }
    likely >= MIN && likely * 4 >= all
}

/// First bytes of what compilers put after a call: a test or copy of its result, or what goes on elsewhere.
fn begins_after_a_call(byte: u8) -> bool {
    const OTHERS: [u8; 20] = [
        0x31, 0x39, 0x3B, 0x3D, 0x66, 0x74, 0x75, 0x78, 0x79, 0x83, 0x85, 0x89, 0x8B, 0x90, 0xA9,
        0xB8, 0xC3, 0xC7, 0xC9, 0xF7,
    ];
    // Prefixes of 64-bit operands, and pops of registers.
    const REX: std::ops::RangeInclusive<u8> = 0x41..=0x4D;
    const POPS: std::ops::RangeInclusive<u8> = 0x50..=0x5F;
    const JUMPS: std::ops::RangeInclusive<u8> = 0xE8..=0xEB;
    REX.contains(&byte) || POPS.contains(&byte) || JUMPS.contains(&byte) || OTHERS.contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_jumps_are_none() {
        // je +0x050f: 0F 84 0F 05 00 00, again and again.
        let jumps = [0x0F, 0x84, 0x0F, 0x05, 0, 0].repeat(100);
        assert!(!makes(&jumps));
        // call -0xfaf1.
        assert!(!makes(&[0xE8, 0x0F, 0x05, 0xFF, 0xFF].repeat(100)));
    }

    #[test]
    fn calls_are_found() {
        // mov eax, 39; syscall; test rax, rax.
        let call = [0xB8, 39, 0, 0, 0, 0x0F, 0x05, 0x48, 0x85, 0xC0];
        assert!(!makes(&call.repeat(2)));
        assert!(makes(&call.repeat(3)));
    }

    #[test]
    fn of_this_machine() {
        let code = |path: &str| std::fs::read(path).expect("read");
        let own = std::env::current_exe().expect("its path");
        assert!(
            makes(&std::fs::read(own).expect("read")),
            "rustix is in this program"
        );
        assert!(!makes(&code("/bin/sh")));
        assert!(!makes(&code("/bin/cp")));
    }

    #[test]
    fn the_loader_is_known() {
        for name in [
            "/lib64/ld-linux-x86-64.so.2",
            "linux-vdso.so.1",
            "/lib/libc.so.6",
        ] {
            assert!(is_known(name.as_bytes()), "{name}");
        }
        assert!(!is_known(b"") && !is_known(b"/usr/lib/libz.so.1"));
    }
}
