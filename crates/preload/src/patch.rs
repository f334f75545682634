//! The plan of a library is carried out in memory.
//!
//! A jump of five bytes reaches two gigabytes, so what the calls are led to, the *stubs*, lie in memory of their own near the library. Each
//! carries out what was replaced, asks (`entry`), and goes back: behind the call, or to it.
#![allow(unsafe_code)]
use crate::entry;
use ccfs_intercept::plan::{CALLER, JUMP, Plan, Site, WINDOW_MAX};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

/// Bytes of a stub at most: what was replaced, and what asks.
const STUB_MAX: usize = 80;
/// The same of one that is called.
const CALLED_STUB_MAX: usize = 160;
/// How far from the library its stubs are looked for, and in which steps.
const REACH: u64 = 1 << 30;
const STEP: u64 = 1 << 20;

/// Leads the calls of the C library here, as its plan says. Where anything is not as planned nothing is changed.
pub fn library(plan: &CStr) -> Option<()> {
    let file = open(plan, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = usize::try_from(fstat(&file).ok()?.st_size).ok()?;
    // SAFETY: a new mapping of a file that nobody changes: whoever writes plans puts new files into their place.
    let bytes = unsafe {
        let at = mmap(
            ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            &file,
            0,
        )
        .ok()?;
        std::slice::from_raw_parts(at.cast::<u8>(), len)
    };
    let done = Plan::read(bytes).and_then(|plan| carry_out(&plan));
    // SAFETY: nothing refers to it any more.
    let _ = unsafe { munmap(bytes.as_ptr().cast_mut().cast(), len) };
    done
}

/// A library in memory.
struct Library {
    base: u64,
    /// Its code.
    start: u64,
    end: u64,
}

fn carry_out(plan: &Plan<'_>) -> Option<()> {
    let library = find(plan.id())?;
    let all_there = plan.sites.iter().all(|site| is_there(&library, site));
    if !all_there || plan.sites.is_empty() {
        return None;
    }
    let stub_max = |site: &Site| match site.kind {
        CALLER => CALLED_STUB_MAX,
        _ => STUB_MAX,
    };
    let len: usize = plan.sites.iter().map(stub_max).sum();
    let mut stubs = Stubs::near(&library, len + JUMP_FAR)?;
    let (page, len) = pages(library.start, library.end);
    let text = page as *mut c_void;
    let writes = MprotectFlags::READ | MprotectFlags::WRITE;
    let runs = MprotectFlags::READ | MprotectFlags::EXEC;
    // SAFETY: the library's own code, which becomes writable for a moment and runs meanwhile: there is one thread, and between the two calls
    // nothing of the C library is called.
    unsafe {
        mprotect(text, len, writes | runs).ok()?;
        for site in plan.sites {
            let from = library.base + site.start;
            match site.kind {
                CALLER => put_jump(CALL, from, stubs.add_called(&library, site), JUMP),
                _ => put_jump(GO, from, stubs.add(&library, site), site.len as usize),
            }
        }
        let _ = mprotect(text, len, runs);
    }
    stubs.finish();
    Some(())
}

fn pages(start: u64, end: u64) -> (u64, usize) {
    let page = rustix::param::page_size() as u64;
    let first = start - start % page;
    (first, (end.next_multiple_of(page) - first) as usize)
}

/// What the plan says is replaced lies in the library's code, and is there.
fn is_there(library: &Library, site: &Site) -> bool {
    let start = library.base.wrapping_add(site.start);
    let len = site.len as usize;
    let end = start.checked_add(u64::from(site.len) + 2);
    let inside = library.start <= start && end.is_some_and(|end| end <= library.end);
    // SAFETY: inside the code of a loaded library, which can be read.
    inside && unsafe { std::slice::from_raw_parts(start as *const u8, len) } == &site.bytes[..len]
}

/// The library with this build id.
fn find(id: &[u8]) -> Option<Library> {
    struct Search<'a> {
        id: &'a [u8],
        found: Option<Library>,
    }
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: as dl_iterate_phdr(3) promises; `data` is the search below.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<'_>>()) };
        // SAFETY: its program headers.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let is_it = headers
            .iter()
            .filter(|h| h.p_type == libc::PT_NOTE)
            .any(|h| {
                let at = info.dlpi_addr + h.p_vaddr;
                // SAFETY: notes are in a segment that is loaded.
                has_id(
                    unsafe { std::slice::from_raw_parts(at as *const u8, h.p_memsz as usize) },
                    search.id,
                )
            });
        let code = headers
            .iter()
            .find(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
        match code {
            Some(code) if is_it => {
                let start = info.dlpi_addr + code.p_vaddr;
                search.found = Some(Library {
                    base: info.dlpi_addr,
                    start,
                    end: start + code.p_memsz,
                });
                1
            }
            _ => 0,
        }
    }
    let mut search = Search { id, found: None };
    // SAFETY: the callback takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(each), ptr::from_mut(&mut search).cast()) };
    search.found
}

