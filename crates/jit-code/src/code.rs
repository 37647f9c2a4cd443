//! The unit of emitted code.

use crate::homes::Homes;
use crate::unwind::Unwind;
use core::fmt;
use core::ops::Range;

/// Instruction set of a [`Code`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arch {
    /// x86-64.
    X64,
    /// AArch64.
    Arm64,
}

impl Arch {
    /// The architecture this process runs on, if there is a backend for it.
    pub const HOST: Option<Arch> = if cfg!(target_arch = "x86_64") {
        Some(Arch::X64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Arch::Arm64)
    } else {
        None
    };
}

/// A value whose address the emitter does not know: a helper, a map, a runtime routine. Its meaning is private to the
/// compiler of the code and to the linker that resolves it at placement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Symbol {
    /// The kind of symbol.
    pub kind: u32,
    /// The number within its kind.
    pub index: u32,
}

impl Symbol {
    /// The symbol with this number, for code with a single kind of symbol.
    pub const fn new(index: u32) -> Symbol {
        Symbol { kind: 0, index }
    }
}

/// How an address is written into the code. `at` is [`Reloc::at`], `S` the symbol's address, `P` the address of `at`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RelocKind {
    /// Four bytes: `S - (P + 4)`, the operand of `call rel32` or `jmp rel32`. Out of reach: a veneer.
    X64Rel32,
    /// Eight bytes: `S`, the operand of `movabs`.
    X64Abs64,
    /// The 26-bit word offset of `bl` or `b`: `(S - P) / 4`. Out of reach: a veneer (which may use x16).
    Arm64Branch26,
    /// Three consecutive words `movz x, #; movk x, #, lsl 16; movk x, #, lsl 32`: the low 48 bits of `S`.
    Arm64Mov48,
}

/// A place in the code that depends on an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reloc {
    /// Offset of the field in [`Code::bytes`].
    pub at: u32,
    /// The encoding.
    pub kind: RelocKind,
    /// The symbol whose address is written.
    pub symbol: Symbol,
}

/// The source of the code from offset `code` up to the next entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcEntry {
    /// Offset in [`Code::bytes`].
    pub code: u32,
    /// Index of the source instruction.
    pub insn: u32,
}

/// Bytes of an aligned word that a live-patchable instruction never crosses, so that one store replaces it.
pub const PATCH_WORD: u32 = 8;

/// One instruction that may be replaced, by one atomic store, while the code runs.
///
/// Only [`PatchSlot::new`] makes one, so a slot that crosses an aligned eight-byte word does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PatchSlot {
    at: u32,
    len: u8,
}

/// The reason why a place cannot be a patch slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PatchSlotError {
    /// The requested offset.
    pub at: u32,
}

impl fmt::Display for PatchSlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a patch slot at offset {} would cross an aligned {PATCH_WORD}-byte word", self.at)
    }
}

impl core::error::Error for PatchSlotError {}

impl PatchSlot {
    /// Length of a patchable instruction: x86-64 five bytes (`nop5`, `jmp rel32`), arm64 four (`nop`, `b`).
    pub const fn len_on(arch: Arch) -> u32 {
        match arch {
            Arch::X64 => 5,
            Arch::Arm64 => 4,
        }
    }

    /// The slot at this offset of a [`Code`].
    pub fn new(arch: Arch, at: u32) -> Result<PatchSlot, PatchSlotError> {
        let len = Self::len_on(arch);
        let aligned = match arch {
            Arch::X64 => true,
            Arch::Arm64 => at.is_multiple_of(4),
        };
        if aligned && at / PATCH_WORD == (at + len - 1) / PATCH_WORD {
            Ok(PatchSlot { at, len: len.to_le_bytes()[0] })
        } else {
            Err(PatchSlotError { at })
        }
    }

    /// Offset of the instruction in [`Code::bytes`].
    pub fn at(self) -> u32 {
        self.at
    }

    /// Its length in bytes.
    pub fn len(self) -> u32 {
        self.len.into()
    }

    /// False: a slot has at least four bytes.
    pub fn is_empty(self) -> bool {
        false
    }
}

