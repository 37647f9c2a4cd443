//! From places in BPF instructions to places in machine code: which code a range of instructions became, and what a
//! DWARF expression over BPF registers is over those of the machine.
//!
//! A range of instructions is the code of each of them, wherever that is. The code of a call loses the caller's r0 to
//! r5, and an exit's takes the frame down: behind the first byte of a call these registers have no value, and behind
//! that of an exit nothing has.
//!
//! Invariant: an expression that cannot be translated exactly has no translation. A translated one has no jumps.

use crate::frames::dwarf_register;
use crate::unit::Unit;
use bpf_jit_code::{Arch, Home, Homes};
use core::ops::Range;
use gimli::read::{EndianSlice, Operation};
use gimli::write::Expression;
use gimli::{Encoding, LittleEndian};

/// Input bytes.
pub(crate) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Most operations of an expression.
const MAX_OPERATIONS: usize = 64;
/// BPF's number of the frame pointer. Source: LLVM's `BPFRegisterInfo.td`, like those of r0 to r9.
const R10: u16 = 10;

/// Code offsets, ascending and apart.
pub(crate) type Ranges = Vec<Range<u32>>;

/// The code of one function, by instruction.
#[derive(Debug)]
pub(crate) struct Map {
    /// Instruction, and where code made from it begins and ends; ascending by instruction.
    entries: Vec<(u32, Range<u32>)>,
    /// The code before the first instruction's.
    pub(crate) prologue: Range<u32>,
    /// The first instruction.
    pub(crate) first: u32,
}

impl Map {
    /// The map of a function that has instructions.
    pub(crate) fn new(unit: &Unit, function: usize) -> Option<Map> {
        let first = unit.functions.get(function)?.insn?;
        let (start, end) = unit.code_range(function);
        let from = unit.pc_map.partition_point(|entry| entry.code < start);
        let to = unit.pc_map.partition_point(|entry| entry.code < end);
        let entries = unit.pc_map.get(from..to)?;
        let ends = entries.iter().skip(1).map(|entry| entry.code).chain([end]);
        let prologue = start..entries.first().map_or(end, |entry| entry.code);
        let mut entries: Vec<_> = entries.iter().zip(ends).map(|(entry, end)| (entry.insn, entry.code..end)).collect();
        entries.sort_unstable_by_key(|(insn, code)| (*insn, code.start));
        Some(Map { entries, prologue, first })
    }

    /// The work of [`Map::ranges`].
    pub(crate) fn work(&self, insns: &Range<u32>) -> usize {
        8 * self.of(insns).len()
    }

    /// The entries of these instructions.
    fn of(&self, insns: &Range<u32>) -> Range<usize> {
        let from = self.entries.partition_point(|(insn, _)| *insn < insns.start);
        from..self.entries.partition_point(|(insn, _)| *insn < insns.end).max(from)
    }

    /// The code of these instructions in which a value is valid. `lost` says that it is read from r0 to r5.
    pub(crate) fn ranges(&self, unit: &Unit, insns: Range<u32>, lost: bool) -> Ranges {
        let valid = |(insn, code): &(u32, Range<u32>)| {
            let ends = unit.exits.binary_search(insn).is_ok() || lost && unit.calls.binary_search(insn).is_ok();
            // The first byte of the instruction's code, not of each of its parts.
            let entry = self.entries.partition_point(|(other, _)| other < insn);
            let part = self.entries[entry].1.start != code.start;
            match (ends, part) {
                (false, _) => code.clone(),
                (true, false) => code.start..code.end.min(code.start + 1),
                (true, true) => 0..0,
            }
        };
        let mut found: Ranges =
            self.entries[self.of(&insns)].iter().map(valid).filter(|code| !code.is_empty()).collect();
        found.sort_unstable_by_key(|code| code.start);
        found.dedup_by(|next, last| {
            let joins = last.end == next.start;
            if joins {
                last.end = next.end;
            }
            joins
        });
        found
    }
}

/// A translated place.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) data: Expression,
    /// Whether it is read from r0 to r5.
    pub(crate) lost: bool,
    /// The argument register, if the place is no more than one of r1 to r5.
    pub(crate) arg: Option<Expression>,
}

/// The places of one function's registers and stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) arch: Arch,
    pub(crate) homes: &'a Homes,
    /// [`crate::Function::stack`].
    pub(crate) stack: u32,
}