/// A segment of notes has this build id (NT_GNU_BUILD_ID is 3).
fn has_id(mut notes: &[u8], id: &[u8]) -> bool {
    let word = |b: &[u8], at: usize| Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?));
    while let (Some(name), Some(len), Some(kind)) = (word(notes, 0), word(notes, 4), word(notes, 8))
    {
        let at = 12 + (name as usize).next_multiple_of(4);
        let content = notes.get(at..at + len as usize);
        if kind == 3 && notes.get(12..16) == Some(b"GNU\0") && content == Some(id) {
            return true;
        }
        let next = at + (len as usize).next_multiple_of(4);
        match notes.get(next..) {
            Some(rest) if next > 0 => notes = rest,
            _ => return false,
        }
    }
    false
}

/// A jump to an address that stands behind it.
const JUMP_FAR: usize = 14;

/// `jmp` and `call`, with a distance of four bytes.
const GO: u8 = 0xE9;
const CALL: u8 = 0xE8;

/// Writes a jump or a call over `len` bytes, and what traps behind it: nothing leads there.
///
/// # Safety
/// The bytes can be written, and both are less than two gigabytes apart.
unsafe fn put_jump(how: u8, from: u64, to: u64, len: usize) {
    let mut bytes = [0xCC; WINDOW_MAX];
    bytes[0] = how;
    bytes[1..JUMP].copy_from_slice(&relative(from + JUMP as u64, to));
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), from as *mut u8, len) };
}

fn relative(from: u64, to: u64) -> [u8; 4] {
    (to.wrapping_sub(from) as i32).to_le_bytes()
}

/// test r11d, r11d
const WAS_IT_MADE: [u8; 3] = [0x45, 0x85, 0xDB];
/// Does nothing, with a distance of four bytes.
const NOTHING: [u8; 5] = [0x66, 0x90, 0x0F, 0x1F, 0x80];

/// Memory near a library. It begins with the jump to `entry`.
struct Stubs {
    start: u64,
    len: usize,
    /// Where the next stub begins.
    next: u64,
}

/// The instruction by which the function that cancellable calls are made in looks whether its thread is cancelled: `test byte ptr [rdi], MASK`, before a
/// jump if it is.
fn look_of(library: &Library, function: u64) -> Option<[u8; 3]> {
    const BEGIN: usize = 16;
    if !(library.start..library.end - BEGIN as u64).contains(&function) {
        return None;
    }
    // SAFETY: code of the library, which stays mapped, and which nobody changes there.
    let begin: &[u8; BEGIN] = unsafe { &*(function as *const [u8; BEGIN]) };
    let mut at = begin.windows(5);
    let look = at.find(|code| code[..2] == [0xF6, 0x07] && code[3..] == [0x0F, 0x85])?;
    Some([look[0], look[1], look[2]])
}

impl Stubs {
    fn near(library: &Library, len: usize) -> Option<Stubs> {
        let len = pages(0, len as u64).1;
        let (_, size) = pages(library.base, library.end);
        let above = (0..REACH / STEP).map(|n| library.base + size as u64 + (n + 1) * STEP);
        let below =
            (0..REACH / STEP).filter_map(|n| library.base.checked_sub((n + 1) * STEP + len as u64));
        let near = below.zip(above).flat_map(|(a, b)| [a, b]);
        for at in near {
            let (at, _) = pages(at, at);
            let rw = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: only where there is nothing yet. (A kernel before 4.17 takes the address as a hint.)
            let got = unsafe {
                mmap_anonymous(
                    at as *mut c_void,
                    len,
                    rw,
                    MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE,
                )
            };
            match got {
                Ok(got) if got as u64 == at => {
                    let mut stubs = Stubs {
                        start: at,
                        len,
                        next: at,
                    };
                    stubs.put(&[0xFF, 0x25, 0, 0, 0, 0]);
                    stubs.put(&entry::address().to_le_bytes());
                    return Some(stubs);
                }
                // SAFETY: it is ours, and not where it was wanted.
                Ok(got) => drop(unsafe { munmap(got, len) }),
                Err(_) => {}
            }
        }
        None
    }

    fn put(&mut self, bytes: &[u8]) {
        let at = self.next;
        assert!(at + bytes.len() as u64 <= self.start + self.len as u64);
        // SAFETY: inside the memory, which can be written and is nobody else's.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        self.next = at + bytes.len() as u64;
    }

    /// An instruction whose last four bytes say how far it goes.
    fn put_relative(&mut self, instruction: &[u8], to: u64) {
        self.put(instruction);
        let from = self.next + 4;
        self.put(&relative(from, to));
    }

