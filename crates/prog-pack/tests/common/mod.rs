//! Hand-assembled programs for both architectures: the only place in these tests that knows instructions.
#![allow(dead_code, reason = "each test file uses a part of it")]

use bpf_jit_code::{Arch, Code, PatchSlot, Reloc, RelocKind, Symbol};

/// The architecture of the host.
pub(crate) const HOST: Arch = if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::X64 };

/// The byte pattern of free memory, in units of four bytes.
pub(crate) fn trap() -> [u8; 4] {
    match HOST {
        Arch::X64 => [0xcc; 4],
        Arch::Arm64 => 0xd420_0020_u32.to_le_bytes(),
    }
}

/// `return value`.
fn ret(value: u32, out: &mut Vec<u8>) {
    match HOST {
        Arch::X64 => {
            out.push(0xb8); // mov eax, imm32
            out.extend_from_slice(&value.to_le_bytes());
            out.push(0xc3); // ret
        }
        Arch::Arm64 => {
            let movz = 0x5280_0000 | (value & 0xffff) << 5; // movz w0, #low
            let movk = 0x72a0_0000 | (value >> 16) << 5; // movk w0, #high, lsl 16
            for word in [movz, movk, 0xd65f_03c0] {
                out.extend_from_slice(&word.to_le_bytes()); // ... ret
            }
        }
    }
}

pub(crate) fn nop() -> Vec<u8> {
    match HOST {
        Arch::X64 => vec![0x0f, 0x1f, 0x44, 0, 0],
        Arch::Arm64 => 0xd503_201f_u32.to_le_bytes().to_vec(),
    }
}

/// A jump at byte offset `at` of the code to byte offset `target`.
fn jump(at: usize, target: usize) -> Vec<u8> {
    let distance = target as i64 - at as i64;
    match HOST {
        Arch::X64 => [&[0xe9][..], &((distance - 5) as i32).to_le_bytes()].concat(),
        Arch::Arm64 => (0x1400_0000 | (distance / 4) as u32 & 0x03ff_ffff).to_le_bytes().to_vec(),
    }
}

fn code(bytes: Vec<u8>) -> Code {
    let mut code = Code::new(HOST);
    code.bytes = bytes;
    code.entries = vec![0];
    code
}

/// A program that returns `value`, padded with unreachable code to `len` bytes at least.
pub(crate) fn constant(value: u32, len: usize) -> Code {
    let mut bytes = Vec::new();
    ret(value, &mut bytes);
    while bytes.len() < len {
        bytes.extend_from_slice(&nop());
    }
    code(bytes)
}

/// A program with entries that return each of `values`.
pub(crate) fn several(values: &[u32]) -> Code {
    let mut bytes = Vec::new();
    let mut entries = Vec::new();
    for value in values {
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        entries.push(bytes.len() as u32);
        ret(*value, &mut bytes);
    }
    Code { entries, ..code(bytes) }
}

/// A program that returns what the C function behind `symbol` returns.
pub(crate) fn calls(symbol: Symbol) -> Code {
    let (bytes, at, kind) = match HOST {
        // push rbp; call; pop rbp; ret
        Arch::X64 => (vec![0x55, 0xe8, 0, 0, 0, 0, 0x5d, 0xc3], 2, RelocKind::X64Rel32),
        // stp x29, x30, [sp, -16]!; bl; ldp x29, x30, [sp], 16; ret
        Arch::Arm64 => {
            let words: [u32; 4] = [0xa9bf_7bfd, 0x9400_0000, 0xa8c1_7bfd, 0xd65f_03c0];
            (words.iter().flat_map(|w| w.to_le_bytes()).collect(), 4, RelocKind::Arm64Branch26)
        }
    };
    Code { relocs: vec![Reloc { at, kind, symbol }], ..code(bytes) }
}

/// A program that returns the address of `symbol`.
pub(crate) fn address_of(symbol: Symbol) -> Code {
    let (bytes, at, kind) = match HOST {
        // movabs rax, imm64; ret
        Arch::X64 => ([&[0x48, 0xb8][..], &[0; 8], &[0xc3]].concat(), 2, RelocKind::X64Abs64),
        // movz x0; movk x0, lsl 16; movk x0, lsl 32; ret
        Arch::Arm64 => {
            let words: [u32; 4] = [0xd280_0000, 0xf2a0_0000, 0xf2c0_0000, 0xd65f_03c0];
            (words.iter().flat_map(|w| w.to_le_bytes()).collect(), 0, RelocKind::Arm64Mov48)
        }
    };
    Code { relocs: vec![Reloc { at, kind, symbol }], ..code(bytes) }
}

/// Code with a slot that holds a nop, then `return 1`. The second offset is that of `return 2`, the target of the
/// jump.
pub(crate) fn flip() -> (Code, PatchSlot, usize) {
    let mut bytes = nop();
    ret(1, &mut bytes);
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    let other = bytes.len();
    ret(2, &mut bytes);
    (code(bytes), PatchSlot::new(HOST, 0).unwrap(), other)
}

/// A direct tail-call site, with nothing between the slots.
pub(crate) struct Site {
    pub(crate) code: Code,
    /// Holds a jump to `out`.
    pub(crate) bypass: PatchSlot,
    /// Holds a nop; if both slots are nops, the code returns [`FELL_THROUGH`].
    pub(crate) target: PatchSlot,
    /// Offset of `return 1`.
    pub(crate) out: usize,
    /// Offset of `return 2`, the target of the jump.
    pub(crate) program: usize,
}

pub(crate) const FELL_THROUGH: u32 = 99;

pub(crate) fn site() -> Site {
    // The slots lie in different cache lines, as they may in real code.
    let (target, out, program) = (256, 512, 576);
    let mut bytes = jump(0, out);
    while bytes.len() < target {
        bytes.extend_from_slice(match HOST {
            Arch::X64 => &[0x90],
            Arch::Arm64 => &[0x1f, 0x20, 0x03, 0xd5],
        });
    }
    bytes.extend_from_slice(&nop());
    ret(FELL_THROUGH, &mut bytes);
    bytes.resize(out, 0);
    ret(1, &mut bytes);
    bytes.resize(program, 0);
    ret(2, &mut bytes);
    let slot = |at| PatchSlot::new(HOST, at as u32).unwrap();
    Site { code: code(bytes), bypass: slot(0), target: slot(target), out, program }
}

/// Calls machine code made here.
///
/// # Safety
/// `entry` is an entry of one of the programs above, which stays loaded during the call.
pub(crate) unsafe fn run(entry: *const u8) -> u32 {
    // SAFETY: the entry of one of the programs above, each of which is a C function without arguments.
    let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(entry) };
    function()
}

/// As [`run`], for programs that return 64 bits.
///
/// # Safety
/// See [`run`].
pub(crate) unsafe fn run64(entry: *const u8) -> u64 {
    // SAFETY: the entry of one of the programs above, each of which is a C function without arguments.
    let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(entry) };
    function()
}

/// The readable, executable mappings of packs in this process.
pub(crate) fn executable_views() -> Vec<std::ops::Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:prog-pack") && line.contains(" r-x"))
        .map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            usize::from_str_radix(start, 16).unwrap()..usize::from_str_radix(end, 16).unwrap()
        })
        .collect()
}

/// Fails if some page of this process is writable and executable.
pub(crate) fn assert_no_writable_code() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines() {
        let permissions = line.split_ascii_whitespace().nth(1).unwrap();
        assert!(!(permissions.contains('w') && permissions.contains('x')), "{line}");
    }
}