/// How a tail-call site finds its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TailTarget {
    /// Table and index are only known at run time: the site loads the entry.
    Indirect,
    /// Table and index are constants: the site is patched.
    Direct {
        /// The table.
        table: Symbol,
        /// The index, below the table's size.
        index: u32,
        /// `jmp out` (bypassed) or nop (open).
        bypass: PatchSlot,
        /// nop or `jmp program`.
        target: PatchSlot,
        /// Offset of the instruction after the site.
        out: u32,
    },
}

/// A `tail_call` in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TailCallSite {
    /// Index of the source instruction.
    pub insn: u32,
    /// How the site reaches its target.
    pub target: TailTarget,
}

/// The machine stack of one function while it runs, between its prologue and its epilogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameShape {
    /// Bytes of the frame, with the return address and without callees.
    pub bytes: u32,
    /// Distance of its stack pointer below its caller's, at every call, check and stop.
    pub below_caller: u32,
    /// Distance above its stack pointer at which its return address is stored; `None` if it is in the link register.
    pub return_address: Option<u32>,
}

impl FrameShape {
    /// The frame of a function that stores nothing: the return address on x86-64, nothing on arm64.
    pub const fn empty(arch: Arch) -> FrameShape {
        match arch {
            Arch::X64 => FrameShape::new(8, Some(0)),
            Arch::Arm64 => FrameShape::new(0, None),
        }
    }

    /// A frame that lies entirely below its caller's stack pointer.
    pub const fn new(bytes: u32, return_address: Option<u32>) -> FrameShape {
        FrameShape { bytes, below_caller: bytes, return_address }
    }
}

/// Emitted machine code, not yet placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// Architecture of `bytes`.
    pub arch: Arch,
    /// The code. Relocated fields hold zero displacements.
    pub bytes: Vec<u8>,
    /// Places that depend on an address, ascending by `at`.
    pub relocs: Vec<Reloc>,
    /// Entry offset of each subprogram; 0 is the main program's.
    pub entries: Vec<u32>,
    /// The map from code to source, ascending by `code`; empty unless requested.
    pub pc_map: Vec<PcEntry>,
    /// Jump tables: ranges of `bytes` that are data, ascending. An entry has four bytes, which hold its target's
    /// distance from the entry.
    pub tables: Vec<Range<u32>>,
    /// Tail-call sites, in code order.
    pub tail_calls: Vec<TailCallSite>,
    /// The frame of each subprogram.
    pub frames: Vec<FrameShape>,
    /// Changes of the frame, ascending by `at`; empty unless requested.
    pub unwind: Vec<Unwind>,
    /// The places of each subprogram's BPF registers; empty unless [`Code::unwind`] is requested and each has one.
    pub homes: Vec<Homes>,
    /// The requirements of the first entry on its hidden argument.
    pub needs: Needs,
}

/// The requirements of code on its hidden argument ([`crate::RunCtx`]), in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Needs {
    /// None: the code does not read the argument. It cannot be stopped, and makes no tail call.
    Nothing,
    /// The argument of this thread's slot, with any other contents: the code counts its runs or notes there that it
    /// runs, and is otherwise like code without requirements.
    Slot,
    /// A run that was begun for this code.
    Run,
}

impl Code {
    /// Alignment of a code's base address in bytes.
    pub const ALIGN: usize = 16;

    /// An empty code.
    pub fn new(arch: Arch) -> Code {
        Code {
            arch,
            bytes: Vec::new(),
            relocs: Vec::new(),
            entries: Vec::new(),
            pc_map: Vec::new(),
            tables: Vec::new(),
            tail_calls: Vec::new(),
            frames: Vec::new(),
            unwind: Vec::new(),
            homes: Vec::new(),
            needs: Needs::Run,
        }
    }

    /// Empties the code and keeps its memory, for the next program.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.relocs.clear();
        self.entries.clear();
        self.pc_map.clear();
        self.tables.clear();
        self.tail_calls.clear();
        self.frames.clear();
        self.unwind.clear();
        self.homes.clear();
        self.needs = Needs::Run;
    }

    /// The source instruction that the code byte at `offset` was made from; `None` before the first.
    pub fn insn_at(&self, offset: u32) -> Option<u32> {
        let i = self.pc_map.partition_point(|e| e.code <= offset);
        i.checked_sub(1).map(|i| self.pc_map[i].insn)
    }
}
