//! Looks for the system calls of a library.
//!
//! Its code is read from the beginning to the end, as a compiler wrote it. Of the instructions before a `syscall` as many are replaced as a jump
//! needs; none of them may be a jump or a call, may depend on where it is, or be where another jump leads, but for the first. Where that
//! cannot be, `syscall` and what follows it are replaced, too, if it may be moved: then a restart by the kernel comes to the copy.
//!
//! From glibc 2.41 on cancellable calls of programs with threads are made in one function, which looks first whether the thread is cancelled. Who
//! cancels it later finds by its program counter that it is between that look and the call. Anything that is put between them could be where it
//! is cancelled, and then wait in the call for ever. So the calls of that function are replaced, and nothing in it.
use crate::plan::{ANY, CALLER, ID_MAX, INSTRUCTION, JUMP, Site, WINDOW_MAX};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use object::read::elf::{ElfFile64, FileHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, SectionKind};
use std::collections::HashSet;

/// Calls that need not be led: rt_sigprocmask, rt_sigreturn, exit, exit_group.
const MAY_BE_LEFT: [u32; 4] = [14, 15, 60, 231];
/// Instructions before a `syscall` in which its number is looked for.
const BEFORE: usize = 16;

/// What `__syscall_cancel_arch` of glibc does with its arguments before it makes the call (sysdeps/unix/sysv/linux/x86_64/syscall_cancel.S): the address
/// of what tells whether the thread is cancelled, the number, and the call's arguments, the last two on the stack.
const TAKES_ARGUMENTS: [u8; 33] = [
    0x49, 0x89, 0xFB, 0x48, 0x89, 0xF0, 0x48, 0x89, 0xD7, 0x48, 0x89, 0xCE, 0x4C, 0x89, 0xC2, 0x4D,
    0x89, 0xCA, 0x4C, 0x8B, 0x44, 0x24, 8, 0x4C, 0x8B, 0x4C, 0x24, 16, 0x4C, 0x89, 0x5C, 0x24, 8,
];

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// What was found in a library.
#[derive(Debug)]
pub struct Found {
    /// Its build id.
    pub id: Vec<u8>,
    /// Where its calls can be led elsewhere.
    pub sites: Vec<Site>,
    /// The numbers of those that cannot ([`ANY`]: unknown), with their places.
    pub left: Vec<(u64, u32)>,
}

/// Why a library cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// It is no library for this machine (x86-64).
    Foreign(String),
    /// It has no build id, so it could be taken for another one.
    NoId,
    /// A call that may be about a file, at this place, can be led nowhere.
    Left(u64),
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfit::Foreign(why) => write!(f, "it is no library for x86-64: {why}"),
            Unfit::NoId => write!(f, "it has no build id"),
            Unfit::Left(at) => write!(f, "the call at {at:#x} cannot be"),
        }
    }
}

impl std::error::Error for Unfit {}

fn foreign(why: impl ToString) -> Unfit {
    Unfit::Foreign(why.to_string())
}

/// A library, and its build id.
fn library(file: &[u8]) -> Result<(Elf<'_>, &[u8]), Unfit> {
    let elf = Elf::parse(file).map_err(foreign)?;
    let machine = elf.elf_header().e_machine(LittleEndian);
    if machine != object::elf::EM_X86_64 {
        return Err(foreign(format!("machine {machine}")));
    }
    let id = elf.build_id().map_err(foreign)?.unwrap_or_default();
    match (1..=ID_MAX).contains(&id.len()) {
        true => Ok((elf, id)),
        false => Err(Unfit::NoId),
    }
}

/// The build id of a library. To read its code, as [`calls`] does, takes much longer.
///
/// # Errors
/// It is none for this machine, or has no build id.
pub fn id(file: &[u8]) -> Result<&[u8], Unfit> {
    library(file).map(|(_, id)| id)
}