impl Frame<'_> {
    /// The place that a register is.
    pub(crate) fn register(self, register: u16) -> Option<Place> {
        let mut data = Expression::new();
        self.push_register(register, &mut data)?;
        let arg = usize::from(register).checked_sub(1).and_then(|arg| self.homes.args.get(arg)).map(|arg| {
            let mut data = Expression::new();
            data.op_reg(dwarf_register(self.arch, *arg));
            data
        });
        Some(Place { data, lost: register <= 5, arg })
    }

    fn push_register(self, register: u16, out: &mut Expression) -> Option<()> {
        if register == R10 {
            self.below_cfa(self.homes.frame, 0, out);
            out.op(gimli::DW_OP_stack_value);
            return Some(());
        }
        match (*self.homes.regs.get(usize::from(register))?)? {
            Home::Reg(reg) => out.op_reg(dwarf_register(self.arch, reg)),
            Home::Memory(below) => self.below_cfa(below, 0, out),
        }
        Some(())
    }

    /// Pushes the address `below` bytes below the canonical frame address, plus `offset`.
    fn below_cfa(self, below: u32, offset: i64, out: &mut Expression) {
        out.op(gimli::DW_OP_call_frame_cfa);
        out.op_consts(offset.wrapping_sub(below.into()));
        out.op(gimli::DW_OP_plus);
    }

    /// Pushes a register's value plus `offset`.
    fn push_value(self, register: u16, offset: i64, out: &mut Expression) -> Option<()> {
        if register == R10 {
            self.below_cfa(self.homes.frame, offset, out);
            return Some(());
        }
        match (*self.homes.regs.get(usize::from(register))?)? {
            Home::Reg(reg) => out.op_breg(dwarf_register(self.arch, reg), offset),
            Home::Memory(below) => {
                self.below_cfa(below, 0, out);
                out.op(gimli::DW_OP_deref);
                out.op_consts(offset);
                out.op(gimli::DW_OP_plus);
            }
        }
        Some(())
    }

    /// The offset from r10 that an offset in a place on the stack means. Clang counts from the stack's lowest byte
    /// (LLVM's generic `getFrameIndexReference`), bpf-gcc from r10. An offset outside of the stack means nothing.
    fn below_r10(self, offset: i64) -> Option<i64> {
        let stack = i64::from(self.stack);
        let below = if offset >= 0 { offset - stack } else { offset };
        (-stack..0).contains(&below).then_some(below)
    }

    /// Translates an expression of a function whose frame base is r10 if `based`. `base_type` gives the size in bytes
    /// of a type that values are converted to, and whether it is signed.
    pub(crate) fn translate(
        self,
        expression: gimli::read::Expression<Bytes<'_>>,
        encoding: Encoding,
        based: bool,
        base_type: &mut dyn FnMut(usize) -> Option<(u64, bool)>,
    ) -> Option<Place> {
        let mut out = Expression::new();
        let (mut lost, mut arg, mut count) = (false, None, 0);
        let mut operations = expression.operations(encoding);
        while let Some(operation) = operations.next().ok()? {
            count += 1;
            if count > MAX_OPERATIONS {
                return None;
            }
            let simple = match operation {
                Operation::Nop => continue,
                Operation::Register { register } => {
                    let place = self.register(register.0)?;
                    lost |= place.lost;
                    arg = place.arg;
                    self.push_register(register.0, &mut out)?;
                    continue;
                }
                Operation::RegisterOffset { register: gimli::Register(R10), offset, base_type } if base_type.0 == 0 => {
                    self.push_value(R10, self.below_r10(offset)?, &mut out)?;
                    continue;
                }
                Operation::RegisterOffset { register, offset, base_type } if base_type.0 == 0 => {
                    lost |= register.0 <= 5;
                    self.push_value(register.0, offset, &mut out)?;
                    continue;
                }
                Operation::FrameOffset { offset } if based => {
                    self.push_value(R10, self.below_r10(offset)?, &mut out)?;
                    continue;
                }
                Operation::Deref { base_type, size, space: false } if base_type.0 == 0 => {
                    match size {
                        8 => out.op_deref(),
                        1 | 2 | 4 => out.op_deref_size(size),
                        _ => return None,
                    }
                    continue;
                }
                Operation::Pick { index } => {
                    out.op_pick(index);
                    continue;
                }
                Operation::PlusConstant { value } => {
                    out.op_plus_uconst(value);
                    continue;
                }
                Operation::UnsignedConstant { value } => {
                    out.op_constu(value);
                    continue;
                }
                Operation::SignedConstant { value } => {
                    out.op_consts(value);
                    continue;
                }
                Operation::Convert { base_type: to } => {
                    if to.0 != 0 {
                        convert(base_type(to.0)?, &mut out)?;
                    }
                    continue;
                }
                Operation::Piece { size_in_bits, bit_offset: None } if size_in_bits.is_multiple_of(8) => {
                    out.op_piece(size_in_bits / 8);
                    continue;
                }
                Operation::ImplicitValue { data } if data.len() <= 16 => {
                    out.op_implicit_value(data.slice().into());
                    continue;
                }
                Operation::Drop => gimli::DW_OP_drop,
                Operation::Swap => gimli::DW_OP_swap,
                Operation::Rot => gimli::DW_OP_rot,
                Operation::Abs => gimli::DW_OP_abs,
                Operation::And => gimli::DW_OP_and,
                Operation::Minus => gimli::DW_OP_minus,
                Operation::Mul => gimli::DW_OP_mul,
                Operation::Neg => gimli::DW_OP_neg,
                Operation::Not => gimli::DW_OP_not,
                Operation::Or => gimli::DW_OP_or,
                Operation::Plus => gimli::DW_OP_plus,
                Operation::Shl => gimli::DW_OP_shl,
                Operation::Shr => gimli::DW_OP_shr,
                Operation::Shra => gimli::DW_OP_shra,
                Operation::Xor => gimli::DW_OP_xor,
                Operation::Eq => gimli::DW_OP_eq,
                Operation::Ne => gimli::DW_OP_ne,
                Operation::StackValue => gimli::DW_OP_stack_value,
                // Addresses of the object, values at entry, jumps, calls, and what depends on types.
                _ => return None,
            };
            out.op(simple);
        }
        (count > 0).then_some(Place { data: out, lost, arg: arg.filter(|_| count == 1) })
    }
}

/// Converts the topmost value to an integer of this size in bytes and signedness, as a value of 64 bits.
fn convert((size, signed): (u64, bool), out: &mut Expression) -> Option<()> {
    let bits = match size {
        8 => return Some(()),
        1 | 2 | 4 => 64 - 8 * size,
        _ => return None,
    };
    out.op_constu(bits);
    out.op(gimli::DW_OP_shl);
    out.op_constu(bits);
    out.op(if signed { gimli::DW_OP_shra } else { gimli::DW_OP_shr });
    Some(())
}