    /// The stub of a site: its address. Where it goes on after it has asked, the first 17 bytes tell where the call is (`entry`): the last four of
    /// them are the distance from behind them to what follows it.
    fn add(&mut self, library: &Library, site: &Site) -> u64 {
        const BELOW_RED_ZONE: [u8; 5] = [0x48, 0x8D, 0x64, 0x24, 0x80];
        const BACK: [u8; 8] = [0x48, 0x8D, 0xA4, 0x24, 0x80, 0, 0, 0];
        let (stub, call) = (self.next, site.call as usize);
        self.put(&site.bytes[..call]);
        self.put(&BELOW_RED_ZONE);
        self.put_relative(&[CALL], self.start);
        self.put(&BACK);
        let made_at = library.base + site.start + u64::from(site.call);
        if site.call == site.len {
            self.put(&WAS_IT_MADE);
            self.put_relative(&[0x0F, 0x85], made_at + 2);
            self.put_relative(&[GO], made_at);
        } else {
            self.put_relative(&NOTHING, made_at + 2);
            self.put(&WAS_IT_MADE);
            // Over `syscall`, which is here.
            self.put(&[0x75, 2, 0x0F, 0x05]);
            self.put(&site.bytes[call + 2..site.len as usize]);
            self.put_relative(&[GO], library.base + site.start + u64::from(site.len));
        }
        stub
    }

    /// The stub that is called instead of the function that cancellable calls are made in: its arguments are put where those of a system call are,
    /// and kept, since if the call is the kernel's that function is gone to. So is it by a thread that has been cancelled, and ends there: a thread of
    /// which no call is the kernel's would never end.
    fn add_called(&mut self, library: &Library, site: &Site) -> u64 {
        // 120 bytes, so that the caller's stack pointer is as far away as in every other stub. rdi, rsi, rdx, rcx, r8, r9 are stored.
        const KEEP: [u8; 34] = [
            0x48, 0x8D, 0x64, 0x24, 0x88, 0x48, 0x89, 0x3C, 0x24, 0x48, 0x89, 0x74, 0x24, 8, 0x48,
            0x89, 0x54, 0x24, 16, 0x48, 0x89, 0x4C, 0x24, 24, 0x4C, 0x89, 0x44, 0x24, 32, 0x4C,
            0x89, 0x4C, 0x24, 40,
        ];
        // The number is rsi; the last two arguments are on the stack.
        const AS_A_CALL: [u8; 31] = [
            0x48, 0x89, 0xF0, 0x48, 0x89, 0xD7, 0x48, 0x89, 0xCE, 0x4C, 0x89, 0xC2, 0x4D, 0x89,
            0xCA, 0x4C, 0x8B, 0x84, 0x24, 128, 0, 0, 0, 0x4C, 0x8B, 0x8C, 0x24, 136, 0, 0, 0,
        ];
        const STAY: [u8; 8] = [0x48, 0x8D, 0xA4, 0x24, 0, 0, 0, 0];
        const LEAVE: [u8; 5] = [0x48, 0x8D, 0x64, 0x24, 120];
        const AS_BEFORE: [u8; 29] = [
            0x48, 0x8B, 0x3C, 0x24, 0x48, 0x8B, 0x74, 0x24, 8, 0x48, 0x8B, 0x54, 0x24, 16, 0x48,
            0x8B, 0x4C, 0x24, 24, 0x4C, 0x8B, 0x44, 0x24, 32, 0x4C, 0x8B, 0x4C, 0x24, 40,
        ];
        let (stub, after) = (self.next, library.base + site.start + JUMP as u64);
        let mut distance = [0; 4];
        distance.copy_from_slice(&site.bytes[1..JUMP]);
        let function = after.wrapping_add_signed(i32::from_le_bytes(distance).into());
        if let Some(look) = look_of(library, function) {
            self.put(&look);
            self.put_relative(&[0x0F, 0x85], function);
        }
        self.put(&KEEP);
        self.put(&AS_A_CALL);
        self.put_relative(&[CALL], self.start);
        self.put(&STAY);
        self.put_relative(&NOTHING, after);
        self.put(&WAS_IT_MADE);
        // Over the return.
        self.put(&[0x74, 6]);
        self.put(&LEAVE);
        self.put(&[0xC3]);
        self.put(&AS_BEFORE);
        self.put(&LEAVE);
        self.put_relative(&[GO], function);
        stub
    }

    /// They can run, and cannot be written any more.
    fn finish(self) {
        // SAFETY: our own memory.
        let _ = unsafe {
            mprotect(
                self.start as *mut c_void,
                self.len,
                MprotectFlags::READ | MprotectFlags::EXEC,
            )
        };
    }
}