/// Looks through a library's file.
///
/// # Errors
/// It is none for this machine, or has no build id.
pub fn calls(file: &[u8]) -> Result<Found, Unfit> {
    let (elf, id) = library(file)?;
    let mut code = Text::default();
    for section in elf.sections().filter(|s| s.kind() == SectionKind::Text) {
        let bytes = section.data().map_err(foreign)?;
        code.read(bytes, section.address());
    }
    code.targets
        .extend(elf.dynamic_symbols().map(|s| s.address()));
    let mut found = Found {
        id: id.to_vec(),
        sites: Vec::new(),
        left: Vec::new(),
    };
    for at in 0..code.all.len() {
        if code.all[at].0.code() == Code::Syscall {
            let callers = code.callers_of_cancellable(at);
            let around = || code.around(at, at - 1).or_else(|| code.around(at, at));
            match code.before(at).or_else(around) {
                _ if callers.is_some() => found.sites.extend(callers.into_iter().flatten()),
                Some(site) => found.sites.push(site),
                None => found.left.push((code.all[at].0.ip(), code.number(at))),
            }
        }
    }
    found.sites.sort_by_key(|site| site.start);
    // What the library stands for is nothing to the kernel: all calls that may be about it come to the library, or none.
    let may_be_missed = |number: u32| !MAY_BE_LEFT.contains(&number);
    match found.left.iter().find(|(_, number)| may_be_missed(*number)) {
        Some((at, _)) => Err(Unfit::Left(*at)),
        None => Ok(found),
    }
}

/// All instructions, and where jumps lead.
#[derive(Default)]
struct Text {
    all: Vec<(Instruction, [u8; 15])>,
    targets: HashSet<u64>,
}

impl Text {
    fn read(&mut self, bytes: &[u8], address: u64) {
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        while decoder.can_decode() {
            let from = decoder.position();
            let one = decoder.decode();
            if one.is_invalid() {
                continue;
            }
            let mut own = [0; 15];
            own[..one.len()].copy_from_slice(&bytes[from..from + one.len()]);
            if matches!(one.op0_kind(), OpKind::NearBranch64) {
                self.targets.insert(one.near_branch_target());
            }
            if one.code() == Code::Endbr64 {
                self.targets.insert(one.ip());
            }
            self.all.push((one, own));
        }
    }

    /// It may be carried out at another place.
    fn moves(&self, at: usize) -> bool {
        let one = &self.all[at].0;
        one.flow_control() == FlowControl::Next && !one.is_ip_rel_memory_operand()
    }

    fn is_target(&self, at: usize) -> bool {
        self.targets.contains(&self.all[at].0.ip())
    }

    /// The instruction before this one lies directly before it.
    fn follows(&self, at: usize) -> bool {
        at > 0 && self.all[at - 1].0.next_ip() == self.all[at].0.ip()
    }

    /// The instructions before the call, if they can be replaced; and it stays. All of them can be moved, and nothing leads among them.
    fn before(&self, call: usize) -> Option<Site> {
        let end = self.all[call].0.ip();
        let mut first = call;
        while end - self.all[first].0.ip() < JUMP as u64 {
            let inside = first != call && self.is_target(first);
            if inside || !self.follows(first) || !self.moves(first - 1) {
                return None;
            }
            first -= 1;
        }
        self.site(first, call, call)
    }

    /// The call and what follows it, from `first` on: the instruction before it, which sets its number as a rule, or itself.
    fn around(&self, call: usize, first: usize) -> Option<Site> {
        let with_one = first != call;
        if with_one && (self.is_target(call) || !self.follows(call) || !self.moves(first)) {
            return None;
        }
        let mut end = call + 1;
        while self.all.get(end)?.0.ip() - self.all[first].0.ip() < JUMP as u64 {
            if self.is_target(end) || !self.follows(end) || !self.moves(end) {
                return None;
            }
            end += 1;
        }
        self.site(first, call, end)
    }

    /// The call is that of `__syscall_cancel_arch`: the calls of it, if nothing but these leads there.
    fn callers_of_cancellable(&self, call: usize) -> Option<Vec<Site>> {
        let (mut first, mut rest) = (call, &TAKES_ARGUMENTS[..]);
        while !rest.is_empty() {
            first = first.checked_sub(1)?;
            let (one, own) = &self.all[first];
            rest = rest.strip_suffix(&own[..one.len()])?;
        }
        // The look, and before it the function's begin.
        let look = first.checked_sub(2)?;
        let looks = self.all[look].0.code() == Code::Test_rm8_imm8
            && self.all[look].0.memory_base() == Register::RDI
            && self.all[look + 1].0.flow_control() == FlowControl::ConditionalBranch;
        let begin = (look.saturating_sub(2)..=look).rev();
        let mut begin = begin.map(|at| self.all[at].0.ip());
        let begin = begin.find(|ip| self.targets.contains(ip))?;
        let leads = |one: &Instruction| {
            one.op0_kind() == OpKind::NearBranch64 && one.near_branch_target() == begin
                || one.is_ip_rel_memory_operand() && one.ip_rel_memory_address() == begin
        };
        let all: Vec<usize> = (0..self.all.len())
            .filter(|at| leads(&self.all[*at].0))
            .collect();
        let are_calls = all
            .iter()
            .all(|at| self.all[*at].0.code() == Code::Call_rel32_64);
        let callers = || {
            all.iter()
                .map(|at| {
                    Some(Site {
                        kind: CALLER,
                        call: 0,
                        number: ANY,
                        ..self.site(*at, *at, at + 1)?
                    })
                })
                .collect()
        };
        (looks && are_calls && !all.is_empty()).then(callers)?
    }

