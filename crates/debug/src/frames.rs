//! Frames for unwinders: DWARF call frame information, made from the backend's notes.
//!
//! The note kinds are DWARF's, so each becomes one instruction; `gimli` encodes them. The process's own unwinder
//! (that of libgcc or of LLVM, which also makes the backtraces of Rust's standard library) takes an `.eh_frame`
//! section with absolute addresses through `__register_frame`. perf and GDB get the frames in containers of their
//! own.
//!
//! Invariant: a registered section neither moves nor changes until it is deregistered.

use crate::unit::Unit;
use bpf_jit_code::{Arch, Unwind, UnwindOp};
use gimli::write::{
    Address, CallFrameInstruction as Cfi, CommonInformationEntry, DebugFrame, EhFrame, EndianVec,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{DwEhPe, Encoding, Format, LittleEndian, Register};

/// DWARF's number of a register (System V ABI of x86-64, figure 3.36; DWARF for the Arm 64-bit Architecture, 4.1).
pub(crate) fn dwarf_register(arch: Arch, reg: u8) -> Register {
    Register(match arch {
        // rax rcx rdx rbx rsp rbp rsi rdi, then r8 to r15 by their numbers.
        Arch::X64 => [0, 2, 1, 3, 7, 6, 4, 5].get(usize::from(reg)).copied().unwrap_or(reg).into(),
        Arch::Arm64 => reg.into(),
    })
}

/// DWARF's number of the return address.
fn return_address(arch: Arch) -> Register {
    match arch {
        Arch::X64 => Register(16),
        Arch::Arm64 => Register(30),
    }
}

fn cie(arch: Arch, version: u16, pointers: DwEhPe) -> CommonInformationEntry {
    let encoding = Encoding { format: Format::Dwarf32, version, address_size: 8 };
    let mut cie = CommonInformationEntry::new(encoding, 1, -8, return_address(arch));
    cie.fde_address_encoding = pointers;
    match arch {
        Arch::X64 => {
            cie.add_instruction(Cfi::Cfa(Register(7), 8));
            cie.add_instruction(Cfi::Offset(return_address(arch), -8));
        }
        Arch::Arm64 => cie.add_instruction(Cfi::Cfa(Register(31), 0)),
    }
    cie
}

/// The frame of one function whose first byte is at `address`.
fn fde(unit: &Unit, function: usize, address: u64) -> FrameDescriptionEntry {
    let (start, end) = unit.range(function);
    let mut fde = FrameDescriptionEntry::new(Address::Constant(address), end - start);
    let register = |reg| dwarf_register(unit.arch, reg);
    // Notes at the end of a function and those at the start of the next have equal offsets.
    let begins = |note: &Unwind| matches!(note.op, UnwindOp::Function | UnwindOp::Outside);
    let first = unit.unwind.iter().position(|note| note.at == start && begins(note));
    let notes = first.map_or(&[][..], |first| &unit.unwind[first..]);
    for (i, note) in notes.iter().enumerate().take_while(|(_, note)| note.at < end) {
        let instruction = match note.op {
            UnwindOp::Function | UnwindOp::Outside if i > 0 => break,
            UnwindOp::Function | UnwindOp::End => continue,
            UnwindOp::Outside => Cfi::Undefined(return_address(unit.arch)),
            UnwindOp::Cfa { base, offset } => Cfi::Cfa(register(base), offset as i32),
            UnwindOp::Saved { reg, offset } => Cfi::Offset(register(reg), -(offset as i32)),
            UnwindOp::Restored { reg } => Cfi::Restore(register(reg)),
            UnwindOp::SignToggled => Cfi::NegateRaState,
            UnwindOp::Remember => Cfi::RememberState,
            UnwindOp::Recall => Cfi::RestoreState,
        };
        fde.add_instruction(note.at - start, instruction);
    }
    fde
}

fn table(unit: &Unit, version: u16) -> FrameTable {
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie(unit.arch, version, gimli::DW_EH_PE_absptr));
    for function in 0..unit.functions.len() {
        let (start, end) = unit.range(function);
        if start < end {
            table.add_fde(cie, fde(unit, function, unit.base as u64 + u64::from(start)));
        }
    }
    table
}

/// All functions' frames as `.eh_frame`, with the terminator that `__register_frame` requires.
pub(crate) fn eh_frame(unit: &Unit) -> Option<Vec<u8>> {
    let mut section = EhFrame(EndianVec::new(LittleEndian));
    table(unit, 1).write_eh_frame(&mut section).ok()?;
    let mut bytes = section.0.into_vec();
    bytes.extend_from_slice(&[0; 4]);
    Some(bytes)
}

/// All functions' frames as `.debug_frame`.
pub(crate) fn debug_frame(unit: &Unit) -> Option<Vec<u8>> {
    let mut section = DebugFrame::from(EndianVec::new(LittleEndian));
    table(unit, 4).write_debug_frame(&mut section).ok()?;
    Some(section.0.into_vec())
}

/// One function's frame as `.eh_frame`, for a section that is placed `distance` bytes after the function's first
/// byte.
pub(crate) fn relative_eh_frame(unit: &Unit, function: usize, distance: usize) -> Option<Vec<u8>> {
    let mut table = FrameTable::default();
    let pointers = DwEhPe(gimli::DW_EH_PE_pcrel.0 | gimli::DW_EH_PE_sdata4.0);
    let cie = table.add_cie(cie(unit.arch, 1, pointers));
    // Relative to the section, which begins at 0.
    table.add_fde(cie, fde(unit, function, (distance as u64).wrapping_neg()));
    let mut section = EhFrame(EndianVec::new(LittleEndian));
    table.write_eh_frame(&mut section).ok()?;
    let mut bytes = section.0.into_vec();
    bytes.extend_from_slice(&[0; 4]);
    Some(bytes)
}

// The unwinder's interface for code made at run time, in libgcc_s and LLVM's libunwind alike (libgcc:
// unwind-dw2-fde.h). The standard library links one of them.
unsafe extern "C" {
    fn __register_frame(eh_frame: *const u8);
    fn __deregister_frame(eh_frame: *const u8);
}

/// Frames that are registered with the process's unwinder.
#[derive(Debug)]
pub(crate) struct RegisteredFrames {
    /// Never empty: a CIE and the terminator at least.
    section: Box<[u8]>,
}

impl RegisteredFrames {
    /// # Safety
    /// The notes of the unit must describe the code at its place, for as long as the result lives.
    pub(crate) unsafe fn new(unit: &Unit) -> Option<RegisteredFrames> {
        let section = eh_frame(unit)?.into_boxed_slice();
        // SAFETY: a well-formed section, ended by a zero length, in memory that this value keeps until `drop`
        // deregisters it; the caller guarantees that its contents are correct.
        unsafe { __register_frame(section.as_ptr()) };
        Some(RegisteredFrames { section })
    }
}

impl Drop for RegisteredFrames {
    fn drop(&mut self) {
        // SAFETY: registered in `new`, with this address, and deregistered only here.
        unsafe { __deregister_frame(self.section.as_ptr()) };
    }
}