    /// Instructions `[first, end)` are replaced.
    fn site(&self, first: usize, call: usize, end: usize) -> Option<Site> {
        let start = self.all[first].0.ip();
        let mut bytes = [0; WINDOW_MAX];
        let mut len = 0;
        for (one, own) in &self.all[first..end] {
            bytes
                .get_mut(len..len + one.len())?
                .copy_from_slice(&own[..one.len()]);
            len += one.len();
        }
        Some(Site {
            start,
            len: len as u32,
            call: (self.all[call].0.ip() - start) as u32,
            number: self.number(call),
            bytes,
            kind: INSTRUCTION,
        })
    }

    /// What is in a register before an instruction, if one of those before it sets it.
    fn constant(&self, before: usize, register: Register) -> u32 {
        let earlier = self.all[before.saturating_sub(BEFORE)..before].iter().rev();
        let mut straight = earlier.take_while(|(one, _)| one.flow_control() == FlowControl::Next);
        let sets = straight.find(|(one, _)| {
            one.op_count() > 0
                && one.op0_kind() == OpKind::Register
                && one.op0_register().full_register() == register.full_register()
        });
        match sets {
            Some((one, _)) if one.code() == Code::Mov_r32_imm32 => one.immediate32(),
            _ => ANY,
        }
    }

    /// The number of a call, as the instructions before it set it.
    fn number(&self, call: usize) -> u32 {
        for at in (call.saturating_sub(BEFORE)..call).rev() {
            let (one, _) = &self.all[at];
            if one.flow_control() != FlowControl::Next
                && one.flow_control() != FlowControl::ConditionalBranch
            {
                return ANY;
            }
            let is_number = one.op_count() > 0
                && one.op0_kind() == OpKind::Register
                && one.op0_register().full_register() == Register::RAX;
            if is_number {
                let zero = matches!(one.code(), Code::Xor_r32_rm32 | Code::Xor_rm32_r32)
                    && one.op1_kind() == OpKind::Register
                    && one.op1_register() == one.op0_register();
                return match one.code() {
                    Code::Mov_r32_imm32 => one.immediate32(),
                    Code::Mov_r32_rm32 | Code::Mov_rm32_r32
                        if one.op1_kind() == OpKind::Register =>
                    {
                        self.constant(at, one.op1_register())
                    }
                    _ if zero => 0,
                    _ => ANY,
                };
            }
            if self.is_target(at + 1) && at + 1 != call && self.is_target(call) {
                return ANY;
            }
        }
        ANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library of this machine.
    fn libc() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|l| l.contains("libc.so.6"));
        let path = line
            .and_then(|l| l.split_whitespace().last())
            .expect("a C library");
        std::fs::read(path).expect("read")
    }

    /// What a file is written and read by can be led elsewhere, and nearly all else.
    #[test]
    fn calls_for_files_are_found_in_this_machines_library() {
        let found = calls(&libc()).expect("a library");
        let (led, left) = (found.sites.len(), found.left.len());
        assert!(led > 300 && left < 12, "{led} are led, {left} are not");
        let names = [
            ("read", 0),
            ("write", 1),
            ("close", 3),
            ("fstat", 5),
            ("lseek", 8),
            ("pread", 17),
            ("pwrite", 18),
            ("fcntl", 72),
            ("fsync", 74),
            ("mkdir", 83),
            ("getdents64", 217),
            ("openat", 257),
            ("newfstatat", 262),
            ("unlinkat", 263),
            ("renameat", 264),
        ];
        for (name, number) in names {
            assert!(found.sites.iter().any(|s| s.number == number), "{name}");
            assert!(
                !found.left.iter().any(|(_, n)| *n == number),
                "{name} cannot be changed everywhere"
            );
        }
    }
}
